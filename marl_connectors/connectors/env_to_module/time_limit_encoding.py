"""Appends the time in the episode to observations, so that values can depend on the time that is left."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError
from marl_connectors.spaces import describe
from marl_connectors.typing import AgentID, Tree
from marl_connectors.validators import integer


class TimeLimitEncoding(ObservationTransform):
    """Appends the share of the episode's time limit that has passed, ``t / max_steps``, to flat observations.

    ``(n,)`` becomes ``(n + 1,)``, float32. ``t`` is the number of steps that the agent has taken in its episode. It is
    0 at the first observation, also for an agent that joins later, and in turn-based environments it counts the agent's
    own turns. From ``max_steps`` on, the share is 1. If episodes end at a time limit that agents cannot observe, the
    same observation has different values at different times: Pardo et al. (2018), "Time Limits in Reinforcement
    Learning", arXiv:1712.00378.

    Reads ``obs`` and the number of steps; writes ``obs`` back to the episodes. Keeps no state.

    Args:
        max_steps: The number of the agent's steps after which the environment ends an episode.
    """

    max_steps: int = argument(integer(min=1))

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the space with the time."""
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            whose = "they" if agent_id is None else f"those of agent {agent_id!r}"
            raise ConfigError(
                f"TimeLimitEncoding: expected flat observations, but {whose} are {describe(space)}. "
                f"Put FlattenObservations before it."
            )
        with np.errstate(over="ignore"):
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        after = spaces.Box(np.append(low, np.float32(0.0)), np.append(high, np.float32(1.0)), dtype=np.float32)
        return Plan(space, after)

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Appends the time of all steps at once."""
        share = xp.minimum(xp.astype(rows.own_steps(), xp.float64) / self.max_steps, 1.0)
        flat = xp.astype(observations, xp.float32, copy=False)
        return xp.concat([flat, xp.astype(share, xp.float32)[:, None]], axis=1)
