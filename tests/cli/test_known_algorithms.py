"""Each algorithm of ``--algo``: a run of the command line, its resumption, and the settings that it knows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from helpers.runs.command_runs import config_of
from marl_connectors import AlgorithmConfig, FlattenObservations, MixedConfig
from marl_connectors.cli.known_algorithms import ALGORITHMS, algorithm_of, config_class, known_sections
from marl_connectors.cli.main import main
from marl_connectors.errors import ConfigError

SMALL = {
    "ppo": ["train_batch_size_per_learner=40", "minibatch_size=20", "num_epochs=1"],
    "dqn": ["train_batch_size_per_learner=8", "num_steps_sampled_before_learning_starts=20"],
}
SMALL["mappo"] = SMALL["ppo"]
SMALL["dqn"] += ["min_sample_timesteps_per_iteration=20"]
SMALL |= dict.fromkeys(("vdn", "qmix", "sac"), SMALL["dqn"])
SMALL["maddpg"] = SMALL["matd3"] = [*SMALL["dqn"], "rollout_fragment_length=1"]
NO_BUFFER = {"ppo", "mappo", "bc", "marwil"}
SMALL["bc"] = SMALL["marwil"] = ["train_batch_size_per_learner=40", "input_=data"]


@pytest.mark.slow
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_run_of_each_algorithm_is_trained_resumed_and_evaluated(algo, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if "input_=data" in SMALL[algo]:
        assert main(["record", "random", "--env", "marl_envs.match_v0", "--episodes", "8", "--out", "data"]) == 0
    words = ["train", "marl_envs.match_v0", "--algo", algo, "--steps", "80", "--eval-episodes", "1", "--no-video"]
    assert main([*words, *(word for each in SMALL[algo] for word in ("--set", each)), "--out", "run"]) == 0
    assert json.loads(Path("run/config.json").read_text())["settings"]["run"]["algo"] == algo
    has_buffer = "replay_buffer" in json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert ("The replay buffer: " in capsys.readouterr().out) == has_buffer == (algo not in NO_BUFFER)
    assert main(["train", "--resume", "run"]) == 2
    assert "agent steps of 80 done" in capsys.readouterr().err
    assert main(["train", "--resume", "run", "--steps", "160"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--episodes", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["num_episodes"] == 1


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_defaults_are_settings_of_the_algorithm(algo):
    config = config_of("CartPole-v1", "--no-preset", "--algo", algo)
    assert {name: getattr(config, name) for name in ALGORITHMS[algo].training} == ALGORITHMS[algo].training
    assert type(config) is config_class(algo) and algorithm_of(config) == algo
    config.validate()


@pytest.mark.parametrize("algo", ["ppo", "sac", "maddpg"])
def test_all_learning_rates_of_an_algorithm_are_annealed(algo):
    training = ALGORITHMS[algo].training
    config = config_of("CartPole-v1", "--no-preset", "--algo", algo, "--steps", "70", "--anneal-lr")
    rates = {name: rate for name, rate in training.items() if name == "lr" or name.endswith("_lr")}
    assert rates
    for name, rate in rates.items():
        assert getattr(config, name) == [[0, rate], [70, 0.0]]
    config.validate()


def test_configs_of_users_have_the_algorithm_that_they_come_from():
    class Own(config_class("dqn")):
        """A config of a user."""

    assert algorithm_of(Own()) == "dqn"
    assert algorithm_of(MixedConfig()) == "mixed"
    assert algorithm_of(type("TreeSearchConfig", (AlgorithmConfig,), {})()) == "treesearch"
    assert algorithm_of(type("Config", (AlgorithmConfig,), {})()) == "Config"


def test_the_settings_of_all_algorithms_are_known():
    assert {"num_epochs", "clip_param", "epsilon"} <= set(known_sections()["training"])


@pytest.mark.parametrize(
    ("algo", "env"),
    [
        *((algo, "CartPole-v1") for algo in ("mappo", "vdn", "qmix", "maddpg", "matd3")),
        *((algo, "pettingzoo.classic.tictactoe_v3") for algo in ("vdn", "maddpg")),
    ],
)
def test_an_algorithm_for_other_environments_advises_one_that_runs_by_config_and_option(algo, env):
    def build(algo):
        config = config_class(algo)().environment(env, disable_env_checking=True).env_runners(num_env_workers=0)
        config.env_runners(env_to_module_connector=lambda: FlattenObservations()).build_algo().stop()

    with pytest.raises(ConfigError) as caught:
        build(algo)
    other, option = re.findall(r"(\w+)Config \(--algo (\w+) on the command line\)", str(caught.value))[0]
    assert option == other.lower()
    build(option)
