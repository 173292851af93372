"""Puts info dicts into the train batch."""

from __future__ import annotations

from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2
from marl_connectors.episodes.batch import ColumnGroup


class AddInfosFromEpisodesToTrainBatch(ConnectorV2):
    """Adds ``infos``, a list with the info dict that came with each row's observation, unless a piece has done so.

    The column stays a list of dicts throughout: no array or tensor is made of it. Of all built-in pieces in columns it
    is the only one that costs Python for each row. Keeps no state.
    """

    belongs_in = (LEARNER,)

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Reads the info dicts of the rows."""
        if Columns.INFOS not in columns:
            columns[Columns.INFOS] = columns.rows.get(Columns.INFOS)
