"""Pads observations, so that agents with observations of different sizes can share a module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError
from marl_connectors.spaces import describe
from marl_connectors.typing import AgentID, Tree


class PadObservations(ObservationTransform):
    """Pads flat observations with zeros to the length of the longest agent's.

    All agents get the same space, so they can share a module if their action spaces are alike. Reads ``obs``; writes it
    back to the episodes. Keeps no state.
    """

    _common: spaces.Box | None = None

    def prepare(self, agents: Mapping[AgentID | None, tuple[Space, Space | None]]) -> None:
        """Works out the space that contains the padded observations of all agents."""
        boxes = [_flat(agent_id, space) for agent_id, (space, _) in agents.items()]
        size = max(box.shape[0] for box in boxes)
        dtype = np.result_type(*(box.dtype for box in boxes))  # type: ignore[arg-type]
        low, high = (
            np.array([np.pad(bound.astype(dtype), (0, size - len(bound))) for bound in bounds])
            for bounds in ([box.low for box in boxes], [box.high for box in boxes])
        )
        self._common = spaces.Box(low.min(axis=0), high.max(axis=0), dtype=dtype.type)

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the common space."""
        size = _flat(agent_id, space).shape[0]
        if self._common is None or size > self._common.shape[0]:
            longest = 0 if self._common is None else self._common.shape[0]
            raise ConfigError(
                f"PadObservations: agent {agent_id!r} has observations of {describe(space)}, but the longest of the "
                f"known agents have {longest} numbers. Name the agent in the environment's possible_agents."
            )
        return Plan(space, self._common, size)

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Pads the observations."""
        after = plan.after
        assert isinstance(after, spaces.Box)
        own = xp.astype(observations, after.dtype, copy=False)
        missing = after.shape[0] - plan.how
        if not missing:
            return own
        return xp.concat([own, xp.zeros((own.shape[0], missing), dtype=own.dtype)], axis=1)


def _flat(agent_id: AgentID | None, space: Space) -> spaces.Box:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        who = "" if agent_id is None else f" of agent {agent_id!r}"
        raise ConfigError(
            f"PadObservations: expected flat observations, but those{who} are {describe(space)}. Put "
            f"FlattenObservations before it."
        )
    return space
