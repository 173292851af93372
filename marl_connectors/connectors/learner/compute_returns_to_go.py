"""Adds returns-to-go to the train batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.learner.reward_transform import checked_gamma, rewards_of_columns
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.ops.discounting import discounted_sums

RETURNS_TO_GO = "returns_to_go"
"""Column ``[B]``: the discounted sum of the rewards from a step to the end of its episode or chunk."""


class ComputeReturnsToGo(ConnectorV2):
    """Adds ``returns_to_go``: at each step, the discounted sum of its own and all later rewards of its episode.

    The sum ends with the chunk, also if it was cut or truncated: nothing is bootstrapped. Reads the batch's ``rewards``
    or, if no piece has added them yet, those of the episodes. Writes ``returns_to_go`` to the batch, ``[B]`` float32.
    Keeps no state.
    """

    belongs_in = (LEARNER,)

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        gamma: float,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            gamma: Discount per agent step, in [0, 1].

        Raises:
            ConfigError: If ``gamma`` is not in [0, 1].
        """
        super().__init__(input_observation_space, input_action_space)
        self.gamma = checked_gamma("ComputeReturnsToGo", gamma)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the column for all episodes of a group at once."""
        rewards, acted = np.asarray(rewards_of_columns(c), np.float64), c.rows.acted
        rewards = rewards if acted is None else np.where(acted, rewards, 0.0)
        lengths = np.array(c.rows.counts)
        c[RETURNS_TO_GO] = discounted_sums(rewards[::-1], lengths[::-1], self.gamma)[::-1].astype(np.float32)
