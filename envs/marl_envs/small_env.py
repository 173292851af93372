"""What the small parallel environments have in common: spaces, checks of actions, a seeded generator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from gymnasium import logger, spaces
from gymnasium.utils import seeding
from pettingzoo import ParallelEnv

from marl_envs.arguments import check_at_least, check_render_mode

__all__ = ["SmallEnv", "Step"]

Step: TypeAlias = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]
"""Observations, rewards, terminations, truncations and infos, each by agent."""


class SmallEnv(ParallelEnv[str, Any, Any]):
    """Agents with one observation space and Discrete actions, in an environment whose name is in its metadata.

    A subclass calls ``_begin`` in its ``reset`` and ``_choices`` in its ``step``, and draws from ``_rng`` only.

    Args:
        n_agents: Number of agents, ``agent_0`` and so on.
        observation_space: Of each agent.
        n_actions: Actions of each agent are the integers in [0, ``n_actions``).
        render_mode: ``"rgb_array"`` or None.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self, *, n_agents: int, observation_space: spaces.Space[Any], n_actions: int, render_mode: str | None
    ) -> None:
        check_at_least(self._name, 1, n_agents=n_agents)
        check_render_mode(self._name, render_mode)
        self.render_mode = render_mode
        self.possible_agents = [f"agent_{i}" for i in range(n_agents)]
        self.agents: list[str] = []
        self.observation_spaces = dict.fromkeys(self.possible_agents, observation_space)
        self.action_spaces = {agent: spaces.Discrete(n_actions) for agent in self.possible_agents}
        self._rng: np.random.Generator | None = None

    @property
    def _name(self) -> str:
        return self.metadata["name"]

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def _begin(self, seed: int | None, agents: Iterable[str]) -> np.random.Generator:
        """Who takes part at first; and the generator, which a seed starts anew."""
        rng = self._rng
        if seed is not None or rng is None:
            rng, _ = seeding.np_random(seed)
        self._rng = rng
        self.agents = list(agents)
        return rng

    def _choices(self, actions: dict[str, Any]) -> tuple[np.random.Generator, dict[str, int]]:
        """The generator, and the actions of all agents, checked.

        Raises:
            RuntimeError: If the episode is over or was never started.
            ValueError: If an agent has no action, or one outside its action space.
        """
        if not self.agents or self._rng is None:
            raise RuntimeError(f"{self._name}: step() needs a running episode, but there is none. Call reset() first.")
        choices = {}
        for agent in self.agents:
            if agent not in actions:
                raise ValueError(
                    f"{self._name}: an action for every agent was expected, but {agent!r} is missing from "
                    f"{list(actions)}. Pass one action for each of env.agents."
                )
            if not self.action_spaces[agent].contains(actions[agent]):
                raise ValueError(
                    f"{self._name}: {agent!r} needs an action in {self.action_spaces[agent]}, but got "
                    f"{actions[agent]!r}."
                )
            choices[agent] = int(actions[agent])
        return self._rng, choices

    def _draws(self) -> bool:
        """Whether ``render`` is to draw; says so if not."""
        if self.render_mode is None:
            logger.warn(f"{self._name}: render() draws nothing, because render_mode is None. Pass 'rgb_array'.")
        return self.render_mode is not None

    def close(self) -> None:
        """Releases nothing."""
