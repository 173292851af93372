"""The protocol of natively batched environments: arrays in, arrays out, for all copies at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from gymnasium import Env, Space
from pettingzoo import AECEnv, ParallelEnv

from marl_connectors.typing import AgentID, Tree


@runtime_checkable
class BatchedEnv(Protocol):
    """``num_envs`` copies of one world with the same agents in each, stepped together. Nothing has to be inherited.

    All agents of a copy live from its reset until they end together, in one step. Whoever makes the environment gets
    ``num_envs`` as a keyword argument. Where agents have unlike spaces, observations and actions are dicts by agent,
    ``{agent: [num_envs, ...]}``, instead of arrays ``[num_envs, num_agents, ...]``.

    Attributes:
        num_envs: How many copies.
        possible_agents: The agents of a copy, in the order of the second axis of all arrays.
    """

    num_envs: int
    possible_agents: list[AgentID]

    def observation_space(self, agent: AgentID) -> Space:
        """Of one agent."""
        ...

    def action_space(self, agent: AgentID) -> Space:
        """Of one agent."""
        ...

    def reset(self, seeds: Sequence[int | None], mask: np.ndarray | None = None) -> Tree:
        """Starts episodes.

        Args:
            seeds: One for each copy that is reset, from which, with its actions, its episode follows; None for others.
            mask: ``[num_envs]`` bool, which copies; None for all. The others stay as they are.

        Returns:
            ``[num_envs, num_agents, ...]``, the observations of all copies, reset or not.
        """
        ...

    def step(self, actions: Any) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Steps all copies, and resets none: whoever called resets those that are over, before the next step.

        Args:
            actions: ``[num_envs, num_agents, ...]``.

        Returns:
            Observations ``[num_envs, num_agents, ...]``, rewards, terminations and truncations ``[num_envs,
            num_agents]``, and infos: ``[num_envs, num_agents, ...]`` arrays by name, or ``{}``. The arrays may be used
            again at the next call.
        """
        ...

    def close(self) -> None:
        """Frees what the environment holds."""
        ...


def is_batched(env: Any) -> bool:
    """Whether an environment is natively batched, and not of another kind with like-named attributes."""
    return not isinstance(env, (ParallelEnv, AECEnv, Env)) and isinstance(env, BatchedEnv)


def missing_parts(env: Any) -> list[str]:
    """What an object that says ``num_envs`` and ``possible_agents`` lacks to be a BatchedEnv; [] for others."""
    parts = ("observation_space", "action_space", "reset", "step", "close")
    if not (hasattr(env, "num_envs") and hasattr(env, "possible_agents")):
        return []
    return [name for name in parts if not hasattr(env, name)]
