"""Configs that are made from trees of settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from marl_connectors import Algorithm, PPOConfig
from marl_connectors.cli.layers import resolved, user_tree
from marl_connectors.cli.made_config import configured, make_config, new_config
from marl_connectors.cli.main import main
from marl_connectors.cli.parser import parse, words_of
from marl_connectors.cli.restored_runs import tree_of_run
from marl_connectors.cli.training_run import folder_name
from marl_connectors.errors import CheckpointError, ConfigError, EnvError, MappingError
from marl_connectors.policy_mapping import OneAgainst, SharedPolicy

TAG = "mpe2.simple_tag_v3"


def tree_of(*words):
    return resolved(user_tree(words_of(parse(["train", *words, "--no-preset"]))))


def build(*words):
    return make_config(tree_of(*words)).build_algo()


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ([TAG, "--policies", "adversary*=red"], MappingError, "'agent_0'"),
        ([TAG, "--policies", "a*=red,wolf*=x"], MappingError, r"(?s)'wolf\*'.*adversary_0"),
        (["CartPole-v1", "--policies", "agent*=x"], MappingError, "default_agent"),
        (["mpe2.simple_tagg_v3", "--policies", "a*=x"], EnvError, "'simple_tag_v3'"),
        (
            [TAG, "--env-config", "num_god=1", "--policies", "a*=x"],
            ConfigError,
            r"(?s).num_god.*.num_good",
        ),
    ],
)
def test_policies_are_checked_against_the_agents_that_there_are(words, error, message):
    with pytest.raises(error, match=message):
        build(*words)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([TAG], "simple_tag_v3-shared-seed0"),
        ([TAG, "--algo", "mappo", "--policies", "independent"], "simple_tag_v3-mappo-independent-seed0"),
        ([TAG, "--policies", "adversary*=red team,agent*=green", "--seed", "2"], "simple_tag_v3-red_team-green-seed2"),
        (["CartPole-v1", "--mapping", f"{__name__}:by_name"], "CartPole-v1-by_name-seed0"),
    ],
)
def test_a_run_is_named_after_env_policies_and_seed(words, name):
    assert folder_name(new_config(tree_of(*words))) == name


@pytest.mark.parametrize("data", [3, [], {"training": 3}, {"run": {"algo": 3}}, {"run": {"algo": "ppo", "steps": "x"}}])
def test_a_config_json_with_other_settings_is_refused(data):
    with pytest.raises(CheckpointError, match=r"run/config\.json"):
        tree_of_run(Path("run"), {"settings": data})


WRAPPERS = ["gymnasium.wrappers.TimeLimit:9", "gymnasium.wrappers.FrameStackObservation:stack_size=2"]
WORDS = ["--wrap", WRAPPERS[0], "--wrap", WRAPPERS[1]]


def test_wrappers_are_around_the_environment_in_their_order():
    algo = build("CartPole-v1", *WORDS, "--hidden", "4", "--num-envs", "1")
    env = algo.env_runner.vector_env.sub_envs[0].env.env
    algo.stop()
    assert (type(env).__name__, type(env.env).__name__) == ("FrameStackObservation", "TimeLimit")
    assert env.spec.max_episode_steps == 9


def test_a_refused_wrapper_is_an_error_before_the_environment_is_looked_for():
    with pytest.raises(ConfigError, match="black_death_v3"):
        build("no_such_env", "--wrap", "black_death_v3")


def test_train_keeps_its_wrappers(command):
    assert command("train", "fake_env", "--steps", "100", *WORDS) == 0
    assert command.tree["environment.wrappers"] == WRAPPERS
    run = Path("runs/fake_env-shared-seed0")
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert config["settings"]["environment"]["wrappers"] == WRAPPERS
    assert command("train", "--resume", str(run), "--steps", "300", *WORDS) == 2
    assert "--wrap cannot be changed" in command.err
    assert command("train", "--resume", str(run), "--steps", "300") == 0


def test_explain_shows_the_wrapped_observations(capsys):
    assert main(["explain", "CartPole-v1", "--num-envs", "1", "--hidden", "4", *WORDS]) == 0
    assert "+obs [1, 2, 4] float32" in capsys.readouterr().out


def test_check_checks_the_wrapped_environment(capsys):
    assert main(["check", "CartPole-v1", "--episodes", "1", "--wrap", WRAPPERS[0]]) == 0
    out = capsys.readouterr().out
    assert out.startswith("CartPole-v1: single agent")
    assert "ends after 9 steps" in out
    assert main(["check", "CartPole-v1", "--wrap", "concat_vec_envs_v1:2"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "num_envs_per_env_runner" in error


def test_the_first_lines_of_a_run_say_what_becomes_of_masks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["marl_envs.masked_v0", "--steps", "10", "--num-envs", "1", "--hidden", "4", "--eval-episodes", "1"]
    words += ["--set", "train_batch_size_per_learner=10", "--set", "num_epochs=1", "--no-video", "--env-config"]
    said = "Action masks: 'action_mask' in the observations of agent_0, agent_1 are applied."
    assert main(["train", *words, "illegal=raise", "--out", "run"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == said
    assert main(["train", "--resume", "run", "--steps", "30"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == said
    assert main(["evaluate", "run", "--episodes", "2", "--explore"]) == 0
    capsys.readouterr()
    assert main(["train", *words, "illegal=lose", "--out", "without", "--action-mask-key", "none"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("Action masks: ") and "are ignored" in first


@pytest.mark.parametrize("off", ["none", "null", "false"])
def test_the_key_of_masks_can_be_set_as_any_setting(off):
    assert new_config(tree_of("CartPole-v1", "--set", f"action_mask_key={off}")).action_mask_key is None
    assert new_config(tree_of("CartPole-v1", "--set", "action_mask_key=legal")).action_mask_key == "legal"


NAMED = ["policy of player_0", "policy of player_1", "c"]
GAME = ["marl_envs.last_stone_v0", "--num-envs", "4", "--num-env-workers", "0", "--hidden", "4", "--no-video"]
AGAINST = [*GAME, "--eval-opponent", "random"]


def by_name(agent_id, episode, **kwargs):
    return f"policy of {agent_id}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ([], ["default_policy"]),
        (["--policies", "independent"], ["player_0", "player_1"]),
        (["--policies", "player_0=a,player_1=b"], ["a", "b"]),
        (["--mapping", f"{__name__}:by_name"], ["policy of player_0", "policy of player_1"]),
        (["--mapping", f"{__name__}:by_name", "--modules", ",".join(NAMED)], NAMED),
        (["--algo", "mappo", "--model", "use_gru=true", "--model", "gru_cell_size=4"], ["default_policy"]),
    ],
    ids=str,
)
def test_in_evaluations_one_agent_after_the_other_plays_against_a_random_one(words, modules):
    algo = build(*AGAINST, *words)
    assert sorted(algo.rl_module) == sorted([*modules, "random"])
    results = algo.evaluate(num_episodes=8)["env_runners"]
    assert results["module_episode_returns"]["random"]["num_episodes"] == 8
    own = [results["module_episode_returns"][m]["num_episodes"] for m in algo.rl_module if m not in ("random", "c")]
    assert own == [8] if len(own) == 1 else own == [4, 4]
    trained = algo.train()
    algo.stop()
    assert "random" not in trained["learners"] and "random" not in trained["env_runners"]["module_episode_returns"]


def test_an_opponent_stays_in_checkpoints_and_is_not_imported_from_elsewhere(tmp_path):
    algo = build(*AGAINST)
    expected = algo.evaluate(num_episodes=8, seed=5)["env_runners"]["module_episode_returns"]
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    restored = Algorithm.from_checkpoint(path, trusted=False, new_episodes=True)
    assert restored.config.evaluation_config == {
        "policy_mapping_fn": OneAgainst(SharedPolicy(), ("player_0", "player_1"), "random")
    }
    assert restored.evaluate(num_episodes=8, seed=5)["env_runners"]["module_episode_returns"] == expected
    restored.stop()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["CartPole-v1"], "CartPole-v1"),
        ([TAG, "--policies", "independent"], r"'adversary_0'.*'agent_0'"),
        ([*GAME, "--policies", "*=random"], "'random'"),
    ],
)
def test_an_opponent_needs_other_agents_with_the_same_spaces(words, message):
    with pytest.raises(ConfigError, match=f"^--eval-opponent: .*({message})"):
        build(*words, "--eval-opponent", "random")


@pytest.mark.parametrize("opponent", ["none", "random"])
def test_evaluations_draw_actions_where_the_settings_say_so(opponent):
    greedy = build(*GAME, "--eval-opponent", opponent, "--no-eval-explore")
    drawn = build(*GAME, "--eval-opponent", opponent, "--eval-explore")
    assert [algo.config.get_evaluation_config().explore for algo in (greedy, drawn)] == [False, True]
    returns = [
        algo.evaluate(num_episodes=16, seed=3)["env_runners"]["module_episode_returns"] for algo in (greedy, drawn)
    ]
    assert returns[1] == greedy.evaluate(num_episodes=16, seed=3, explore=True)["env_runners"]["module_episode_returns"]
    assert returns[0] == drawn.evaluate(num_episodes=16, seed=3, explore=False)["env_runners"]["module_episode_returns"]
    assert ("random" in returns[1]) == (opponent == "random")


def test_a_team_plays_against_the_opponent():
    config = build(*GAME, "--eval-opponent", "random:player_0,player_[1-9]").config
    assert config.evaluation_config["policy_mapping_fn"].agent_ids == ("player_0", "player_[1-9]")


def test_a_team_without_agents_is_an_error():
    with pytest.raises(ConfigError, match=r"(?s)^--eval-opponent.*'red'.*player_0.*player_1"):
        build(*GAME, "--eval-opponent", "random:player*,red")


def test_train_evaluate_and_resume_play_against_the_opponent(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["marl_envs.last_stone_v0", "--eval-opponent", "random", "--num-env-workers", "0", "--hidden", "4"]
    words += ["--steps", "40", "--num-envs", "2", "--eval-episodes", "4", "--no-video", "--set", "num_epochs=1"]
    words += ["--set", "train_batch_size_per_learner=40", "--set", "minibatch_size=40"]
    assert main(["train", *words, "--out", "run"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^  default_policy .*\n  random ", said, re.MULTILINE)
    assert json.loads(Path("run/config.json").read_text())["settings"]["run"]["eval_opponent"] == "random"
    assert main(["evaluate", "run", "--episodes", "4"]) == 0
    assert re.search(r"^  random ", capsys.readouterr().out, re.MULTILINE)
    assert main(["train", "--resume", "run", "--steps", "80"]) == 0
    assert re.search(r"^  random ", capsys.readouterr().out, re.MULTILINE)
    assert main(["train", "--resume", "run", "--steps", "120", "--eval-opponent", "none"]) == 2
    assert "--eval-opponent cannot be changed" in capsys.readouterr().err


def test_several_seeds_play_against_the_opponent(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["marl_envs.last_stone_v0", "--eval-opponent", "random", "--num-env-workers", "0", "--hidden", "4"]
    words += ["--steps", "40", "--num-envs", "2", "--eval-episodes", "4", "--no-video", "--set", "num_epochs=1"]
    words += ["--set", "train_batch_size_per_learner=40", "--set", "minibatch_size=40"]
    assert main(["train", *words, "--model", "head_fcnet_hiddens=[3]", "--seeds", "0", "--out", "run"]) == 0
    assert main(["train", "--resume", "run", "--seeds", "0-1"]) == 0
    assert re.search(r"seed +default_policy +random", capsys.readouterr().out)
    kept = json.loads(Path("run/seed1/config.json").read_text())["settings"]
    assert kept["run"]["eval_opponent"] == "random" and kept["rl_module"]["model_config"]["head_fcnet_hiddens"] == [3]


def test_settings_of_the_modules_reach_them():
    model = ["use_lstm=true", "lstm_cell_size=5", "head_fcnet_hiddens=[3]"]
    words = ["--num-envs", "1", "--hidden", "4", "--activation", "relu"]
    algo = build("CartPole-v1", *words, *(word for each in model for word in ("--model", each)))
    config = algo.get_module().model_config
    sizes = {name: value.shape for name, value in algo.get_module().get_initial_state()["actor"].items()}
    algo.stop()
    assert (config.fcnet_hiddens, config.fcnet_activation, config.head_fcnet_hiddens) == ([4], "relu", [3])
    assert set(sizes.values()) == {(5,)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "use_lstmm=true"], "--model: the default modules have no setting 'use_lstmm'. Did you mean 'use_"),
        (["--model", "lstm_cell_size=big"], "lstm_cell_size"),
        (["--model", "use_lstm=true", "--model", "use_gru=true"], "use_lstm and use_gru are both True"),
        (
            ["--model", "fcnet_hiddens=[4]", "--hidden", "5"],
            "--hidden: it is the same setting as --model fcnet_hiddens. Use",
        ),
        (["--model", "use_lstm"], "expected KEY=VALUE"),
    ],
)
def test_errors_in_settings_of_the_modules_name_them(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "CartPole-v1", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_explain_accepts_settings_of_the_modules(capsys):
    words = ["marl_envs.null_v0", "--num-envs", "1", "--model", "use_lstm=true", "--model", "lstm_cell_size=3"]
    assert main(["explain", *words]) == 0
    assert "state_in" in capsys.readouterr().out
    assert main(["explain", *words, "--model", "cell=3"]) == 2
    assert "--model: the default modules have no setting 'cell'" in capsys.readouterr().err


def test_without_videos_there_are_none_during_training_either():
    config = PPOConfig().environment("CartPole-v1").run(video="gif", video_every=3)
    assert (configured(config.copy(), {"run.video": "none"}).video_every, config.video_every) == (0, 3)
    assert configured(config, {"run.video": "mp4"}).video_every == 3
