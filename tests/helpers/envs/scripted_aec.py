"""A turn-based environment whose every turn is written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv


@dataclass
class Beat:
    """What the reset (the first beat) or a live agent's step does, in this order: remove, join, pay, flag, select."""

    next: Any
    pays: dict[str, Any] = field(default_factory=dict)
    terminated: str = ""
    truncated: str = ""
    joins: str = ""
    removes: str = ""
    dead_next: bool = True
    """Those that ended have their turns at once, as most environments do it."""


class ScriptedAEC(AECEnv):
    """Plays beats. Agent "a" observes ``[0, t]`` at time t, "b" ``[1, t]``, and so on, all in one array.

    Args:
        beats: The reset's, then one for each step of a live agent.
        agents: Who starts.
        returning: Agents that are there again as soon as their dead turn was played.
        staying: Agents that their dead turn does not remove.
        blind: Agents that observe None.
        gone_raise: Whether ``observe()`` of an agent that is not there raises.
    """

    metadata = {"name": "scripted", "render_modes": ["ansi"]}
    render_mode = "ansi"

    def __init__(self, beats, agents="ab", *, returning="", staying="", blind="", gone_raise=True):
        super().__init__()
        self.beats, self.first_agents = beats, agents
        self.possible_agents = list("abcd")
        self.returning, self.staying, self.blind, self.gone_raise = returning, staying, blind, gone_raise
        self.buffer = np.zeros(2, np.int64)
        self.played: list[Any] = []
        self.closed = False

    def observation_space(self, agent):
        return spaces.Box(0, 100, (2,), np.int64)

    def action_space(self, agent):
        return spaces.Discrete(10 + "abcd".index(agent))

    def observe(self, agent):
        if agent in self.blind:
            return None
        if self.gone_raise and agent not in self.agents:
            raise KeyError(agent)
        self.buffer[:] = "abcd".index(agent), self.t
        return self.buffer

    def reset(self, seed=None, options=None):
        self.seed, self.options = seed, options
        self.t = -1
        self.agents, self.played = [], []
        self.rewards, self._cumulative_rewards = {}, {}
        self.terminations, self.truncations, self.infos = {}, {}, {}
        for agent in self.first_agents:
            self._add(agent)
        self._skip_agent_selection = None
        self._play()

    def _add(self, agent):
        self.agents.append(agent)
        self.rewards[agent] = self._cumulative_rewards[agent] = 0
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = {}

    def step(self, action):
        agent = self.agent_selection
        self.played.append((agent, action))
        if self.terminations[agent] or self.truncations[agent]:
            if agent in self.staying:
                return
            self._was_dead_step(action)
            if agent in self.returning:
                self.returning = self.returning.replace(agent, "")
                self._add(agent)
            return
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0
        self._play()

    def _play(self):
        self.t += 1
        beat = self.beats[self.t]
        self.agents = [agent for agent in self.agents if agent not in beat.removes]
        for agent in beat.joins:
            self._add(agent)
        for agent in self.agents:
            self.infos[agent] = {"t": self.t, "action_mask": np.array([self.t % 2, 1])}
        self.rewards.update(beat.pays)
        self._accumulate_rewards()
        self.terminations.update(dict.fromkeys(beat.terminated, True))
        self.truncations.update(dict.fromkeys(beat.truncated, True))
        self.agent_selection = beat.next
        if beat.dead_next:
            self._deads_step_first()

    def render(self):
        return f"t = {self.t}"

    def close(self):
        self.closed = True


class ReusingAEC(ScriptedAEC):
    """Overwrites in a dead turn all that it has given."""

    mask, reward = np.array([0, 1]), np.array(3.0)

    def observe(self, agent):
        return {"observation": super().observe(agent), "action_mask": self.mask}

    def step(self, action):
        if action is None:
            self.buffer[...] = self.mask[...] = self.reward[...] = -1
            self.infos[self.agent_selection]["nested"]["mask"] = "lost"
        super().step(action)

    def _play(self):
        super()._play()
        if "b" in self.agents:
            self.infos["b"] = {"nested": {"mask": self.mask}}
            self._cumulative_rewards["b"] = self.reward
