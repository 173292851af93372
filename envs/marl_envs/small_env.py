"""The base class of the small parallel environments: spaces, checks of actions, and a seeded generator."""

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
    """Base class of environments whose agents all have the same observation space and Discrete actions.

    A subclass has a name in its metadata, calls ``_begin`` in ``reset`` and ``_choices`` in ``step``, and only draws
    from ``_rng``.

    Args:
        n_agents: The number of agents. They are called ``agent_0``, ``agent_1`` and so on.
        observation_space: The observation space of each agent.
        n_actions: The number of actions of each agent.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If an argument is outside its range.
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
        """Starts an episode with these agents, and returns the generator, which is seeded if there is a seed."""
        rng = self._rng
        if seed is not None or rng is None:
            rng, _ = seeding.np_random(seed)
        self._rng = rng
        self.agents = list(agents)
        return rng

    def _choices(self, actions: dict[str, Any]) -> tuple[np.random.Generator, dict[str, int]]:
        """Checks the actions of all agents, and returns the generator and the actions.

        Raises:
            RuntimeError: If the episode is over, or if ``reset`` was never called.
            ValueError: If an agent has no action, or an action outside its action space.
        """
        if not self.agents or self._rng is None:
            raise RuntimeError(f"{self._name}: step() was called without a running episode. Call reset() first.")
        choices = {}
        for agent in self.agents:
            if agent not in actions:
                raise ValueError(
                    f"{self._name}: expected an action for every agent, but {agent!r} is missing in "
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
        """Whether ``render`` should draw. A warning is logged if not."""
        if self.render_mode is None:
            logger.warn(f"{self._name}: render() draws nothing, because render_mode is None. Pass 'rgb_array'.")
        return self.render_mode is not None

    def close(self) -> None:
        """Does nothing, because there are no resources to free."""
