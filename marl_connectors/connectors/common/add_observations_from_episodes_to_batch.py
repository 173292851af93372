"""Puts observations into the batch."""

from __future__ import annotations

from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import InBothPipelines
from marl_connectors.episodes.batch import ColumnGroup


class AddObservationsFromEpisodesToBatch(InBothPipelines):
    """Adds ``obs``, unless a piece before has done so.

    Before a forward pass: the newest observation of each acting agent. For a train batch: all observations that were
    acted on. Two episodes of 10 and 20 steps make 30 rows, and 32 with AddOneTsToEpisodesAndTruncate before. Which of
    the two is told by the pipeline, or by ``as_learner_connector``. Keeps no state.
    """

    def __init__(
        self, input_observation_space=None, input_action_space=None, *, as_learner_connector: bool | None = None
    ):
        super().__init__(input_observation_space, input_action_space)
        self.as_learner_connector = as_learner_connector

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Reads the observations of the rows."""
        if Columns.OBS not in columns:
            columns[Columns.OBS] = columns.rows.get(Columns.OBS)
