"""What a sub-environment plays depends on its number in the run, and not on the env runner that steps it."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.envs.echo_games import on_items as as_items
from helpers.envs.failing_envs import FailingEnv
from helpers.envs.gymnasium_envs import Walk
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.random_runs import AddsCount, described, plain, random_config, rows_of
from marl_connectors import ConnectorV2, EnvError, EnvRunner, FlattenObservations, MeanStdFilter, PPOConfig
from marl_connectors.algorithms import build
from marl_connectors.connectors import running_stats


def runner_of(config: PPOConfig, num_envs: int, first_env_number: int, is_alone: bool = True) -> EnvRunner:
    """An env runner with some of a run's sub-environments. One that is not alone leaves merging to ``played``."""
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
        merges_connector_states=is_alone,
    )


def played(
    config: PPOConfig, shares: list[int], lengths: list[int], episodes: bool = False, explore: tuple = (None,)
) -> tuple[dict[int, list[Any]], Any]:
    """What runners with these shares of the sub-environments play and learn.

    Args:
        config: The configuration.
        shares: The number of sub-environments of each runner.
        lengths: How many steps, or episodes, of each sub-environment each sample has.
        episodes: Whether samples consist of whole episodes.
        explore: Whether the samples explore, in turn.

    Returns:
        The numbers of sub-environments to all that their episodes hold, and the states of the env-to-module pieces.
    """
    found: dict[int, list[Any]] = {}
    firsts = [sum(shares[:i]) for i in range(len(shares))]
    runners = [runner_of(config, n, first, len(shares) == 1) for n, first in zip(shares, firsts, strict=True)]
    try:
        for i, length in enumerate(lengths):
            for runner, share, first in zip(runners, shares, firsts, strict=True):
                size = {"num_episodes" if episodes else "num_timesteps": length * share}
                for episode in runner.sample(**size, explore=explore[i % len(explore)]):
                    number = int(str(episode.id_).split("-")[0])
                    assert first <= number < first + share
                    found.setdefault(number, []).extend(map(without_empty_data, rows_of([episode])))
            if len(runners) > 1:
                states = runners[0].merge_connector_states([runner.get_state() for runner in runners])
                for runner in runners:
                    runner.set_connector_states(copy.deepcopy(states))
        return found, plain(runners[-1].env_to_module.get_state())
    finally:
        for runner in runners:
            runner.close()


def without_empty_data(agent: dict[str, Any]) -> dict[str, Any]:
    """An agent's part of an episode. Before its first step, it has empty columns for what others have output."""
    return agent | {"data": agent["data"] if len(agent["rewards"][2]) else None}


def check_shares(seed: int, change: Callable[[PPOConfig], Any] = lambda config: None) -> None:
    rng = np.random.default_rng(seed)
    while True:
        config = random_config(int(rng.integers(2**31)))
        change(config)
        pieces = config.env_to_module_connector
        if pieces is None or not isinstance(pieces(), AddsCount):  # it counts calls, which are of all sub-environments
            break
    shares = [int(share) for share in rng.integers(1, 4, size=rng.integers(2, 4))]
    lengths = [int(length) for length in rng.integers(1, 12, size=3)]
    how = {"explore": [(None,), (True, True, False)][rng.integers(2)], "episodes": bool(rng.random() < 0.3)}
    if how["episodes"]:
        lengths = [1 + length % 3 for length in lengths]
    whole = played(config, [sum(shares)], lengths, **how)
    assert sorted(whole[0]) == list(range(sum(shares)))
    assert played(config, shares, lengths, **how) == whole, f"seed {seed}, shares {shares}, {how}: {described(config)}"


@pytest.mark.parametrize("seed", range(12))
def test_shares_of_a_run_play_what_the_whole_plays(seed):
    check_shares(seed)


def filtered(config: PPOConfig) -> PPOConfig:
    """The config with a filter of its observations, in one of the forms that filters may have."""
    shared, on_items = config.seed % 2, config.seed % 3 == 0

    def pieces() -> list[Any]:
        piece = MeanStdFilter(share_between_agents=bool(shared))
        return [FlattenObservations(), as_items(piece) if on_items else piece]

    return config.env_runners(env_to_module_connector=pieces).learners(learner_connector=None)


@pytest.mark.parametrize("seed", range(10))
def test_shares_of_a_run_with_a_filter_play_and_learn_what_the_whole_does(seed):
    check_shares(seed, filtered)


@pytest.mark.parametrize("seed", range(2))
def test_moments_that_are_computed_several_times_in_a_sample_are_those_of_the_whole(seed, monkeypatch):
    monkeypatch.setattr(running_stats, "_BLOCK_BYTES", 100)
    check_shares(100 + seed, filtered)


class DividesByLargest(ConnectorV2):
    """A user's piece that learns: it divides observations by the largest of all earlier samples."""

    def __init__(self):
        super().__init__()
        self.largest, self.new = 1e-3, 0.0

    def on_columns(self, *, columns, **kwargs):
        observations = columns.rows.get("obs")
        self.new = max(self.new, float(np.abs(observations).max()))
        columns.rows.set("obs", (observations / self.largest).astype(observations.dtype))

    def get_state(self):
        return {"largest": self.largest, "new": self.new}

    def set_state(self, state):
        self.largest, self.new = state["largest"], state["new"]

    def merge_states(self, states):
        return {"largest": max(max(state["largest"], state["new"]) for state in states), "new": 0.0}


def test_shares_of_a_run_with_a_users_piece_that_learns_play_and_learn_what_the_whole_does():
    config = small_config(LifeEnv).env_runners(env_to_module_connector=lambda: DividesByLargest())
    whole = played(config, [5], [4, 5, 6], explore=(True, False))
    assert played(config, [2, 3], [4, 5, 6], explore=(True, False)) == whole
    assert float(whole[1]["DividesByLargest"]["largest"]) > 1e-3


@pytest.mark.slow
def test_shares_of_300_random_runs_play_what_the_whole_plays():
    first = secrets.randbits(31)
    for seed in range(first, first + 300):
        check_shares(seed)
        check_shares(seed, filtered)


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
