"""A game that only players with a memory can win."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class RecallEnv(ParallelEnv):
    """Each agent sees a cue of its own, then nothing for a while, and is paid 1 for naming the cue when asked.

    An observation is ``[cue is A, cue is B, asked]``. How many steps are blank is drawn for each agent and episode, and
    agents leave when they have answered; so their episodes differ in length. Without a memory, 1/2 is the best.

    Args:
        delays: The fewest and the most blank steps, both possible.
    """

    metadata = {"name": "recall", "render_modes": []}

    def __init__(self, *, delays=(4, 6)):
        self.possible_agents = ["one", "two"]
        self.delays = delays
        self.agents = []

    def observation_space(self, agent):
        return spaces.Box(0.0, 1.0, (3,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def _observe(self, agent):
        asked = self.t == self.asked_at[agent]
        cue = np.eye(2)[self.cues[agent]] * (self.t == 0)
        return np.array([*cue, asked], np.float32)

    def reset(self, seed=None, options=None):
        rng = np.random.default_rng(seed)
        self.agents, self.t = list(self.possible_agents), 0
        self.cues = {agent: int(rng.integers(2)) for agent in self.agents}
        self.asked_at = {agent: int(rng.integers(self.delays[0], self.delays[1] + 1)) + 1 for agent in self.agents}
        return {agent: self._observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions):
        answered = {agent: self.t == self.asked_at[agent] for agent in actions}
        rewards = {agent: float(answered[agent] and actions[agent] == self.cues[agent]) for agent in actions}
        self.t += 1
        observations = {agent: self._observe(agent) for agent in actions}
        self.agents = [agent for agent in actions if not answered[agent]]
        return observations, rewards, answered, dict.fromkeys(actions, False), {agent: {} for agent in actions}
