"""Settings from files and by section: what has precedence, what may be written, and what is said about mistakes."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from marl_connectors import MAPPOConfig, MeanStdFilter, PPOConfig
from marl_connectors.callbacks import Callbacks
from marl_connectors.cli.command_settings import seeds_of
from marl_connectors.cli.known_algorithms import known_sections
from marl_connectors.cli.layers import Words, read_file, resolved, user_tree
from marl_connectors.cli.made_config import make_config, new_config
from marl_connectors.cli.main import main
from marl_connectors.cli.parser import parse, words_of
from marl_connectors.cli.tree import flat, nested, read_setting
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.json_data import jsonable
from marl_connectors.learner.learner import Learner
from marl_connectors.packages import is_installed

yaml = pytest.importorskip("yaml")
TINY = """
env: CartPole-v1
preset: false
steps: 4e1
num_envs: 2
num_env_workers: 0
eval_episodes: 2
video: none
hidden: [4]
training: {train_batch_size_per_learner: 40, minibatch_size: 20, num_epochs: 1}
"""


class MyCallbacks(Callbacks):
    pass


def same(env, number):
    return env


def count(*, episode, **kwargs):
    pass


def by_last_letter(agent_id, episode, **kwargs):
    return agent_id[-1]


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Returns the tree of a run with words, and with a file ``run.yaml`` if its text is given."""
    monkeypatch.chdir(tmp_path)

    def of(*words, file=None):
        if file is not None:
            (tmp_path / "run.yaml").write_text(file)
            words = (*words, "--config", "run.yaml")
        return resolved(user_tree(words_of(parse(["train", *words]))))

    return of


# Settings by section.


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["training.lr=1e-3"], "lr", 1e-3),
        (["lr=1e-3"], "lr", 1e-3),
        (["env_runners.rollout_fragment_length=64"], "rollout_fragment_length", 64),
        (["evaluation.evaluation_interval=5"], "evaluation_interval", 5),
        (["fault_tolerance.restart_failed_sub_environments=true"], "restart_failed_sub_environments", True),
        (["debugging.seed=7"], "seed", 7),
        (["environment.env_config={'a': 1}"], "env_config", {"a": 1}),
        (["environment.disable_env_checking=true"], "disable_env_checking", True),
        (["environment.clip_rewards=0.5"], "clip_rewards", 0.5),
        (["learners.autocast_dtype=bfloat16"], "autocast_dtype", "bfloat16"),
        (["learners.learner_class=marl_connectors:PPOLearner"], "learner_class", None),
        (["multi_agent.policies=['a']", "multi_agent.policy_mapping_fn=*=a"], "policies", ["a"]),
        (["env_runners.num_envs_per_env_runner=3"], "num_envs_per_env_runner", 3),
        (["env_runners.num_envs_per_env_runner=3", "env_runners.num_env_runners=2"], "num_env_runners", 2),
        (["rl_module.algorithm_config_overrides_per_module={'a': {'lr': 0.1}}"], None, {"a": {"lr": 0.1}}),
        (["exploration.explore=false"], "explore", False),
        (["reporting.metrics_num_episodes_for_smoothing=9"], "metrics_num_episodes_for_smoothing", 9),
        (["framework.framework=torch"], "num_epochs", 8),
    ],
    ids=str,
)
def test_set_takes_a_setting_of_any_section(settings, words, name, value):
    given = [word for each in words for word in ("--set", each)]
    config = make_config(settings("CartPole-v1", "--no-preset", *given))
    found = getattr(config, name or "algorithm_config_overrides_per_module")
    if name == "learner_class":
        assert found.__name__ == "PPOLearner" and issubclass(found, Learner)
    else:
        assert found == value


def test_whole_numbers_and_names_of_choices_may_be_written_otherwise(settings):
    words = ["CartPole-v1", "--no-preset", "--algo", "PPO", "--activation", "ReLU", "--set", "num_epochs=1e1"]
    words += ["--set", "training.minibatch_size=64.0", "--set", "lr=1.0", "--model", "lstm_cell_size=8.0"]
    found = settings(*words)
    model = "rl_module.model_config"
    assert (found["run.algo"], found[f"{model}.fcnet_activation"]) == ("ppo", "relu")
    places = ["training.num_epochs", "training.minibatch_size", "training.lr", f"{model}.lstm_cell_size"]
    values = [found[place] for place in places]
    assert values == [10, 64, 1.0, 8] and [type(value) for value in values] == [int, int, float, int]


def test_names_stand_for_callbacks_pieces_and_functions(settings):
    words = [f"callbacks.callbacks_class={__name__}:MyCallbacks", f"callbacks.on_sample_end={__name__}:count"]
    words += ["env_runners.env_to_module_connector=MeanStdFilter:clip_by_value=3.0"]
    words += ["env_runners.module_to_env_connector=[]", f"multi_agent.policy_mapping_fn={__name__}:by_last_letter"]
    config = make_config(settings("CartPole-v1", *(word for each in words for word in ("--set", each))))
    assert config.callbacks_class is MyCallbacks and config.callbacks_on_sample_end is count
    assert config.policy_mapping_fn is by_last_letter
    [piece] = config.env_to_module_connector()
    assert isinstance(piece, MeanStdFilter)
    opponent = settings(
        "CartPole-v1", "--set", f"evaluation_config={{'policy_mapping_fn': '{__name__}:by_last_letter'}}"
    )
    assert make_config(opponent).evaluation_config["policy_mapping_fn"] is by_last_letter


