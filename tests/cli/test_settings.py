"""What a run is made of, before anything is built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_connectors.cli.main import main
from marl_connectors.cli.settings import RunSettings, settings_from_json, training_settings
from marl_connectors.errors import CheckpointError, ConfigError, EnvError, MappingError

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
    assert f"marl-connectors train fake_env --policies independent --steps 100 {' '.join(WORDS)}" in command.out
    run = Path("runs/fake_env-shared-seed0")
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert settings_from_json(config["command"]).wrappers == WRAPPERS
    assert command("train", "--resume", str(run), "--steps", "300", *WORDS) == 2
    assert "'wrappers' cannot be given" in command.err
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
    said = "Action masks: 'action_mask' in the observations of agent_0, agent_1 are honoured."
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
    assert training_settings([("lr", 0.1), ("action_mask_key", "legal")]) == ({"lr": 0.1}, {"action_mask_key": "legal"})
    for off in (None, False):
        assert training_settings([("action_mask_key", off)]) == ({}, {"action_mask_key": None})
    assert training_settings([]) == ({}, {})
