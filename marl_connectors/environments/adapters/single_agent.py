"""A Gymnasium environment as an environment with one agent."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from marl_connectors.environments.adapters.env_adapter import EnvAdapter
from marl_connectors.typing import DEFAULT_AGENT_ID


class SingleAgentEnv(EnvAdapter):
    """A ``gymnasium.Env`` with the methods of a PettingZoo parallel environment.

    All other code can treat it like a multi-agent environment. Its one agent is called ``DEFAULT_AGENT_ID``.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.possible_agents = [DEFAULT_AGENT_ID]

    def observation_space(self, agent: Any) -> gym.Space:
        """Returns the observation space of the one agent."""
        return self.env.observation_space

    def action_space(self, agent: Any) -> gym.Space:
        """Returns the action space of the one agent."""
        return self.env.action_space

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        """Starts an episode. Returns the observation and the info by agent."""
        given: Any = self.env.reset(seed=seed, options=options)
        if not _is_pair(given):
            return given  # unchanged, so that the caller can report what is wrong with it
        observation, info = given
        self.agents = [DEFAULT_AGENT_ID]
        return {DEFAULT_AGENT_ID: observation}, {DEFAULT_AGENT_ID: info}

    def step(self, actions: dict) -> tuple[dict, dict, dict, dict, dict]:
        """Makes one step. Returns observation, reward, termination, truncation and info by agent."""
        given: Any = self.env.step(actions[DEFAULT_AGENT_ID])
        try:
            observation, reward, terminated, truncated, info = given
        except (TypeError, ValueError):
            return given
        if terminated or truncated:
            self.agents = []
        return (
            {DEFAULT_AGENT_ID: observation},
            {DEFAULT_AGENT_ID: reward},
            {DEFAULT_AGENT_ID: terminated},
            {DEFAULT_AGENT_ID: truncated},
            {DEFAULT_AGENT_ID: info},
        )


def _is_pair(given: Any) -> bool:
    return isinstance(given, (tuple, list)) and len(given) == 2
