"""Converts images to the form that convolutions need."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.array_namespace import ARRAYS
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.connectors.space_trees import leaf_spaces, map_space, map_values
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError
from marl_connectors.spaces import describe
from marl_connectors.typing import AgentID, Tree


class ImageToFloat(ObservationTransform):
    """Converts uint8 images ``(height, width, channels)`` to float32 in [0, 1], ``(channels, height, width)``.

    Images ``(height, width)`` get one channel. In Dict and Tuple spaces, all images are converted and all other parts
    stay as they are.

    Reads ``obs``; writes it back to the episodes, where it needs four times the memory. After FrameStacking it changes
    the batch only, and the learner pipeline needs both pieces. Keeps no state.

    Args:
        channels_first: Whether the channels become the first axis, as torch's convolutions need, or stay last.
    """

    channels_first: bool = argument(default=True)

    def prepare(self, agents: Mapping[AgentID | None, tuple[Space, Space | None]]) -> None:
        """Checks that there is an image."""
        if not self.learns and not any(_is_image(part) for space, _ in agents.values() for part in leaf_spaces(space)):
            space = next(iter(agents.values()))[0]
            raise ConfigError(
                f"ImageToFloat: expected an image, a uint8 Box (height, width, channels) or (height, width), in the "
                f"observation space, got {describe(space)}. Leave the piece out."
            )

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the space of float images; ``how`` is True if there is an image."""
        return Plan(space, map_space(self._changed_space, space), any(map(_is_image, leaf_spaces(space))))

    def _changed_space(self, space: Space) -> Space:
        if not _is_image(space):
            return space
        assert isinstance(space, spaces.Box)
        low, high = (self._changed(space, bound[None], ARRAYS)[0] for bound in (space.low, space.high))
        return spaces.Box(low, high, dtype=np.float32)

    def _changed(self, space: Space, values: Any, xp: Any) -> Any:
        if not _is_image(space):
            return values
        if values.ndim == 3:
            values = values[..., None]
        scaled = xp.astype(values, xp.float32) / 255.0
        return xp.ascontiguousarray(xp.moveaxis(scaled, -1, 1)) if self.channels_first else scaled

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Converts the images."""
        return map_values(partial(self._changed, xp=xp), plan.before, observations) if plan.how else observations


def _is_image(space: Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) in (2, 3)
