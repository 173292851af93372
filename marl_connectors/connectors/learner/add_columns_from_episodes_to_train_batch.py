"""Adds actions, rewards, flags and module outputs to the train batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import ColumnGroup

_NOT_OUTPUTS = (
    Columns.OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.T,
    Columns.ACTIONS_FOR_ENV,
    Columns.STATE_OUT,
    Columns.ENV_STATE,
)


class AddColumnsFromEpisodesToTrainBatch(ConnectorV2):
    """Adds ``actions``, ``rewards``, ``terminateds``, ``truncateds`` and all module outputs that the episodes keep.

    It leaves out ``state_out``, since states are large and AddStatesFromEpisodesToBatch adds those that are needed.
    Columns that are in the batch already stay as they are. A chunk that was cut is neither terminated nor truncated.

    Reads the episodes; writes these columns to the batch, ``[B, ...]`` each. Keeps no state.
    """

    belongs_in = (LEARNER,)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the columns. Their values in an episode's last row, which was not acted on, have no meaning."""
        rows = c.rows
        outputs = [name for name in rows.columns() if name not in _NOT_OUTPUTS]
        for name in (Columns.ACTIONS, Columns.REWARDS, *outputs):
            if name not in c:
                values = rows.get(name)
                c[name] = values.astype(np.float32) if name == Columns.REWARDS else values
        if Columns.TERMINATEDS not in c:
            c[Columns.TERMINATEDS] = rows.terminateds
        if Columns.TRUNCATEDS not in c:
            c[Columns.TRUNCATEDS] = rows.truncateds


AddColumnsFromEpisodesToBatch = AddColumnsFromEpisodesToTrainBatch
"""Its name in some of RLlib's documents."""
