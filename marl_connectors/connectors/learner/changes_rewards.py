"""What the pieces that read or change the rewards of a train batch have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2
from marl_connectors.episodes.batch import ColumnGroup


class ChangesRewards(ConnectorV2):
    """Base of pieces that change ``rewards`` in the train batch, one by one.

    Reads the batch's rewards or, where no piece has added them yet, those of the episodes. The episodes, and so the
    reported returns, keep the environment's rewards.
    """

    belongs_in = (LEARNER,)

    def changed(self, rewards: Any) -> Any:
        """The new rewards for ``[B]`` old ones, or for one."""
        raise NotImplementedError(f"{type(self).__name__}: override changed(rewards).")

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Works on all rows of a group at once."""
        columns[Columns.REWARDS] = self.changed(rewards_of_columns(columns))


def rewards_of_columns(columns: ColumnGroup) -> Any:
    """``[B]`` the batch's rewards or, without any, the trajectories' as float32."""
    if Columns.REWARDS in columns:
        return columns[Columns.REWARDS]
    return columns.rows.get(Columns.REWARDS).astype(np.float32)
