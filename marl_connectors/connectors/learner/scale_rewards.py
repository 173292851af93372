"""Scales and shifts rewards before they reach a loss."""

from __future__ import annotations

import math
from typing import Any

from gymnasium import Space

from marl_connectors.connectors.learner.reward_transform import RewardTransform
from marl_connectors.errors import ConfigError


class ScaleRewards(RewardTransform):
    """Replaces each of the train batch's ``rewards`` by ``scale * reward + shift``; the episodes keep the old ones.

    Keeps no state.
    """

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        scale: float = 1.0,
        shift: float = 0.0,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            scale: The factor.
            shift: The number that is added to every reward after scaling.

        Raises:
            ConfigError: If ``scale`` or ``shift`` is not a finite number.
        """
        super().__init__(input_observation_space, input_action_space)
        for name, value in (("scale", scale), ("shift", shift)):
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ConfigError(f"ScaleRewards: {name} must be a finite number, not {value!r}.")
        self.scale = float(scale)
        self.shift = float(shift)

    def changed(self, rewards: Any) -> Any:
        """Returns scaled and shifted rewards."""
        return rewards * self.scale + self.shift
