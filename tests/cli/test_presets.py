"""The settings of a new run: what the zoo sets, what a user's option replaces, and what is said about it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import marl_connectors.zoo
from helpers.runs.fake_ray import use_fake_ray
from marl_connectors import AgentIdEncoding, MeanStdFilter, NormalizeRewards
from marl_connectors.callbacks import Success
from marl_connectors.cli import layers, presets
from marl_connectors.cli.known_algorithms import ALGORITHMS
from marl_connectors.cli.layers import defaults, resolved, user_tree
from marl_connectors.cli.made_config import make_config, new_config
from marl_connectors.cli.main import main
from marl_connectors.cli.parser import parse, words_of
from marl_connectors.cli.presets import preset_sentence
from marl_connectors.cli.tree import flat
from marl_connectors.errors import ConfigError
from marl_connectors.zoo import Expected, ZooTask

TASK = ZooTask(
    name="CartPole-v1",
    summary="A task of these tests.",
    settings={
        "env": "CartPole-v1",
        "steps": 3000,
        "num_envs": 4,
        "algo": "mappo",
        "policies": "independent",
        "hidden": [8],
        "activation": "relu",
        "env_config": {"a": 1, "b": 2},
        "model": {"use_lstm": True, "lstm_cell_size": 8},
        "anneal_lr": True,
        "learner_connector": ["ScaleRewards:scale=0.5"],
        "training": {"lr": 0.01, "train_batch_size_per_learner": 900, "gamma": 0.9},
    },
    expected=Expected(mean_return=-9.1, std=0.2, num_seeds=3, minutes=15, random_return=-26.6, success=0.9),
    success=Success("poles balanced", lambda env, episode: 1.0),
)


MODEL = "rl_module.model_config"
SHARED_ELU = {f"{MODEL}.vf_share_layers": True, f"{MODEL}.fcnet_activation": "elu"}
PIECES = "env_runners.env_to_module_connector"
OWN = {
    "environment.env": "CartPole-v1",
    "environment.env_config.a": 1,
    "environment.env_config.b": 2,
    "run.steps": 3000,
    "run.num_envs": 4,
    "run.algo": "mappo",
    "run.anneal_lr": True,
    "run.preset": "CartPole-v1",
    "multi_agent.policy_mapping_fn": "independent",
    f"{MODEL}.fcnet_hiddens": [8],
    f"{MODEL}.fcnet_activation": "relu",
    f"{MODEL}.use_lstm": True,
    f"{MODEL}.lstm_cell_size": 8,
    "learners.learner_connector": ["ScaleRewards:scale=0.5"],
    "training.lr": 0.01,
    "training.train_batch_size_per_learner": 900,
    "training.gamma": 0.9,
}
"""What ``TASK`` sets."""


def no_policy(agent_id, episode, **kwargs):
    return "a"


def set_tasks(monkeypatch, *found):
    """Replaces the tasks of the zoo."""
    monkeypatch.setattr(presets, "tasks", lambda: found)
    monkeypatch.setattr(layers, "tasks", lambda: found)
    monkeypatch.setattr(marl_connectors.zoo, "tasks", lambda: found)


@pytest.fixture
def task(monkeypatch):
    """The zoo has no task but ``TASK``."""
    set_tasks(monkeypatch, TASK)


def settings(*words):
    return resolved(user_tree(words_of(parse(["train", *words]))))


@pytest.mark.usefixtures("task")
def test_a_known_environment_gets_the_settings_of_the_zoo():
    assert settings("CartPole-v1") == {**defaults("mappo"), **OWN}


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize("words", [["CartPole-v1", "--no-preset"], ["Acrobot-v1"]])
def test_without_a_preset_there_are_the_defaults(words):
    found = settings(*words)
    assert found == {**defaults("ppo"), "environment.env": words[0]}
    assert {name: found[f"training.{name}"] for name in ALGORITHMS["ppo"].training} == ALGORITHMS["ppo"].training
    assert preset_sentence(found) == ""


@pytest.mark.usefixtures("task")
@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--steps", "7"], {"run.steps": 7}),
        (["--algo", "ppo"], {"run.algo": "ppo"}),
        (["--policies", "shared"], {"multi_agent.policy_mapping_fn": "shared"}),
        (["--mapping", f"{__name__}:no_policy"], {"multi_agent.policy_mapping_fn": f"{__name__}:no_policy"}),
        (
            ["--env-config", "b=3", "--env-config", "c=4"],
            {"environment.env_config.b": 3, "environment.env_config.c": 4},
        ),
        (["--hidden", "64,64"], {f"{MODEL}.fcnet_hiddens": [64, 64]}),
        (["--activation", "tanh"], {f"{MODEL}.fcnet_activation": "tanh"}),
        (["--model", "lstm_cell_size=16"], {f"{MODEL}.lstm_cell_size": 16}),
        (["--model", "fcnet_hiddens=[16]"], {f"{MODEL}.fcnet_hiddens": [16]}),
        (["--model", "vf_share_layers=true", "--model", "fcnet_activation=elu"], SHARED_ELU),
        (["--eval-opponent", "random"], {"run.eval_opponent": "random"}),
        (["--env-to-module", "MeanStdFilter", "AgentIdEncoding"], {PIECES: ["MeanStdFilter", "AgentIdEncoding"]}),
        (
            ["--env-to-module", "MeanStdFilter", "--env-to-module", "AgentIdEncoding"],
            {PIECES: ["MeanStdFilter", "AgentIdEncoding"]},
        ),
        (["--learner-connector", "none"], {"learners.learner_connector": []}),
        (["--no-anneal-lr"], {"run.anneal_lr": False}),
        (["--wrap", "frame_skip_v0:4"], {"environment.wrappers": ["frame_skip_v0:4"]}),
        (["--seed", "3", "--num-envs", "8"], {"debugging.seed": 3, "run.num_envs": 8}),
        (["--set", "action_mask_key=legal"], {"environment.action_mask_key": "legal"}),
    ],
    ids=str,
)
def test_an_option_replaces_its_value_alone(words, changed):
    assert settings("CartPole-v1", *words) == {**settings("CartPole-v1"), **changed}


@pytest.mark.usefixtures("task")
def test_set_replaces_single_training_settings():
    found, preset = settings("CartPole-v1", "--set", "gamma=0.5", "--set", "clip_param=0.1"), settings("CartPole-v1")
    assert found == {**preset, "training.gamma": 0.5, "training.clip_param": 0.1}


@pytest.mark.usefixtures("task")
def test_learners_share_the_batch_of_the_preset():
    assert settings("CartPole-v1", "--num-learners", "2")["training.train_batch_size_per_learner"] == 450
    words = ["--num-learners", "2", "--set", "train_batch_size_per_learner=700"]
    assert settings("CartPole-v1", *words)["training.train_batch_size_per_learner"] == 700


@pytest.mark.usefixtures("task")
def test_a_schedule_of_the_user_replaces_annealing():
    schedule = [[0, 0.1], [50, 0.2]]
    found = settings("CartPole-v1", "--set", f"lr={schedule}")
    assert found["training.lr"] == schedule and "run.anneal_lr" not in found
    with pytest.raises(ConfigError, match=r"(?s)--anneal-lr.*\blr\b.*\(--no-anneal-lr\)"):
        new_config({**found, "run.anneal_lr": True})


@pytest.mark.usefixtures("task")
def test_a_line_says_what_to_expect():
    assert preset_sentence(settings("CartPole-v1", "--seed", "3")) == (
        "Preset of the zoo: CartPole-v1, expected return -9.1 ± 0.2, success 90 % (poles balanced) with most likely "
        "actions after 3,000 agent steps, about 15 min; --no-preset leaves it out."
    )


@pytest.mark.usefixtures("task")
def test_a_line_says_which_options_change_the_preset():
    words = [
        "--policies",
        "shared",
        "--steps",
        "5",
        "--env-config",
        "a=2",
        "--set",
        "lr=1",
        "--learner-connector",
        "none",
    ]
    said = preset_sentence(settings("CartPole-v1", *words))
    assert said.endswith(
        "Changed by --steps, --policies, --set, --env-config, --learner-connector, so another return is to be expected."
    )


def test_train_says_and_keeps_its_preset_and_resume_does_not_look_at_the_zoo(command, monkeypatch):
    assert command("train", "CartPole-v1", "--steps", "200", "--out", "run", "--num-envs", "2") == 0
    assert command.out.startswith("Preset of the zoo: CartPole-v1, expected return 500.0 ± 0.0")
    assert command.tree["run.num_envs"] == 2 and command.tree["training.lr"] == 1e-3
    kept = flat(json.loads(Path("run/config.json").read_text())["settings"], "run")
    assert {**kept, "run.out": "run"} == command.tree and kept["run.preset"] == "CartPole-v1"
    changed = dataclasses.replace(TASK, settings={"env": "CartPole-v1", "num_envs": 64})
    monkeypatch.setattr(layers, "find_task", lambda env, algo=None: changed)
    assert command("train", "--resume", "run", "--steps", "400") == 0
    assert "Preset" not in command.out
    again = flat(json.loads(Path("run/config.json").read_text())["settings"], "run")
    assert again == {**kept, "run.steps": 400}


def test_train_without_a_preset_says_nothing_of_one(command):
    assert command("train", "CartPole-v1", "--no-preset", "--steps", "200", "--set", "num_epochs=2") == 0
    assert "Preset" not in command.out and command.tree["run.preset"] == ""


TINY = ["--num-envs", "2", "--num-env-workers", "0", "--hidden", "4", "--eval-episodes", "2", "--no-video"]
TINY += ["--set", "train_batch_size_per_learner=40", "--set", "minibatch_size=20", "--set", "num_epochs=1"]


def rates(run):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["learners"]["default_policy"]["learning_rate"] for row in found]


def test_the_learning_rate_falls_to_zero_over_the_steps_also_of_a_resumed_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["train", "CartPole-v1", "--no-preset", "--anneal-lr", "--set", "lr=0.8", "--steps", "80", *TINY]
    assert main([*words, "--out", "run"]) == 0
    assert rates(Path("run")) == pytest.approx([0.4, 0.0])
    assert main(["train", "--resume", "run", "--steps", "160"]) == 0
    assert "lr is [[0, 0.8], [160, 0.0]] from now on." in capsys.readouterr().out
    assert rates(Path("run")) == pytest.approx([0.4, 0.0, 0.2, 0.0])
    assert main(["train", "--resume", "run", "--steps", "200", "--set", "lr=0.5"]) == 0
    assert rates(Path("run"))[4:] == pytest.approx([0.0])
    capsys.readouterr()
    assert main(["train", "--resume", "run", "--steps", "240", "--set", "lr=[[0, 0.25], [240, 0.25]]"]) == 0
    assert rates(Path("run"))[5:] == pytest.approx([0.25])


def test_pieces_and_success_work_with_remote_env_runners(monkeypatch):
    pytest.importorskip("mpe2")
    use_fake_ray(monkeypatch)
    words = ["simple_spread_v3", "--num-env-runners", "2", "--env-to-module", "MeanStdFilter", "AgentIdEncoding"]
    words += ["--learner-connector", "NormalizeRewards", "--set", "gamma=0.9", *TINY]
    algo = make_config(settings(*words, "--set", "train_batch_size_per_learner=150")).build_algo()
    result = algo.train()
    pieces = algo.env_runner_group.foreach_env_runner(lambda runner: [type(each) for each in runner.env_to_module])
    algo.stop()
    assert len(pieces) == 2
    assert all({MeanStdFilter, AgentIdEncoding} <= set(each) for each in pieces)
    assert [piece.gamma for piece in algo.learner.pipeline if isinstance(piece, NormalizeRewards)] == [0.9]
    assert 0 <= result["env_runners"]["success"] <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env-to-module", "MeanStdFiltr"], "error: --env-to-module: there is no piece 'MeanStdFiltr'. Did you mean"),
        (["--learner-connector", "ScaleRewards:scale=x"], "error: --learner-connector: 'ScaleRewards:scale=x'"),
        (["--activation", "tanhh"], "error: --activation: expected 'tanh'"),
        (["--algo", "iql"], "got 'iql'. Independent Q-learning is algo 'dqn' with policies 'independent'."),
        (["--algo", "dqn", "--set", "adam_epsilon=1e-5"], "'adam_epsilon'. Adam's epsilon is 1e-8. A Learner"),
    ],
)
def test_errors_name_the_option(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_success_is_shown_in_training_at_its_end_and_in_an_evaluation(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", "--steps", "160", *TINY, "--out", "run"]) == 0
    said = capsys.readouterr().out
    assert "success: 0 %" in said
    assert "0 % at start, 0 % now (0 % with most likely actions), 0 % in random play." in said
    assert main(["evaluate", "run", "--episodes", "2"]) == 0
    assert "Success (poles balanced to the end): 0 %, in random play 0 %." in capsys.readouterr().out


@pytest.mark.usefixtures("task")
def test_a_line_has_no_deviation_of_one_seed():
    one = dataclasses.replace(TASK, expected=dataclasses.replace(TASK.expected, std=None, num_seeds=1))
    assert presets.expectation(one).startswith("expected return -9.1, success")


def test_a_line_says_why_success_is_not_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", "--steps", "40", *TINY, "--num-env-workers", "1"]) == 0
    said = capsys.readouterr().out
    assert "Success (poles balanced to the end) is not measured" in said and "use --num-env-workers 0" in said
    assert "success: " not in said and "% at start" not in said


VARIANT = dataclasses.replace(
    TASK,
    name="CartPole-v1/dqn",
    settings={"env": "CartPole-v1", "algo": "dqn", "steps": 50, "training": {"lr": 0.02, "n_step": 2}},
)


def test_another_algorithm_has_settings_of_its_own(monkeypatch):
    set_tasks(monkeypatch, TASK, VARIANT)
    found = settings("CartPole-v1", "--algo", "dqn", "--set", "n_step=4")
    assert (found["run.preset"], found["run.algo"], found["run.steps"]) == ("CartPole-v1/dqn", "dqn", 50)
    own = {**defaults("dqn"), "environment.env": "CartPole-v1", "run.steps": 50, "run.preset": "CartPole-v1/dqn"}
    assert found == {**own, "training.lr": 0.02, "training.n_step": 4}
    assert preset_sentence(found).startswith("Preset of the zoo: CartPole-v1/dqn, expected return -9.1")
    assert preset_sentence(found).endswith("Changed by --set, so another return is to be expected.")
    assert "training.num_epochs" not in found and "training.num_epochs" in settings("CartPole-v1")


def test_the_name_of_a_task_for_another_algorithm_stands_for_both(monkeypatch):
    set_tasks(monkeypatch, TASK, VARIANT)
    assert settings("CartPole-v1/dqn", "--seed", "3") == settings("CartPole-v1", "--algo", "dqn", "--seed", "3")


def test_an_algorithm_without_settings_in_the_zoo_has_its_defaults(monkeypatch):
    set_tasks(monkeypatch, TASK)
    found = settings("CartPole-v1", "--algo", "dqn", "--steps", "60")
    assert found == {**defaults("dqn"), "environment.env": "CartPole-v1", "run.steps": 60}


def test_ppo_has_the_settings_that_were_tuned_for_mappo(monkeypatch):
    set_tasks(monkeypatch, TASK, VARIANT)
    found = settings("CartPole-v1", "--algo", "ppo")
    assert found == {**settings("CartPole-v1"), "run.algo": "ppo"}
