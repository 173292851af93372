"""What a sub-environment plays depends on its number in the run, and not on the env runner that steps it.

The episodes of several runners have an order, which is that of one runner with all sub-environments.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest

from helpers.envs.failing_envs import FailingEnv
from helpers.envs.gymnasium_envs import Walk
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.random_runs import described, random_config
from helpers.runs.runner_shares import DividedRun, contents, depends_on_others, runner_of
from marl_connectors import EnvError, PPOConfig


def played(config: PPOConfig, shares: list[int], lengths: list[int]) -> list[Any]:
    """All that the episodes of runners with these shares hold, their sub-environments and the times of their ends."""
    run = DividedRun(config, shares)
    found = []
    try:
        for length in lengths:
            episodes = run.sample(steps=length)
            for place, episode in zip(run.places, episodes, strict=True):
                assert place.env_number == int(str(episode.id_).split("-")[0])
                assert episode.is_done == (place.vector_step is not None)
            found.append((run.places, contents(episodes)))
    finally:
        run.close()
    return found


def check_shares(seed: int) -> None:
    rng = np.random.default_rng(seed)
    while True:
        config = random_config(int(rng.integers(2**31)))
        if not depends_on_others(config):
            break
    shares = [int(share) for share in rng.integers(1, 4, size=rng.integers(2, 4))]
    lengths = [int(length) for length in rng.integers(1, 12, size=3)]
    whole = played(config, [sum(shares)], lengths)
    assert {place.env_number for places, _ in whole for place in places} == set(range(sum(shares)))
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