# Files.


def as_data(config):
    """Returns what of a config is data, by section."""
    data = {}
    for section, names in known_sections().items():
        for name in names:
            value = getattr(config, name, None)
            if name in vars(config) and not callable(value):
                data.setdefault(section, {})[name] = jsonable(value)
    return data


@pytest.mark.few(1)
@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml"])
@pytest.mark.parametrize("algo", ["ppo", "mappo"])
def test_a_file_can_have_all_data_of_a_config(algo, suffix, tmp_path):
    config = {"ppo": PPOConfig, "mappo": MAPPOConfig}[algo]()
    config.environment("marl_envs.null_v0", env_config={"n_agents": 2}, reset_options={"a": [1]})
    config.environment(wrappers=[f"{__name__}.same:4"], clip_rewards=0.5, action_mask_key=None)
    config.multi_agent(policies=["a"], policy_mapping_fn="*=a", policies_to_train=["a"], count_steps_by="agent_steps")
    config.env_runners(
        num_env_runners=2, num_envs_per_env_runner=3, sample_timeout_s=None, batch_mode="complete_episodes"
    )
    config.training(lr=[[0, 0.5], [100, 0.25]], grad_clip=0.25, minibatch_size=None, entropy_coeff=1e-7, gamma=0.5)
    config.learners(num_learners=2, num_gpus_per_learner=0, autocast_dtype="bfloat16", stack_modules=False)
    config.fault_tolerance(restart_failed_sub_environments=True).reporting(metrics_num_episodes_for_smoothing=3)
    config.evaluation(evaluation_interval=2, evaluation_config={"explore": True}).resources(ray_address="auto")
    config.rl_module(model_config={"fcnet_hiddens": [4], "fcnet_activation": "relu", "vf_share_layers": False})
    config.rl_module(algorithm_config_overrides_per_module={"a": {"lr": 0.125}}).debugging(seed=5)
    config.run(steps=500, video="mp4", video_every=2, track=["wandb"], keep_best=None)
    data = {"algo": algo, "preset": False, **as_data(config)}
    data["multi_agent"]["policy_mapping_fn"] = "*=a"
    path = tmp_path / f"run{suffix}"
    path.write_text(json.dumps(data) if suffix == ".json" else yaml.safe_dump(data))
    found = resolved(user_tree(Words([], str(path))))
    before, after = config.to_dict(), new_config(found).to_dict()
    model = after.pop("model_config")
    assert (model.fcnet_hiddens, model.fcnet_activation, model.vf_share_layers) == ([4], "relu", False)
    assert jsonable({name: before[name] for name in after}) == jsonable(after)


def test_options_come_before_the_file_the_file_before_the_preset_and_the_preset_before_the_defaults(settings):
    preset = settings("CartPole-v1")
    assert preset["training.lr"] == 1e-3 and preset["run.steps"] != 1_000_000  # of the zoo
    file = "env: CartPole-v1\nnum_envs: 5\nseed: 3\ntraining: {gamma: 0.5, num_epochs: 2}\n"
    found = settings("--seed", "4", "--set", "num_epochs=1", file=file)
    assert (found["debugging.seed"], found["training.num_epochs"]) == (4, 1)  # options
    assert (found["run.num_envs"], found["training.gamma"]) == (5, 0.5)  # the file
    assert (found["training.lr"], found["run.steps"]) == (1e-3, preset["run.steps"])  # the preset
    assert (found["run.eval_episodes"], found["run.preset"]) == (20, "CartPole-v1")  # the defaults
    bare = settings(file=f"preset: false\n{file}")
    assert (bare["training.lr"], bare["run.steps"], bare["run.preset"]) == (3e-4, 1_000_000, "")


FN = f"{__name__}:by_last_letter"
MODULES, MAPPING = "multi_agent.policies", "multi_agent.policy_mapping_fn"


