"""Clips rewards before they reach a loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.learner.reward_transform import RewardTransform
from marl_connectors.validators import either, number, one_of


class ClipRewards(RewardTransform):
    """Clips ``rewards`` in the train batch. Rewards in episodes, and reported returns, are unchanged.

    ``.environment(clip_rewards=...)`` inserts it after AddColumnsFromEpisodesToTrainBatch. Keeps no state.

    Args:
        clip_rewards: True for the sign of each reward (-1, 0 or 1); a number x > 0 to keep rewards in [-x, x].
    """

    clip_rewards: bool | float = argument(either(one_of(True), number(above=0)), default=True)

    def changed(self, rewards: Any) -> Any:
        """Returns the signs of rewards, or clipped rewards."""
        return (
            np.sign(rewards) if self.clip_rewards is True else np.clip(rewards, -self.clip_rewards, self.clip_rewards)
        )
