"""Converts discrete observations to one-hot vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.connectors.flattening import one_hot, one_hot_size
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.connectors.space_trees import leaf_spaces, map_space, map_values
from marl_connectors.episodes.rows import Rows
from marl_connectors.typing import AgentID, Tree

_DISCRETE = (spaces.Discrete, spaces.MultiDiscrete)


class OneHotObservations(ObservationTransform):
    """Converts Discrete and MultiDiscrete observations to float32 one-hot vectors, ``(n,)``.

    The vectors of a MultiDiscrete space are concatenated. In Dict and Tuple spaces, the discrete parts are converted
    and all other parts stay as they are. Reads ``obs``; writes it back to the episodes. Keeps no state.
    """

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the space of one-hot vectors; ``how`` is True if there is a discrete part."""
        after = map_space(
            lambda part: (
                spaces.Box(0.0, 1.0, (one_hot_size(part),), np.float32) if isinstance(part, _DISCRETE) else part
            ),
            space,
        )
        return Plan(space, after, any(isinstance(part, _DISCRETE) for part in leaf_spaces(space)))

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Converts the discrete parts."""

        def changed(space: Space, values: Any) -> Any:
            return one_hot(space, values, xp) if isinstance(space, _DISCRETE) else values

        return map_values(changed, plan.before, observations) if plan.how else observations
