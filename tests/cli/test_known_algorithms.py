"""Each algorithm of ``--algo``: a run of the command line, its resumption, and the settings that it knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marl_connectors.cli.known_algorithms import ALGORITHMS, algorithm_of, config_class, config_with, known_sections
from marl_connectors.cli.main import main
from marl_connectors.cli.run_settings import RunSettings

SMALL = {
    "ppo": ["train_batch_size_per_learner=40", "minibatch_size=20", "num_epochs=1"],
    "dqn": ["train_batch_size_per_learner=8", "num_steps_sampled_before_learning_starts=20"],
}
SMALL["mappo"] = SMALL["ppo"]
SMALL["dqn"] += ["min_sample_timesteps_per_iteration=20"]
SMALL["bc"] = SMALL["marwil"] = ["train_batch_size_per_learner=40", "input_=data"]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_run_of_each_algorithm_is_trained_resumed_and_evaluated(algo, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if "input_=data" in SMALL[algo]:
        assert main(["record", "random", "--env", "marl_envs.match_v0", "--episodes", "8", "--out", "data"]) == 0
    words = ["train", "marl_envs.match_v0", "--algo", algo, "--steps", "80", "--eval-episodes", "1", "--no-video"]
    assert main([*words, *(word for each in SMALL[algo] for word in ("--set", each)), "--out", "run"]) == 0
    assert json.loads(Path("run/config.json").read_text())["command"]["algo"] == algo
    assert main(["train", "--resume", "run", "--steps", "160"]) == 0
    assert main(["evaluate", "run", "--episodes", "1", "--json"]) == 0
    assert f"--algo {algo}" in capsys.readouterr().out or algo == "ppo"


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_defaults_are_settings_of_the_algorithm(algo):
    settings = RunSettings("CartPole-v1", algo=algo, training=dict(ALGORITHMS[algo].training))
    config = settings.make_config()
    assert type(config) is config_class(algo) and algorithm_of(config) == algo
    config.validate()


def test_configs_of_users_have_the_algorithm_that_they_come_from():
    class Own(config_class("dqn")):
        """A config of a user."""

    assert algorithm_of(Own()) == "dqn"


def test_a_setting_is_checked_by_a_config_that_has_it():
    assert {"num_epochs", "clip_param", "epsilon"} <= set(known_sections()["training"])
    assert type(config_with("training", "epsilon")) is config_class("dqn")
    assert type(config_with("training", "lr", "dqn")) is config_class("dqn")
    assert type(config_with("training", "clip_param", "dqn")) is config_class("ppo")
