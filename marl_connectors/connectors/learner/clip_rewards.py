"""Clips rewards before they reach a loss."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.connectors.learner.reward_transform import RewardTransform
from marl_connectors.errors import ConfigError


class ClipRewards(RewardTransform):
    """Clips ``rewards`` in the train batch. Rewards in episodes, and reported returns, are unchanged.

    ``.environment(clip_rewards=...)`` inserts it after AddColumnsFromEpisodesToTrainBatch. Keeps no state.
    """

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        clip_rewards: bool | float = True,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            clip_rewards: True for the sign of each reward (-1, 0 or 1); a number x > 0 to keep rewards in [-x, x].

        Raises:
            ConfigError: If ``clip_rewards`` is neither True nor a number > 0.
        """
        super().__init__(input_observation_space, input_action_space)
        if clip_rewards is not True and not (isinstance(clip_rewards, (int, float)) and clip_rewards > 0):
            raise ConfigError(f"ClipRewards: clip_rewards must be True or a number > 0, not {clip_rewards!r}.")
        self.clip_rewards = clip_rewards

    def changed(self, rewards: Any) -> Any:
        """Returns the signs of rewards, or clipped rewards."""
        return (
            np.sign(rewards) if self.clip_rewards is True else np.clip(rewards, -self.clip_rewards, self.clip_rewards)
        )
