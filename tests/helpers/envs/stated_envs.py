"""Environments with a ``state()`` that says in which episode, and at which env step, it was asked for."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import LifeEnv
from marl_connectors.seeding import derived_seed


class _Stated:
    """The state: the seed of the reset, and how many actions, or dicts of actions, were taken since. One buffer."""

    state_space = spaces.Box(0.0, np.inf, (1, 2), np.float64)

    def reset(self, seed=None, options=None):
        self.buffer = np.array([[float(seed), 0.0]])
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.buffer[0, 1] += action is not None
        return super().step(action)

    def state(self):
        return self.buffer


class StatedLife(_Stated, LifeEnv):
    """Parallel."""


class StatedAEC(_Stated, RandomAEC):
    """Turn-based."""


def expected_states(rows, run_seed):
    """``[B, 1, 2]`` by the plainest of loops over episodes."""
    found, times, begin = [], rows.get("t"), 0
    for episode, count in zip(rows.episodes, rows.counts, strict=True):
        copy, number = map(int, episode.multi_agent_episode_id.split("-"))
        seed = derived_seed(run_seed, "env", copy, number)
        found += [[[float(seed), float(t)]] for t in times[begin : begin + count]]
        begin += count
    return np.array(found)
