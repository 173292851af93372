"""What a sub-environment plays depends on its number in the run, and not on the env runner that steps it.

The episodes of several runners have an order, which is that of one runner with all sub-environments.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from helpers.envs.echo_games import on_items as as_items
from helpers.envs.failing_envs import FailingEnv
from helpers.envs.gymnasium_envs import Walk
from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.runs.random_runs import described, differences, plain, random_config
from helpers.runs.runner_shares import DividedRun, contents, depends_on_others, runner_of
from marl_connectors import ConnectorV2, EnvError, FlattenObservations, MeanStdFilter, PPOConfig
from marl_connectors.connectors import running_stats


def played(
    config: PPOConfig, shares: list[int], lengths: list[int], episodes: bool = False, explore: tuple = (None,)
) -> tuple[list[Any], Any]:
    """What runners with these shares of the sub-environments play and learn.

    Args:
        config: The configuration.
        shares: The number of sub-environments of each runner.
        lengths: How many steps, or episodes, of each sub-environment each sample has.
        episodes: Whether samples consist of whole episodes.
        explore: Whether the samples explore, in turn.

    Returns:
        For each sample, the sub-environments of the episodes, the times of their ends and all that they hold; and the
        states of the env-to-module pieces.
    """
    run = DividedRun(config, shares)
    found = []
    try:
        for i, length in enumerate(lengths):
            size = {"num_episodes": length * sum(shares)} if episodes else {"steps": length}
            sampled = run.sample(**size, explore=explore[i % len(explore)])
            for place, episode in zip(run.places, sampled, strict=True):
                assert place.env_number == int(str(episode.id_).split("-")[0])
                assert episode.is_done == (place.vector_step is not None)
            found.append((run.places, contents(sampled)))
        return found, plain(run.runners[-1].env_to_module.get_state())
    finally:
        run.close()


def check_shares(seed: int, change: Callable[[PPOConfig], Any] = lambda config: None) -> None:
    rng = np.random.default_rng(seed)
    while True:
        config = random_config(int(rng.integers(2**31)))
        change(config)
        if not depends_on_others(config):
            break
    shares = [int(share) for share in rng.integers(1, 4, size=rng.integers(2, 4))]
    lengths = [int(length) for length in rng.integers(1, 12, size=3)]
    how: dict[str, Any] = {"explore": [(None,), (True, True, False)][rng.integers(2)], "episodes": rng.random() < 0.3}
    if how["episodes"]:
        lengths = [1 + length % 3 for length in lengths]
    whole = played(config, [sum(shares)], lengths, **how)
    assert {place.env_number for places, _ in whole[0] for place in places} == set(range(sum(shares)))
    found = played(config, shares, lengths, **how)
    assert not differences(plain(found), plain(whole)), f"seed {seed}, shares {shares}, {how}: {described(config)}"


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_shares_of_a_run_with_a_filter_play_and_learn_what_the_whole_does(seed):
    check_shares(seed, filtered)


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(2))
def test_moments_that_are_computed_several_times_in_a_sample_are_those_of_the_whole(seed, monkeypatch):
    monkeypatch.setattr(running_stats, "_BLOCK_BYTES", 100)
    check_shares(100 + seed, filtered)


class DividesByLargest(ConnectorV2):
    """A user's piece that learns: it divides observations by the largest of all earlier samples."""

    def __init__(self):
        super().__init__()
        self.largest, self.new = 1e-3, 0.0

    def columns(self, c, xp):
        observations = c.rows.get("obs")
        self.new = max(self.new, float(np.abs(observations).max()))
        c.rows.set("obs", (observations / self.largest).astype(observations.dtype))

    def get_state(self):
        return {"largest": self.largest, "new": self.new}

    def set_state(self, state):
        self.largest, self.new = state["largest"], state["new"]

    def merge_states(self, states):
        return {"largest": max(max(state["largest"], state["new"]) for state in states), "new": 0.0}


def test_shares_of_a_run_with_a_users_piece_that_learns_play_and_learn_what_the_whole_does():
    config = small_config(LifeEnv).env_runners(env_to_module_connector=lambda: DividesByLargest())
    whole = played(config, [5], [4, 5, 6], explore=(True, False))
    assert not differences(plain(played(config, [2, 3], [4, 5, 6], explore=(True, False))), plain(whole))
    assert float(whole[1]["DividesByLargest"]["largest"]) > 1e-3


@pytest.mark.slow
def test_shares_of_many_random_runs_play_what_the_whole_plays():
    first = secrets.randbits(31)
    for seed in range(first, first + 60):
        check_shares(seed)
        check_shares(seed, filtered)


def make_walks(num_envs=1):
    import gymnasium

    return gymnasium.vector.SyncVectorEnv([Walk] * num_envs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        pytest.param(small_config(LifeEnv).env_runners(num_env_workers=2), id="workers"),
        pytest.param(small_config(make_walks).env_runners(gym_env_vectorize_mode="vector_entry_point"), id="VectorEnv"),
    ],
)
def test_shares_in_worker_processes_and_vector_envs_play_what_the_whole_plays(config):
    config.env_runners(num_envs_per_env_runner=2)
    assert not differences(plain(played(config, [2, 3], [4, 5])), plain(played(config, [5], [4, 5])))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_errors_name_the_number_in_the_run(workers):
    config = small_config(FailingEnv).environment(disable_env_checking=True).env_runners(num_env_workers=workers)
    runner = runner_of(config, 2, 5)
    with pytest.raises(EnvError, match=r"sub-environment [56]"):
        runner.sample(num_timesteps=400)