@pytest.mark.parametrize(
    ("file", "words", "expected", "gone"),
    [
        (f"mapping: {FN}\nmodules: [a]", ["--policies", "shared"], {MAPPING: "shared"}, [MODULES]),
        ("policies: independent", ["--mapping", FN], {MAPPING: FN}, []),
        ("env_runners: {num_envs_per_env_runner: 3}", ["--num-envs", "4"], {"run.num_envs": 4}, []),
        ("num_envs: 6", ["--set", "num_envs_per_env_runner=2"], {}, ["run.num_envs"]),
        ("model: {fcnet_hiddens: [3]}", ["--hidden", "5"], {"rl_module.model_config.fcnet_hiddens": [5]}, []),
        ("hidden: [3]", ["--model", "fcnet_hiddens=[5]"], {"rl_module.model_config.fcnet_hiddens": [5]}, []),
        (
            "env_config: {a: 1, b: 2}",
            ["--env-config", "b=3"],
            {"environment.env_config.a": 1, "environment.env_config.b": 3},
            [],
        ),
        (
            "env_config: {a: 1}\nwrappers: ['frame_skip_v0:4']",
            ["Acrobot-v1"],
            {"environment.env": "Acrobot-v1"},
            ["environment.env_config.a", "environment.wrappers"],
        ),
        ("anneal_lr: true", ["--set", "lr=[[0, 0.1], [9, 0.2]]"], {}, ["run.anneal_lr"]),
        ("algo: sac\nanneal_lr: true", ["--set", "critic_lr=[[0, 0.1], [9, 0.2]]"], {}, ["run.anneal_lr"]),
        (
            "env_to_module: [MeanStdFilter]",
            ["--env-to-module", "none"],
            {"env_runners.env_to_module_connector": []},
            [],
        ),
    ],
    ids=str,
)
def test_an_option_replaces_what_a_file_says_in_another_way(settings, file, words, expected, gone):
    found = settings(*words, file=f"env: CartPole-v1\npreset: false\n{file}")
    assert {name: found[name] for name in expected} == expected and not set(gone) & found.keys()


@pytest.mark.parametrize(
    ("file", "words", "num_envs"),
    [
        ("env_runners: {num_envs_per_env_runner: 3}", ["--num-env-runners", "2"], (3, 6)),
        ("num_envs: 6", ["--num-env-runners", "2"], (3, 6)),
        ("num_envs: 6", ["--set", "num_envs_per_env_runner=2"], (2, 2)),
    ],
)
def test_sub_environments_are_counted_together_or_for_each_env_runner(settings, file, words, num_envs):
    config = new_config(settings(*words, file=f"env: CartPole-v1\npreset: false\n{file}"))
    assert (config.num_envs_per_env_runner, config.num_envs) == num_envs


def test_keys_of_an_environments_arguments_need_not_be_texts(settings):
    found = new_config(
        settings("--env-config", "a=1", file="env: CartPole-v1\npreset: false\nenv_config: {3: x, b: 2}")
    )
    assert found.env_config == {3: "x", "b": 2, "a": 1}


@pytest.mark.parametrize(
    ("option", "key", "expected"), [("--no-env-check", "false", True), ("--env-check", "true", False)]
)
def test_a_switch_may_be_the_opposite_of_its_setting(settings, option, key, expected):
    assert settings("CartPole-v1", option)["environment.disable_env_checking"] is expected
    assert settings(file=f"env: CartPole-v1\nenv_check: {key}")["environment.disable_env_checking"] is expected


def test_numbers_in_yaml_are_numbers(settings):
    found = settings(file="env: CartPole-v1\nsteps: 1e5\ntraining: {lr: 1e-3, num_epochs: 1.0e+1, vf_clip_param: .inf}")
    values = [found[place] for place in ("run.steps", "training.num_epochs", "training.lr", "training.vf_clip_param")]
    assert values == [100_000, 10, 1e-3, math.inf] and [type(value) for value in values[:2]] == [int, int]


