"""Adds returns-to-go to the train batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.learner.reward_transform import rewards_of_columns
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.ops.discounting import discounted_sums
from marl_connectors.validators import number

RETURNS_TO_GO = "returns_to_go"
"""Column ``[B]``: the discounted sum of the rewards from a step to the end of its episode or chunk."""


class ComputeReturnsToGo(ConnectorV2):
    """Adds ``returns_to_go``: at each step, the discounted sum of its own and all later rewards of its episode.

    The sum ends with the chunk, also if it was cut or truncated: nothing is bootstrapped. Reads the batch's ``rewards``
    or, if no piece has added them yet, those of the episodes. Writes ``returns_to_go`` to the batch, ``[B]`` float32.
    Keeps no state.

    Args:
        gamma: Discount per agent step, in [0, 1].
    """

    belongs_in = (LEARNER,)
    gamma: float = argument(number(min=0, max=1))

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the column for all episodes of a group at once."""
        rewards, acted = np.asarray(rewards_of_columns(c), np.float64), c.rows.acted
        rewards = rewards if acted is None else np.where(acted, rewards, 0.0)
        lengths = np.array(c.rows.counts)
        c[RETURNS_TO_GO] = discounted_sums(rewards[::-1], lengths[::-1], self.gamma)[::-1].astype(np.float32)
