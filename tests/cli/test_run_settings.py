"""What a run is made of, before anything is built."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from marl_connectors import Algorithm
from marl_connectors.cli.config_files import layer
from marl_connectors.cli.main import main
from marl_connectors.cli.run_settings import RunSettings, settings_from_json
from marl_connectors.errors import CheckpointError, ConfigError, EnvError, MappingError
from marl_connectors.policy_mapping import OneAgainst, SharedPolicy

TAG = "mpe2.simple_tag_v3"


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (RunSettings(TAG, policies="adversary*=red"), MappingError, "'agent_0' matches none of the patterns"),
        (RunSettings(TAG, policies="a*=red,wolf*=x"), MappingError, r"'wolf\*' .*matches no agent.*adversary_0"),
        (RunSettings("CartPole-v1", policies="agent*=x"), MappingError, "The agents are: default_agent"),
        (RunSettings("mpe2.simple_tagg_v3", policies="a*=x"), EnvError, "Did you mean 'simple_tag_v3'"),
        (RunSettings(TAG, {"num_god": 1}, policies="a*=x"), ConfigError, "accept .num_god.. Did you mean .num_good."),
    ],
)
def test_policies_are_checked_against_the_agents_that_there_are(settings, error, message):
    with pytest.raises(error, match=message):
        settings.build_algorithm()


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (RunSettings(TAG), "simple_tag_v3-shared-seed0"),
        (RunSettings(TAG, algo="mappo", policies="independent"), "simple_tag_v3-mappo-independent-seed0"),
        (RunSettings(TAG, policies="adversary*=red team,agent*=green", seed=2), "simple_tag_v3-red_team-green-seed2"),
        (RunSettings("CartPole-v1", mapping="math:sqrt"), "CartPole-v1-sqrt-seed0"),
    ],
)
def test_a_run_is_named_after_env_policies_and_seed(settings, name):
    assert settings.default_folder_name() == name


@pytest.mark.parametrize("data", [None, {}, {"env": 3}])
def test_a_config_without_settings_is_refused(data):
    with pytest.raises(CheckpointError, match="expected its settings"):
        settings_from_json(data)


def test_a_setting_of_another_version_is_named():
    with pytest.raises(CheckpointError, match="unknown setting 'stepps'"):
        settings_from_json({"env": TAG, "stepps": 3})


WRAPPERS = ["gymnasium.wrappers.TimeLimit:9", "gymnasium.wrappers.FrameStackObservation:stack_size=2"]
WORDS = ["--wrap", WRAPPERS[0], "--wrap", WRAPPERS[1]]


def test_wrappers_are_around_the_environment_in_their_order():
    algo = RunSettings("CartPole-v1", wrappers=WRAPPERS, hidden=[4], num_envs=1).build_algorithm()
    env = algo.env_runner.vector_env.sub_envs[0].env.env
    algo.stop()
    assert (type(env).__name__, type(env.env).__name__) == ("FrameStackObservation", "TimeLimit")
    assert env.spec.max_episode_steps == 9


def test_a_refused_wrapper_is_an_error_before_the_environment_is_looked_for():
    with pytest.raises(ConfigError, match="black_death_v3 is not applied"):
        RunSettings("no_such_env", wrappers=["black_death_v3"]).build_algorithm()


def test_train_keeps_its_wrappers(command):
    assert command("train", "fake_env", "--steps", "100", *WORDS) == 0
    assert command.settings.wrappers == WRAPPERS
    run = Path("runs/fake_env-shared-seed0")
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert settings_from_json(config["command"]).wrappers == WRAPPERS
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


def test_the_key_of_masks_can_be_set_as_a_training_setting():
    pairs = [("lr", 0.1), ("action_mask_key", "legal")]
    assert layer({"set": pairs}) == {"set": [("lr", 0.1)], "action_mask_key": "legal"}
    for off in (None, False):
        assert layer({"set": [("action_mask_key", off)]}) == {"action_mask_key": None}
    assert layer({"set": []}) == {}


GAME = RunSettings(
    "marl_envs.last_stone_v0", eval_opponent="random", num_envs=4, num_env_workers=0, hidden=[4], video="none"
)


def by_name(agent_id, episode, **kwargs):
    return f"policy of {agent_id}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "modules"),
    [
        ({}, ["default_policy"]),
        ({"policies": "independent"}, ["player_0", "player_1"]),
        ({"policies": "player_0=a,player_1=b"}, ["a", "b"]),
        ({"mapping": f"{__name__}:by_name"}, ["policy of player_0", "policy of player_1"]),
        ({"mapping": f"{__name__}:by_name", "modules": ["policy of player_0", "policy of player_1", "c"]}, None),
        ({"algo": "mappo", "model": {"use_gru": True, "gru_cell_size": 4}}, ["default_policy"]),
    ],
    ids=str,
)
def test_in_evaluations_one_agent_after_the_other_plays_against_a_random_one(changes, modules):
    settings = dataclasses.replace(GAME, **changes)
    algo = settings.build_algorithm()
    assert sorted(algo.rl_module) == sorted([*(modules or changes["modules"]), "random"])
    returns = algo.evaluate(num_episodes=8)["env_runners"]["module_episode_returns"]
    assert returns["random"]["num_episodes"] == 8
    own = [returns[m]["num_episodes"] for m in algo.rl_module if m not in ("random", "c")]
    assert own == [8] if len(own) == 1 else own == [4, 4]
    trained = algo.train()
    algo.stop()
    assert "random" not in trained["learners"] and "random" not in trained["env_runners"]["module_episode_returns"]


def test_an_opponent_stays_in_checkpoints_and_is_not_imported_from_elsewhere(tmp_path):
    algo = GAME.build_algorithm()
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
    ("settings", "message"),
    [
        (RunSettings("CartPole-v1"), "expected an environment with several agents, but CartPole-v1 has one. Leave it"),
        (RunSettings(TAG, policies="independent"), "the observation spaces of 'adversary_0' and 'agent_0' differ"),
        (dataclasses.replace(GAME, policies="*=random"), "a module is called 'random'"),
    ],
)
def test_an_opponent_needs_other_agents_with_the_same_spaces(settings, message):
    with pytest.raises(ConfigError, match=f"^--eval-opponent: .*({message})"):
        dataclasses.replace(settings, eval_opponent="random").build_algorithm()


@pytest.mark.parametrize("opponent", [None, "random"])
def test_evaluations_draw_actions_where_the_settings_say_so(opponent):
    greedy = dataclasses.replace(GAME, eval_opponent=opponent, eval_explore=False).build_algorithm()
    drawn = dataclasses.replace(GAME, eval_opponent=opponent, eval_explore=True).build_algorithm()
    assert [algo.config.get_evaluation_config().explore for algo in (greedy, drawn)] == [False, True]
    returns = [
        algo.evaluate(num_episodes=16, seed=3)["env_runners"]["module_episode_returns"] for algo in (greedy, drawn)
    ]
    assert returns[1] == greedy.evaluate(num_episodes=16, seed=3, explore=True)["env_runners"]["module_episode_returns"]
    assert returns[0] == drawn.evaluate(num_episodes=16, seed=3, explore=False)["env_runners"]["module_episode_returns"]
    assert ("random" in returns[1]) == (opponent is not None)


def test_a_team_plays_against_the_opponent():
    config = dataclasses.replace(GAME, eval_opponent="random:player_0,player_[1-9]").build_algorithm().config
    assert config.evaluation_config["policy_mapping_fn"].agent_ids == ("player_0", "player_[1-9]")


def test_a_team_without_agents_is_an_error():
    with pytest.raises(ConfigError, match=r"^--eval-opponent: the team 'red' matches no agent.*: player_0, player_1"):
        dataclasses.replace(GAME, eval_opponent="random:player*,red").build_algorithm()


def test_train_evaluate_and_resume_play_against_the_opponent(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["marl_envs.last_stone_v0", "--eval-opponent", "random", "--num-env-workers", "0", "--hidden", "4"]
    words += ["--steps", "40", "--num-envs", "2", "--eval-episodes", "4", "--no-video", "--set", "num_epochs=1"]
    words += ["--set", "train_batch_size_per_learner=40", "--set", "minibatch_size=40"]
    assert main(["train", *words, "--out", "run"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^  default_policy .*\n  random ", said, re.MULTILINE)
    assert json.loads(Path("run/config.json").read_text())["command"]["eval_opponent"] == "random"
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
    kept = json.loads(Path("run/seed1/config.json").read_text())["command"]
    assert kept["eval_opponent"] == "random" and kept["model"] == {"head_fcnet_hiddens": [3]}


def test_settings_of_the_modules_reach_them():
    model = {"use_lstm": True, "lstm_cell_size": 5, "head_fcnet_hiddens": [3]}
    algo = RunSettings("CartPole-v1", num_envs=1, hidden=[4], activation="relu", model=model).build_algorithm()
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
        (["--model", "fcnet_hiddens=[4]", "--hidden", "5"], "--model: 'fcnet_hiddens' is the same as --hidden. Use"),
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
