"""Environments that show the options of their newest reset, and take them out of the dict, in each observation."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from pettingzoo import AECEnv, ParallelEnv

SPACE = spaces.Box(-1.0, 1000.0, (2,), np.float32)


class Shown:
    """``[level, t]``, where the level is -1 without options, and episodes of 3 steps."""

    metadata = {"name": "shown"}
    render_mode = None
    takes_it = True

    def begin(self, options):
        self.level = -1.0 if options is None else float(options["nested"]["level"])
        if options is not None and self.takes_it:
            del options["nested"]["level"]
        self.t = 0

    def seen(self):
        return np.array([self.level, self.t], np.float32)


class SingleShown(Shown, gym.Env):
    """Of Gymnasium."""

    observation_space, action_space = SPACE, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begin(options)
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        return self.seen(), 1.0, self.t == 3, False, {}


class ParallelShown(Shown, ParallelEnv):
    """Of two agents."""

    possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return SPACE

    def action_space(self, agent):
        return spaces.Discrete(2)

    def by_agent(self, value):
        return dict.fromkeys(self.possible_agents, value)

    def reset(self, seed=None, options=None):
        self.begin(options)
        self.agents = list(self.possible_agents)
        return self.by_agent(self.seen()), self.by_agent({})

    def step(self, actions):
        self.t += 1
        over = self.t == 3
        self.agents = [] if over else self.agents
        return (
            self.by_agent(self.seen()),
            self.by_agent(1.0),
            self.by_agent(over),
            self.by_agent(False),
            self.by_agent({}),
        )


class TurnBasedShown(Shown, AECEnv):
    """Of one agent."""

    possible_agents = ["a"]

    def observation_space(self, agent):
        return SPACE

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return self.seen()

    def reset(self, seed=None, options=None):
        self.begin(options)
        self.agents, self.agent_selection = ["a"], "a"
        self.rewards, self._cumulative_rewards = {"a": 0.0}, {"a": 0.0}
        self.terminations, self.truncations, self.infos = {"a": False}, {"a": False}, {"a": {}}

    def step(self, action):
        if self.terminations["a"]:
            self._was_dead_step(action)
            return
        self.t += 1
        self._cumulative_rewards["a"] = 0.0
        self.rewards["a"] = 1.0
        self.terminations["a"] = self.t == 3
        self._accumulate_rewards()


class KeepingShown(SingleShown):
    """Leaves the options as they are, as all copies in a SyncVectorEnv get the same dict."""

    takes_it = False


def vector_shown(num_envs=1, mode="DISABLED"):
    """A VectorEnv."""
    return SyncVectorEnv([KeepingShown] * num_envs, autoreset_mode=gym.vector.AutoresetMode[mode])
