"""RewardTransform, the base of pieces that change the rewards of a train batch, and helpers for such pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import ColumnGroup

REWARD_CHANGES = "reward_changes"
"""Key in ``shared_data``: ``{piece: its changed()}`` of the pieces that have changed the batch's rewards, in their
order."""


class RewardTransform(ConnectorV2):
    """Base class of pieces that change each reward of the train batch independently of the others.

    Reads the batch's ``rewards`` or, if no piece has added them yet, those of the episodes. Writes ``rewards`` to the
    batch. The episodes, and so the reported returns, keep the environment's rewards. Targets from a replay buffer that
    add up several rewards change each of them.
    """

    belongs_in = (LEARNER,)

    def changed(self, rewards: Any) -> Any:
        """Returns the new rewards for ``[B]`` rewards or for a single one."""
        raise NotImplementedError(f"{type(self).__name__}: override changed(rewards).")

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Changes the rewards of all rows of a group at once."""
        c.shared_data.setdefault(REWARD_CHANGES, {})[self] = self.changed
        c[Columns.REWARDS] = self.changed(rewards_of_columns(c))


def rewards_of_columns(columns: ColumnGroup) -> Any:
    """Returns ``[B]`` rewards of the batch or, if it has none, those of the trajectories as float32."""
    if Columns.REWARDS in columns:
        return columns[Columns.REWARDS]
    return columns.rows.get(Columns.REWARDS).astype(np.float32)
