"""Adds the observation after each step to the train batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.trees import tree_map


class AddNextObservationsFromEpisodesToTrainBatch(ConnectorV2):
    """Adds ``new_obs``, the agent's next observation, unless an earlier piece has done so.

    Reads the episodes' observations, also if the batch's ``obs`` differs from them. In an episode's last row, which was
    not acted on, ``new_obs`` is the last observation itself. Writes ``new_obs`` to the batch. Keeps no state.
    """

    belongs_in = (LEARNER,)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the observations of the next rows."""
        if Columns.NEXT_OBS in c:
            return
        rows = c.rows
        if rows.acted is None or rows.acted.all():  # an earlier piece has dropped the rows of last observations
            c[Columns.NEXT_OBS] = rows.get(Columns.OBS, offset=1)
            return
        further = np.arange(len(rows)) + rows.acted
        c[Columns.NEXT_OBS] = tree_map(lambda leaf: leaf[further], rows.get(Columns.OBS))
