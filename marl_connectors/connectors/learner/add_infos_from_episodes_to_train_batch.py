"""Adds info dicts to the train batch."""

from __future__ import annotations

from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import ColumnGroup


class AddInfosFromEpisodesToTrainBatch(ConnectorV2):
    """Adds ``infos``, a list with the info dict of each row's observation, unless an earlier piece has done so.

    The column stays a list of dicts: it is never converted to an array or tensor. This piece is the only built-in one
    that runs Python code for each row. Reads ``infos`` of the episodes; writes ``infos`` to the batch. Keeps no state.
    """

    belongs_in = (LEARNER,)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the info dicts of the rows."""
        if Columns.INFOS not in c:
            c[Columns.INFOS] = c.rows.get(Columns.INFOS)
