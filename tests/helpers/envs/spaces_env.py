"""An environment with any spaces, whose agents see random items of theirs."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class SpacesEnv(ParallelEnv):
    """Agents see random items of a space, and may do what masks in the infos, if there are any, allow.

    Every action must be in the action space, and allowed. Rewards depend on the observation alone.

    Args:
        observation_space: Of all agents.
        action_space: Of all agents.
        masks: What to draw masks from: ``None``, ``"info"`` (under ``action_mask``), ``"tuple"`` (the same, as a
            tuple), or ``"obs"`` (a Dict with the mask under ``legal``, and the observation under ``seen``).
        length: Steps of an episode.
    """

    metadata = {"name": "spaces", "render_modes": []}

    def __init__(self, observation_space, action_space, masks=None, length=5):
        self.possible_agents = ["a", "b"]
        self.agents = []
        self.seen_space, self.own_action_space, self.masks, self.length = observation_space, action_space, masks, length
        self.lens = [2] * 3 if isinstance(action_space, spaces.MultiBinary) else None
        if isinstance(action_space, spaces.MultiDiscrete):
            self.lens = action_space.nvec.tolist()
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent):
        if self.masks != "obs":
            return self.seen_space
        return spaces.Dict({"legal": spaces.Box(0, 1, (sum(self.lens),), np.int8), "seen": self.seen_space})

    def action_space(self, agent):
        return self.own_action_space

    def _observe(self):
        self.legal = {agent: [self.rng.random(n) < 0.5 for n in self.lens or ()] for agent in self.agents}
        seen, infos = {}, {agent: {} for agent in self.agents}
        self.seen_space.seed(int(self.rng.integers(2**31)))
        for agent, legal in self.legal.items():
            for allowed in legal:
                allowed[self.rng.integers(len(allowed))] = True
            seen[agent] = self.seen_space.sample()
            if self.masks == "obs":
                seen[agent] = {"legal": np.concatenate(legal).astype(np.int8), "seen": seen[agent]}
            elif self.masks == "tuple":
                infos[agent] = {"action_mask": tuple(allowed.astype(np.int8) for allowed in legal)}
            elif self.masks == "info" and isinstance(self.own_action_space, spaces.MultiBinary):
                infos[agent] = {"action_mask": np.array([2 if all(a) else int(a[1]) for a in legal], np.int8)}
            elif self.masks == "info":
                infos[agent] = {"action_mask": np.concatenate(legal)}
        return seen, infos

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.t = list(self.possible_agents), 0
        return self._observe()

    def step(self, actions):
        for agent, action in actions.items():
            assert self.own_action_space.contains(action), (self.own_action_space, action)
            if self.masks is not None:
                start = getattr(self.own_action_space, "start", np.zeros(len(self.lens), int))
                allowed = [ok[value] for ok, value in zip(self.legal[agent], action - start, strict=True)]
                assert all(allowed), (self.legal[agent], action)
        self.t += 1
        over = self.t >= self.length
        rewards = {agent: float(self.rng.random()) for agent in self.agents}
        seen, infos = self._observe()
        flags = dict.fromkeys(self.agents, over), dict.fromkeys(self.agents, False)
        self.agents = [] if over else self.agents
        return seen, rewards, *flags, infos
