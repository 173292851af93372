"""Adds observations to the batch."""

from __future__ import annotations

from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import InBothPipelines
from marl_connectors.episodes.batch import ColumnGroup


class AddObservationsFromEpisodesToBatch(InBothPipelines):
    """Adds ``obs``, unless an earlier piece has done so.

    Before a forward pass, it adds the newest observation of each acting agent. For a train batch, it adds all
    observations that were acted on: two episodes of 10 and 20 steps make 30 rows, and 32 after
    AddOneTsToEpisodesAndTruncate. The pipeline, or ``as_learner_connector``, decides which of the two.

    Reads ``obs`` of the episodes; writes ``obs`` to the batch. Keeps no state.
    """

    puts_observations_in_batch = True

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Reads the observations of the rows."""
        if Columns.OBS not in c:
            c[Columns.OBS] = c.rows.get(Columns.OBS)
