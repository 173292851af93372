"""Puts info dicts into the train batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2
from marl_connectors.episodes.column_batch import ColumnGroup


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

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Reads the episodes' info dicts."""
        if Columns.INFOS in batch:
            return batch
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            steps = len(episode)
            if steps:
                self.add_n_batch_items(batch, Columns.INFOS, episode.get_infos(slice(0, steps)), steps, episode)
        return batch
