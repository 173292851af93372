"""Changes the unit of rewards before they reach a loss."""

from __future__ import annotations

import math
from typing import Any

from gymnasium import Space

from marl_connectors.connectors.learner.reward_transform import RewardTransform
from marl_connectors.errors import ConfigError


class ScaleRewards(RewardTransform):
    """Makes each of the train batch's ``rewards`` ``scale * reward + shift``; the episodes keep the environment's.

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
            scale: Factor.
            shift: Added to every reward, after scaling.
        """
        super().__init__(input_observation_space, input_action_space)
        for name, value in (("scale", scale), ("shift", shift)):
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise ConfigError(f"ScaleRewards: {name} must be a finite number, not {value!r}.")
        self.scale = float(scale)
        self.shift = float(shift)

    def changed(self, rewards: Any) -> Any:
        """Scaled and shifted rewards."""
        return rewards * self.scale + self.shift
