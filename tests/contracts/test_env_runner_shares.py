"""What a sub-environment plays depends on its number in the run, and not on the env runner that steps it."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest

from helpers.envs.failing_envs import FailingEnv
from helpers.envs.gymnasium_envs import Walk
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.random_runs import AddsCount, described, random_config, rows_of
from marl_connectors import EnvError, EnvRunner, MeanStdFilter, PPOConfig
from marl_connectors.algorithms import build


def runner_of(config: PPOConfig, num_envs: int, first_env_number: int) -> EnvRunner:
    """An env runner with some of a run's sub-environments."""
    algo = config.copy().build_algo()
    return build.build_env_runner(
        algo.config,
        algo._setup,
        algo.rl_module,
        algo._env_to_module,
        algo.learner.pipeline,
        seed=algo.seed,
        num_envs=num_envs,
        explore=algo.config.explore,
        rollout_fragment_length=algo.config.rollout_fragment_length,
        first_env_number=first_env_number,
    )


def played(config: PPOConfig, shares: list[int], lengths: list[int]) -> dict[int, list[Any]]:
    """Maps the numbers of sub-environments to all that their episodes hold, when runners have these shares of them."""
    found: dict[int, list[Any]] = {}
    first = 0
    for share in shares:
        runner = runner_of(config, share, first)
        try:
            for length in lengths:
                episodes = runner.sample(num_timesteps=length * share)
                for episode in episodes:
                    number = int(str(episode.id_).split("-")[0])
                    assert first <= number < first + share
                    found.setdefault(number, []).extend(map(without_empty_data, rows_of([episode])))
        finally:
            runner.close()
        first += share
    return found


def without_empty_data(agent: dict[str, Any]) -> dict[str, Any]:
    """An agent's part of an episode. Before its first step, it has empty columns for what others have output."""
    return agent | {"data": agent["data"] if len(agent["rewards"][2]) else None}


def depends_on_others(config: PPOConfig) -> bool:
    """Whether a piece of the config counts the steps of all sub-environments that it sees."""
    pipeline = config.env_to_module_connector
    return pipeline is not None and isinstance(pipeline(), (MeanStdFilter, AddsCount))


def check_shares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    while True:
        config = random_config(int(rng.integers(2**31)))
        if not depends_on_others(config):
            break
    shares = [int(share) for share in rng.integers(1, 4, size=rng.integers(2, 4))]
    lengths = [int(length) for length in rng.integers(1, 12, size=3)]
    whole = played(config, [sum(shares)], lengths)
    assert sorted(whole) == list(range(sum(shares)))
    assert played(config, shares, lengths) == whole, f"seed {seed}, shares {shares}: {described(config)}"


@pytest.mark.parametrize("seed", range(16))
def test_shares_of_a_run_play_what_the_whole_plays(seed):
    check_shares(seed)


@pytest.mark.slow
def test_shares_of_300_random_runs_play_what_the_whole_plays():
    first = secrets.randbits(31)
    for seed in range(first, first + 300):
        check_shares(seed)


def make_walks(num_envs=1):
    import gymnasium

    return gymnasium.vector.SyncVectorEnv([Walk] * num_envs)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(small_config(LifeEnv).env_runners(num_env_workers=2), id="workers"),
        pytest.param(small_config(make_walks).env_runners(gym_env_vectorize_mode="vector_entry_point"), id="VectorEnv"),
    ],
)
def test_shares_in_worker_processes_and_vector_envs_play_what_the_whole_plays(config):
    config.env_runners(num_envs_per_env_runner=2)
    assert played(config, [2, 3], [4, 5]) == played(config, [5], [4, 5])


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_name_the_number_in_the_run(workers):
    config = small_config(FailingEnv).environment(disable_env_checking=True).env_runners(num_env_workers=workers)
    runner = runner_of(config, 2, 5)
    with pytest.raises(EnvError, match=r"sub-environment [56], episode"):
        runner.sample(num_timesteps=400)