MISTAKES = [
    ("trainin: {}", "run.yaml: unknown key 'trainin'. Did you mean 'training'?"),
    ("stepss: 3", "run.yaml: unknown key 'stepss'. Did you mean 'steps'?"),
    ("lr: 3", "run.yaml: unknown key 'lr'. It is a setting of training: training: {lr: 3}"),
    ("training: {lrr: 3}", "run.yaml: training: unknown setting 'lrr'. Did you mean 'lr'?"),
    ("training: {lr: much}", "run.yaml: training.lr: expected a number from 0, or a schedule"),
    ("training: {lr: null}", "run.yaml: training.lr: expected a number from 0, or a schedule"),
    ("model: {use_lstm: maybe}", "run.yaml: model.use_lstm: expected True or False, got 'maybe'"),
    (
        "rl_module: {model_config: {use_lstm: maybe}}",
        "run.yaml: rl_module.model_config.use_lstm: expected True or False",
    ),
    ("mapping: no_such_module:f", "run.yaml: mapping: there is no module 'no_such_module'"),
    ("mapping: f", 'run.yaml: mapping: expected "shared", "independent", "pattern=module,pattern=module", or'),
    ("mapping: math:pi", "run.yaml: mapping: expected"),
    (
        "multi_agent: {policy_mapping_fn: 'no_such_module:f'}",
        "run.yaml: multi_agent.policy_mapping_fn: there is no module 'no_such_module'",
    ),
    ("training: {num_epochs: 0}", "run.yaml: training.num_epochs: expected a whole number from 1, got 0"),
    ("training: 3", "run.yaml: training: expected settings, each with its name, but got 3"),
    ("steps: many", "run.yaml: steps: expected a whole number from 1, or None, got 'many'"),
    (
        "env_runners: {num_env_runners: -1}",
        "run.yaml: env_runners.num_env_runners: expected a whole number from 0, got",
    ),
    ("multi_agent: {policies: shard}", "run.yaml: multi_agent.policies: expected"),
    ("multi_agent: {policy_mapping_fn: shard}", "run.yaml: multi_agent.policy_mapping_fn: expected"),
    ("env_to_module: [MeanStdFiltr]", "run.yaml: env_to_module: there is no piece 'MeanStdFiltr'. Did you mean"),
    ("callbacks: {on_episode_end: 'no_such_module:f'}", "run.yaml: callbacks.on_episode_end: there is no module"),
    ("training: [", "run.yaml: it cannot be read as YAML:"),
    ("seed: 1\nseed: 2", "run.yaml: it cannot be read as YAML: 'seed' is there twice in line 3"),
    (
        "seed: 1\ndebugging: {seed: 2}",
        "run.yaml: debugging.seed: it is the same setting as run.yaml: seed. Use one of them.",
    ),
    ("seeds: 3-1", "run.yaml: seeds: expected seeds such as 0-4 or 0,3,7, but got '3-1'.\n"),
    ("seeds: [1, 1]", "run.yaml: seeds: expected each seed once, but got [1, 1].\n"),
    (
        "track: wanbd",
        "run.yaml: track: expected a list of tensorboard, wandb, mlflow, trackio, got ['wanbd']. Did you mean 'wandb'?",
    ),
    ("track: 3", "run.yaml: track: expected a list of tensorboard, wandb, mlflow, trackio, got 3"),
    ("? [1, 2]\n: 3", "run.yaml: it cannot be read as YAML: expected a text or a number as key in line 2"),
    ("training: {lr: 1.0, lr: 2.0}", "run.yaml: it cannot be read as YAML: 'lr' is there twice in line 2"),
    ("model: &m {a: *m}", "run.yaml: it cannot be read as YAML: an anchor contains itself in line 2"),
    ("model: &m [*m]", "run.yaml: it cannot be read as YAML: an anchor contains itself in line 2"),
    ("model: &m {<<: *m}", "run.yaml: it cannot be read as YAML: an anchor contains itself in line 2"),
    ("seed: !!int ''", "run.yaml: it cannot be read as YAML: a value does not fit its tag"),
    ("env_runners: {env_to_module_connector: 3}", "run.yaml: env_runners.env_to_module_connector: expected a list of"),
    ("env_runners: {env_to_module_connector: [null]}", "run.yaml: env_runners.env_to_module_connector: expected a li"),
    ("training: {learner_connector: {a: 1}}", "run.yaml: training.learner_connector: expected a list of"),
    ("env_to_module: [3]", "run.yaml: env_to_module: expected a list of"),
    ("config: nowhere.py", "run.yaml: config: there is no file 'nowhere.py' beside it"),
    ("config: 3", "run.yaml: config: expected the name of a Python file or module, or None, got 3"),
    ("run: {config: [a]}", "run.yaml: config: expected the name of a Python file or module, or None, got ['a']"),
    ("config: ''", "run.yaml: config: expected the name of a Python file or module, or None, got ''"),
    ("out: null", "run.yaml: out: expected the path of a folder, got None"),
    ("seeds: null", "run.yaml: seeds: expected seeds such as 0-4 or 0,3,7, or a list of them, got None"),
    ("seed: 1\nseeds: 0-2", "run.yaml: seeds: it cannot be given with run.yaml: seed. Use one of them."),
    ("steps: null", "--steps: expected the agent steps at which the run ends, but got None"),
    ("preset: null", "run.yaml: preset: expected True or False, got None"),
    ("hidden: ''", "run.yaml: hidden: expected a list of whole numbers from 1, such as [64, 64], got ['']"),
    ("framework: {framework: tf2}", "run.yaml: framework.framework: expected 'torch', got 'tf2'"),
    ("settings: {training: {lr: 3}}", "run.yaml: unknown key 'settings'. What is under it belongs to the top of the"),
    ("training: {dueling: true}", "run.yaml: training: unknown setting 'dueling'. It is a setting of other algorithms"),
    ("training: {resume: run}", "run.yaml: training: unknown setting 'resume'. It is no setting, but an option: --res"),
]


@pytest.mark.parametrize("value", ["''", "3", "' '"])
def test_a_file_whose_environment_has_no_name_is_named(value, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(f"env: {value}\n")
    assert main(["train", "--config", "run.yaml"]) == 2
    wanted = "run.yaml: env: expected a name"
    assert capsys.readouterr().err.startswith(f"marl-connectors: error: {wanted}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "preset=maybe"], "--set preset: .*'maybe'"),
        (
            ["--set", "run.config=my.py"],
            "--set: run: .*'config'.* --config",
        ),
        (["--set", "twin_q=true"], "--set: .*'twin_q'.* sac, "),
        (["--set", "framework=tf"], "--set framework: .*'torch'.*'tf'"),
        (["--seeds", "none"], "--seeds: .*'none'"),
        (["--set", "seeds=0-2", "--seed", "1"], "--seed: .* --set seeds"),
        (
            ["--set", "hidden=[3]", "--hidden", "4"],
            "--hidden: .* --set hidden",
        ),
        (["--set", "lr=1", "--set", "training.lr=2"], "--set training.lr: .* --set lr"),
        (["--num-envs", "3", "--set", "num_envs_per_env_runner=2"], "runner: .* --num-envs"),
        (["--steps", "1,000"], "--steps: .*'1,000'"),
        (["--hidden", ""], "--hidden: .*numbers"),
        (["--hidden", "64,,64"], "--hidden: .*numbers"),
        (["--track", ""], "--track: .*tensorboard"),
        (["--modules", ""], "--modules: "),
        (
            ["--steps", "1e30"],
            "--steps: .* 1000000000000000019884624838656",
        ),
    ],
    ids=str,
)
def test_a_mistake_on_the_command_line_is_named_as_it_was_written(settings, words, message):
    with pytest.raises(ConfigError, match=message):
        settings("CartPole-v1", *words)


