"""An environment of two agents, with one setting."""

from __future__ import annotations

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv


class Pair(ParallelEnv):
    """Two agents that see and do nothing."""

    metadata = {"render_modes": [], "name": "pair"}

    def __init__(self, size=2):
        self.size = size
        self.possible_agents = ["a", "b"]

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1.0, 1.0, (self.size,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)
