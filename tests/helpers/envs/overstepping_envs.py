"""Environments whose observations leave the bounds of their space in training, but not when they are tried out."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv

NARROW = spaces.Box(np.array([-0.8, -2.0], np.float32), np.array([2.0, 0.9], np.float32))
NESTED = spaces.Dict(z=spaces.Tuple((NARROW, spaces.Discrete(3))), a=spaces.Box(-0.5, 2.0, (1,), np.float32))


def is_beyond(space, item):
    """Whether a number in a Box leaves its bounds, by the plainest of loops."""
    if isinstance(space, spaces.Dict):
        return any(is_beyond(part, item[key]) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return any(is_beyond(part, own) for part, own in zip(space.spaces, item, strict=True))
    if not isinstance(space, spaces.Box):
        return False
    numbers = zip(np.ravel(item), np.ravel(space.low), np.ravel(space.high), strict=True)
    return any(x < low or x > high for x, low, high in numbers)


class OversteppingLives(LifeEnv):
    """A LifeEnv with uniform observations in [-1, 1], which ``NARROW`` does not hold; in bounds in episodes of seed 0.

    Args:
        nested: Whether observations of agent ``"a"`` are of ``NESTED``.
        settings: Of the LifeEnv.

    Attributes:
        beyond: How many observations of all objects were out of bounds, in this process.
    """

    beyond = 0

    def __init__(self, *, nested=False, **settings):
        super().__init__(**settings)
        self.nested = nested

    def observation_space(self, agent):
        return NESTED if self.nested and agent == "a" else NARROW

    def reset(self, seed=None, options=None):
        self.is_tried_out = seed == 0
        return super().reset(seed, options)

    def _numbers(self, space):
        numbers = self.rng.uniform(-1, 1, space.shape).astype(np.float32)
        return np.clip(numbers, space.low, space.high) if self.is_tried_out else numbers

    def _observe(self, agent):
        space = self.observation_space(agent)
        if space is NESTED:
            seen = {"z": (self._numbers(NARROW), int(self.rng.integers(3))), "a": self._numbers(NESTED["a"])}
        else:
            seen = self._numbers(space)
        OversteppingLives.beyond += is_beyond(space, seen)
        return seen, {}


class OversteppingEnv(gymnasium.Env):
    """One agent; at ``t`` it sees ``values[t]``, as often as there are any, but 0 in episodes of seed 0."""

    action_space = spaces.Discrete(2)

    def __init__(self, values=(0.0, 0.0, 2.5013), space=None, last=20):
        self.values, self.last = values, last
        self.observation_space = spaces.Box(-2.5, 2.5, (2,), np.float32) if space is None else space

    def _observation(self):
        value = 0.0 if self.is_tried_out else self.values[self.t % len(self.values)]
        if isinstance(self.observation_space, spaces.Discrete):
            return int(value)
        seen = np.zeros(self.observation_space.shape, self.observation_space.dtype)
        seen[-1] = value
        return seen

    def reset(self, *, seed=None, options=None):
        self.is_tried_out, self.t = seed == 0, 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        return self._observation(), 1.0, False, self.t >= self.last, {}