def test_set_decides_about_algorithm_preset_and_environment_as_the_options_do(settings):
    assert settings("CartPole-v1", "--set", "algo=DQN") == settings("CartPole-v1", "--algo", "dqn")
    assert settings("Pendulum-v1", "--set", "run.preset=false") == settings("Pendulum-v1", "--no-preset")
    assert settings("Pendulum-v1")["run.algo"] == "sac"  # which the preset chooses
    file = "env: CartPole-v1\nsteps: 70\n"
    assert settings("--set", "environment.env=Pendulum-v1", file=file) == settings("Pendulum-v1", file=file)


def test_an_algorithm_on_the_command_line_may_accept_what_that_of_the_file_does_not(settings):
    text = "env: CartPole-v1\ntraining: {lr: null}"
    assert settings("--algo", "sac", file=text)["training.lr"] is None


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_a_mistake_in_a_file_is_one_line_that_names_file_and_key(text, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(f"env: CartPole-v1\n{text}\n")
    assert main(["train", "--config", "run.yaml"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize("link", ["[{0}, {0}, {0}]", "{{<<: [{0}, {0}, {0}]}}", "{{x: {0}, y: {0}, z: {0}}}"])
def test_anchors_in_anchors_are_refused_before_they_are_written_out(link, tmp_path):
    anchors = ["a0: &a0 {k: 1}", *(f"a{n}: &a{n} {link.format(f'*a{n - 1}')}" for n in range(1, 40))]
    (tmp_path / "run.yaml").write_text("\n".join(anchors))
    with pytest.raises(ConfigError, match=r"than 100,000\b"):
        read_file(str(tmp_path / "run.yaml"))


def test_an_anchor_may_be_used_twice_and_merged(tmp_path):
    text = "training: &t {lr: 0.5}\nmodel: {x: &x [1], y: *x}\nevaluation: {evaluation_config: {<<: *t, gamma: 0.25}}"
    (tmp_path / "run.yaml").write_text(text)
    data, _, _ = read_file(str(tmp_path / "run.yaml"))
    assert data["model"] == {"x": [1], "y": [1]}
    assert data["evaluation"] == {"evaluation_config": {"lr": 0.5, "gamma": 0.25}}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.yaml", None, "--config: there is no file 'missing.yaml'"),
        ("run.json", b"{", "run.json: it cannot be read as JSON"),
        ("run.yaml", b"\xff\xfe\x00", "run.yaml: it cannot be read as YAML"),
        ("run.yaml", b"", "run.yaml: expected settings, such as 'env: CartPole-v1', but got None"),
        ("run.yaml", b"steps: 3", "run.yaml: it has no environment. Add the key 'env', or name one"),
        ("run.yaml", b"a: " + b"[" * 500, "run.yaml: it cannot be read as YAML"),
        (
            "run.json",
            b'{"env": "CartPole-v1", "model": {"a": 1, "a": 2}}',
            "run.json: it cannot be read as JSON: an object",
        ),
        ("run.json", b'{"env": "CartPole-v1", "model": ' + b"[" * 900 + b"]" * 900 + b"}", "run.json: model: expected"),
        ("run.txt", b"env: x", "expected a file that ends in .yaml, .yml, .json or .py, or a Python module, but got"),
        (
            "config.json",
            b'{"settings": {"environment": {"env": "x"}, "run": {"algo": "ppo", "stepps": 3}}}',
            "config.json: run: unknown setting 'stepps'",
        ),
        (".", None, "--config: expected a file, but . is a folder"),
    ],
)
def test_a_file_that_is_no_config_is_named(name, content, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert main(["train", "--config", name]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_help_and_parsing_import_neither_yaml_nor_torch():
    code = "import sys; from marl_connectors.cli.parser import parse; parse(['train', 'x', '--config', 'run.yaml']); "
    code += "print(sorted({'yaml', 'torch', 'shtab', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


# The config.json of a run.


@pytest.mark.slow
def test_a_run_can_be_trained_from_its_config_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(f"{TINY}env_runners: {{rollout_fragment_length: 10}}\n")
    assert main(["train", "--config", "run.yaml", "--set", "clip_param=Infinity", "--out", "first"]) == 0
    assert main(["train", "--config", "first/config.json", "--out", "second"]) == 0
    assert main(["train", "--config", "first/config.json", "--seed", "1", "--out", "third"]) == 0
    first, second, third = (
        json.loads((tmp_path / f"{run}/config.json").read_text()) for run in ("first", "second", "third")
    )
    assert first.pop("tracked_run") != second.pop("tracked_run")
    assert first == second and first["algorithm"]["rollout_fragment_length"] == 10
    assert first["settings"]["training"]["clip_param"] == "Infinity"
    rows = [(tmp_path / f"{run}/metrics.jsonl").read_text().splitlines()[0] for run in ("first", "second", "third")]
    losses = [json.loads(row)["learners"]["default_policy"]["total_loss"] for row in rows]
    assert losses[0] == losses[1] != losses[2]
    one, other = flat(first["settings"], "first"), flat(third["settings"], "third")
    assert {place for place in one if one[place] != other[place]} == {"debugging.seed"}
    assert main(["train", "--config", "first"]) == 2
    assert "Name its file: first/config.json" in capsys.readouterr().err


def test_a_tree_comes_back_from_its_json(settings):
    words = [
        "simple_spread_v3",
        "--algo",
        "mappo",
        "--set",
        "vf_clip_param=Infinity",
        "--set",
        "lr=[[0, 0.1], [5, 0.2]]",
    ]
    words += ["--eval-opponent", "random:a*,b*", "--no-eval-explore", "--env-config", "N=4", "--keep-best", "none"]
    before = settings(*words, "--no-env-check", "--num-learners", "3", "--model", "use_lstm=true", "--track", "mlflow")
    assert flat(json.loads(json.dumps(jsonable(nested(before)))), "x") == before


def test_the_config_json_of_a_run_with_options_above_it(settings, tmp_path):
    before = settings("CartPole-v1", "--num-learners", "3", "--set", "train_batch_size_per_learner=9")
    (tmp_path / "config.json").write_text(json.dumps({"settings": nested(before)}))
    of_run = ("--config", "config.json")
    assert settings(*of_run) == before
    other = settings("Acrobot-v1", *of_run, "--env-config", "b=1")
    assert (other["environment.env"], other["environment.env_config.b"]) == ("Acrobot-v1", 1)
    assert settings(*of_run, "--num-learners", "1")["training.train_batch_size_per_learner"] == 27
    dqn = settings(*of_run, "--algo", "dqn")
    assert dqn["training.n_step"] == 3 and "training.clip_param" not in dqn
    presets = [before, settings(*of_run, "--seed", "3"), other, dqn, settings(*of_run, "--no-preset")]
    assert [each["run.preset"] for each in presets] == ["CartPole-v1", "CartPole-v1", "", "", ""]


def test_the_files_of_several_runs_begin_a_single_one(settings, tmp_path):
    whole = settings("CartPole-v1", "--set", "lr=0.5")
    several = {place: own for place, own in whole.items() if place != "debugging.seed"}
    (tmp_path / "seeds.json").write_text(json.dumps({"settings": nested(several)}))
    assert settings("--config", "seeds.json") == whole
    assert "debugging.seed" not in settings("--config", "seeds.json", "--seeds", "0-2")
    user = user_tree(words_of(parse(["train", "CartPole-v1", "--set", "lr=0.5", "--no-preset"])))
    (tmp_path / "sweep.json").write_text(json.dumps({"settings": nested(user)}))
    assert settings("--config", "sweep.json") == settings("CartPole-v1", "--set", "lr=0.5", "--no-preset")


@pytest.mark.parametrize("content", [3, None, "x"])
def test_damaged_settings_of_a_run_are_named(content, settings, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"settings": content}))
    with pytest.raises(CheckpointError, match=r"(?s)config\.json.*settings"):
        settings("--config", "config.json")


# Configs in Python files.

PYTHON = """
from marl_connectors import MAPPOConfig, MeanStdFilter

def make_config():
    config = MAPPOConfig().environment("marl_envs.null_v0", env_config={"n_agents": 2}, wrappers=[lambda env: env])
    config.multi_agent(policies=["a", "b"], policy_mapping_fn=lambda agent_id, episode, **kw: "ab"[int(agent_id[-1])])
    config.env_runners(num_envs_per_env_runner=2, num_env_workers=0)
    config.env_runners(env_to_module_connector=lambda env: MeanStdFilter())
    config.training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=1, gamma=0.5)
    return config.rl_module(model_config={"fcnet_hiddens": [4]})
"""


@pytest.fixture
def python_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"made_{abs(hash(str(tmp_path)))}.py"
    path.write_text(PYTHON)
    before = list(sys.path)
    yield path
    sys.path[:] = before
    sys.modules.pop(path.stem, None)


def test_a_config_from_python_stays_as_it_is_but_for_the_options(settings, python_file):
    module_config = make_config(settings("--config", python_file.name))
    assert (module_config.gamma, module_config.lr, module_config.num_envs, module_config.seed) == (0.5, 5e-5, 2, 0)
    assert module_config.model_config == {"fcnet_hiddens": [4]} and module_config.count_steps_by == "env_steps"
    words = ["--set", "gamma=0.75", "--hidden", "5", "--num-envs", "3", "--env-config", "n_agents=3", "--seed", "2"]
    changed = make_config(settings("--config", python_file.name, *words))
    differing = {
        name for name, value in module_config.to_dict().items() if jsonable(value) != jsonable(changed.to_dict()[name])
    }
    assert differing == {"gamma", "model_config", "num_envs_per_env_runner", "env_config", "seed"}
    assert changed.model_config == {"fcnet_hiddens": [5]} and changed.env_config == {"n_agents": 3}
    assert changed.policy_mapping_fn("agent_1", None) == "b"
    bare = make_config(settings("--config", python_file.name, "--env-to-module", "none"))
    assert bare.env_to_module_connector is None
    shared = make_config(settings("--config", python_file.name, "--policies", "shared"))
    assert shared.policies is None and shared.policy_mapping_fn("agent_1", None) == "default_policy"


def test_the_settings_of_the_run_in_a_python_config_hold_unless_an_option_replaces_them(settings, python_file):
    python_file.write_text(python_file.read_text() + "\nmade = make_config().run(steps=500, eval_episodes=3)\n")
    found = make_config(settings("--config", f"{python_file.name}:made", "--eval-episodes", "4"))
    assert (found.steps, found.eval_episodes, found.checkpoint_every, found.video) == (500, 4, 20, "gif")


def test_a_yaml_file_can_name_a_python_file_beside_it(settings, python_file, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "elsewhere" / "run.yaml"
    file.write_text(f"config: ../{python_file.name}\nsteps: 10\ntraining: {{gamma: 0.25}}\n")
    found = settings("--config", str(file))
    assert (found["run.steps"], make_config(found).gamma, found["run.config"]) == (10, 0.25, str(python_file))
    file.write_text(f"config: ../{python_file.name}\nalgo: dqn\n")
    with pytest.raises(ConfigError, match=r"(?s)run\.yaml.*\balgo\b.*'mappo'"):
        settings("--config", str(file))


def test_a_run_from_python_is_trained_resumed_and_evaluated_with_its_lambdas(python_file, capsys):
    words = ["--steps", "80", "--no-video", "--eval-episodes", "2", "--baseline-seconds", "1"]
    assert main(["train", "--config", python_file.name, *words, "--out", "run"]) == 0
    assert main(["train", "--resume", "run", "--steps", "400", "--set", "training.lr=0.125"]) == 0
    assert main(["evaluate", "run", "--episodes", "2", "--baseline-seconds", "1"]) == 0
    kept = json.loads((python_file.parent / "run" / "config.json").read_text())
    assert kept["algorithm"]["lr"] == 0.125 and kept["settings"]["run"]["config"] == str(python_file)
    capsys.readouterr()


MIXED = """
from marl_connectors import DQNConfig, MixedConfig, PPOConfig

def make_config():
    config = MixedConfig().environment("marl_envs.null_v0", env_config={"n_agents": 2})
    config.multi_agent(policies="independent").env_runners(num_env_workers=0)
    ppo = PPOConfig().training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=1)
    dqn = DQNConfig().training(num_steps_sampled_before_learning_starts=10)
    return config.rl_module(model_config={"fcnet_hiddens": [4]}).algorithms({"*_0": ppo, "*": dqn})
"""


@pytest.mark.slow
def test_a_run_with_several_algorithms_is_called_mixed(python_file, capsys):
    python_file.write_text(MIXED)
    words = ["--steps", "80", "--no-video", "--eval-episodes", "1", "--baseline-seconds", "1"]
    assert main(["train", "--config", python_file.name, *words]) == 0
    [folder] = (python_file.parent / "runs").iterdir()
    assert folder.name == "null_v0-mixed-independent-seed0"
    assert json.loads((folder / "config.json").read_text())["settings"]["run"]["algo"] == "mixed"
    assert main(["train", "--resume", str(folder), "--steps", "160"]) == 0
    assert main(["evaluate", str(folder), "--episodes", "1", "--baseline-seconds", "1"]) == 0
    assert "ppo" not in capsys.readouterr().out.lower()


def test_the_algorithm_of_a_python_config_cannot_be_chosen(python_file, capsys):
    words = ["--steps", "40", "--no-video", "--eval-episodes", "1", "--baseline-seconds", "1", "--out", "run"]
    assert main(["train", "--config", python_file.name, *words, "--algo", "dqn"]) == 2
    assert "--algo: " in (error := capsys.readouterr().err) and "makes the config of 'mappo', which" in error
    assert main(["train", "--config", python_file.name, *words, "--algo", "mappo"]) == 0
    assert main(["train", "--config", "run/config.json", "--out", "again", "--algo", "ppo"]) == 2
    assert "an option cannot turn into that of 'ppo'. Leave it out" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_whose_python_file_was_moved_is_used_with_its_new_place(python_file, tmp_path, capsys):
    words = ["--steps", "40", "--no-video", "--eval-episodes", "1", "--baseline-seconds", "1"]
    assert main(["train", "--config", python_file.name, *words, "--out", "run"]) == 0
    (tmp_path / "new place").mkdir()
    new = python_file.rename(tmp_path / "new place" / "renamed.py")
    before = (tmp_path / "run" / "config.json").read_bytes()
    for command in (["evaluate", "run"], ["train", "--resume", "run", "--steps", "160"], ["export", "run"]):
        if command[0] == "export" and not is_installed("onnx"):
            continue
        capsys.readouterr()
        assert main(command) == 2
        error = capsys.readouterr().err
        assert str(python_file) in error and "--config NEW.py" in error and error.count("\n") == 1
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    assert main(["explain", "--config", "run/config.json"]) == 2
    assert str(python_file.name) in capsys.readouterr().err
    short = ["--episodes", "1", "--baseline-seconds", "1"]
    assert main(["evaluate", "run", *short, "--config", str(new), "--video", "film.gif"]) == 0
    assert main(["train", "--resume", "run", "--steps", "160", "--config", str(new)]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["run"]["config"] == str(new)
    assert main(["evaluate", "run", *short]) == 0
    assert main(["train", "--resume", "run", "--steps", "240"]) == 0


@pytest.mark.slow
def test_seeds_whose_python_file_was_moved_go_on_with_its_new_place(python_file, tmp_path):
    words = ["--steps", "40", "--no-video", "--eval-episodes", "1", "--baseline-seconds", "1", "--seeds", "0,1"]
    assert main(["train", "--config", python_file.name, *words, "--out", "run"]) == 0
    new = python_file.rename(tmp_path / "renamed.py")
    assert main(["train", "--resume", "run", "--steps", "160"]) == 2
    assert main(["train", "--resume", "run", "--steps", "160", "--seeds", "0-2", "--config", new.name]) == 0
    assert json.loads((tmp_path / "run" / "seeds.json").read_text())["settings"]["run"]["config"] == str(new)


@pytest.mark.slow
def test_several_seeds_and_explain_read_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(TINY)
    assert main(["explain", "--config", "run.yaml"]) == 0
    assert capsys.readouterr().out.startswith("CartPole-v1: what each piece does to one batch. 2 sub-environments.")
    assert main(["train", "--config", "run.yaml", "--seeds", "0,1", "--out", "seeds", "--baseline-seconds", "1"]) == 0
    kept = [json.loads((tmp_path / f"seeds/seed{seed}/config.json").read_text())["settings"] for seed in (0, 1)]
    assert [each["debugging"]["seed"] for each in kept] == [0, 1]
    assert kept[0]["rl_module"]["model_config"]["fcnet_hiddens"] == [4]
    assert main(["train", "--resume", "seeds", "--config", "run.yaml"]) == 2
    assert "--config: expected the Python file of the run's config" in capsys.readouterr().err


SEVERAL = f"{TINY}\nseeds: 0,2\nout: several\nparallel: 1\nbaseline_seconds: 1\n"


@pytest.mark.slow
def test_a_file_can_have_the_seeds_and_the_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(SEVERAL)
    assert main(["train", "--config", "run.yaml"]) == 0
    assert sorted(path.name for path in (tmp_path / "several").glob("seed?")) == ["seed0", "seed2"]
    assert main(["train", "--config", "run.yaml", "--seed", "5", "--out", "single"]) == 0
    kept = json.loads((tmp_path / "single/config.json").read_text())["settings"]
    assert kept["debugging"]["seed"] == 5 and not {"seeds", "parallel", "out"} & kept["run"].keys()
    assert main(["explain", "--config", "run.yaml"]) == 0
    assert main(["train", "--config", "run.yaml"]) == 2
    assert "--out: expected a new or empty folder, but several exists" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seeds"), [("0-2", [0, 1, 2]), ("7", [7]), ("[3, 1]", [3, 1]), ("'4,5'", [4, 5])])
def test_seeds_may_be_written_in_several_ways(text, seeds, tmp_path):
    (tmp_path / "run.yaml").write_text(f"env: x\nseeds: {text}\n")
    assert seeds_of(user_tree(Words([], str(tmp_path / "run.yaml")))["run.seeds"]) == seeds


def test_none_in_a_file_is_none_as_on_the_command_line(settings):
    text = "env: CartPole-v1\npreset: false\nkeep_best: none\naction_mask_key: none\nray_address: none\n"
    found = settings(file=f"{text}track: none\nenv_to_module: none\nlearner_connector: [none]\n")
    for place in ("run.keep_best", "environment.action_mask_key", "resources.ray_address"):
        assert found[place] is None
    for place in ("run.track", "env_runners.env_to_module_connector", "learners.learner_connector"):
        assert found[place] == []


def test_one_piece_and_trackers_in_a_file_need_no_list(settings):
    found = settings(file="env: CartPole-v1\npreset: false\ntrack: tensorboard, wandb\nenv_to_module: MeanStdFilter\n")
    assert found["run.track"] == ["tensorboard", "wandb"]
    assert found["env_runners.env_to_module_connector"] == ["MeanStdFilter"]


def test_a_section_that_does_not_exist_is_refused(settings):
    with pytest.raises(ConfigError, match="'nowhere'"):
        settings("CartPole-v1", "--set", "nowhere.lr=1")


def test_a_setting_may_be_given_as_text(settings):
    config = PPOConfig()
    for text, value in (("1e6", 10**6), ("none", None), ("64,64", "64,64")):
        place = {"none": "training.minibatch_size"}.get(
            text, "training.num_epochs" if text == "1e6" else "environment.env"
        )
        assert read_setting(place, text, config, "x") == {place: value}
