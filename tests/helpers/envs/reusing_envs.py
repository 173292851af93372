"""Environments that write each step's info into the same arrays, also those within dicts and lists."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv


class ReusingInfos(gym.Env):
    """Its episodes last four to six steps; observations and infos say the step, and the infos only in arrays."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self._clock = np.zeros(1, np.int64)
        self._info = {"clock": self._clock, "deep": {"parts": [self._clock, (self._clock,)]}}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._length = int(self.np_random.integers(4, 7))
        self._clock[0] = 0
        return np.zeros(1, np.float32), self._info

    def step(self, action):
        self._clock[0] += 1
        over = bool(self._clock[0] >= self._length)
        return np.full(1, self._clock[0], np.float32), 1.0, over, False, self._info


class ReusingVector(VectorEnv):
    """A VectorEnv without autoreset that writes infos of steps and resets into one array."""

    single_observation_space, single_action_space = ReusingInfos.observation_space, ReusingInfos.action_space

    def __init__(self, num_envs=1):
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.DISABLED}
        self._envs = SyncVectorEnv([ReusingInfos] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
        self.observation_space, self.action_space = self._envs.observation_space, self._envs.action_space
        self._clocks = np.zeros((num_envs, 1), np.int64)

    def reset(self, *, seed=None, options=None):
        observations, _ = self._envs.reset(seed=seed, options=options)
        return observations, self._infos(observations)

    def step(self, actions):
        observations, *rest, _ = self._envs.step(actions)
        return observations, *rest, self._infos(observations)

    def _infos(self, observations):
        self._clocks[:] = observations
        return {"clock": self._clocks, "deep": {"clock": self._clocks}}
