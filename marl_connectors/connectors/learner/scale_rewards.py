"""Scales and shifts rewards before they reach a loss."""

from __future__ import annotations

from typing import Any

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.learner.reward_transform import RewardTransform
from marl_connectors.validators import number


class ScaleRewards(RewardTransform):
    """Replaces each of the train batch's ``rewards`` by ``scale * reward + shift``; the episodes keep the old ones.

    Keeps no state.

    Args:
        scale: The factor.
        shift: The number that is added to every reward after scaling.
    """

    scale: float = argument(number(), default=1.0)
    shift: float = argument(number(), default=0.0)

    def changed(self, rewards: Any) -> Any:
        """Returns scaled and shifted rewards."""
        return rewards * self.scale + self.shift
