"""Converts discrete observations to one-hot vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.flattening import one_hot, one_hot_size, one_hot_tensors
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan, Steps
from marl_connectors.connectors.space_trees import leaf_spaces, map_space, map_values
from marl_connectors.typing import AgentID, Tree

if TYPE_CHECKING:
    from marl_connectors.connectors.tensor_step import TensorStep

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

    def transform(self, observations: Tree, plan: Plan, steps: Steps) -> Tree:
        """Converts the discrete parts."""
        return map_values(_changed, plan.before, observations) if plan.how else observations

    def on_tensors(self, *, columns: dict[str, Any], step: TensorStep) -> None:
        """Converts the discrete parts."""
        plan = self.plan_of(step)
        columns[Columns.OBS] = map_values(
            lambda space, leaf: one_hot_tensors(space, leaf) if isinstance(space, _DISCRETE) else leaf,
            plan.before,
            columns[Columns.OBS],
        )


def _changed(space: Space, values: Any) -> Any:
    return one_hot(space, values) if isinstance(space, _DISCRETE) else values
