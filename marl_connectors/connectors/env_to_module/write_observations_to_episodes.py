"""Makes what is in the batch what the episodes hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ENV_TO_MODULE, ConnectorV2, item_key
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.trees import leaves


class WriteObservationsToEpisodes(ConnectorV2):
    """Writes the batch's ``obs`` over the newest observations of the episodes; the batch stays as it is.

    Stands after a piece that puts observations into the batch, and before AgentToModuleMapping. What it writes is what
    the learner gets. Keeps no state.
    """

    belongs_in = (ENV_TO_MODULE,)

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Writes all rows at once."""
        if Columns.OBS not in columns:
            raise _nothing()
        observations = columns[Columns.OBS]
        if any(not isinstance(leaf, np.ndarray) for leaf in leaves(observations)):
            raise ConnectorError(
                "WriteObservationsToEpisodes: 'obs' is no array any more. Put it before NumpyToTensor."
            )
        columns.rows.set(Columns.OBS, observations)

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Writes one episode after another. ``obs`` may also be a plain list with one item for each of them."""
        if Columns.OBS not in batch:
            raise _nothing()
        column = batch[Columns.OBS]
        own = list(self.single_agent_episode_iterator(episodes))
        if isinstance(column, dict):
            items = [column.get(item_key(episode), []) for episode in own]
            if sum(map(len, items)) != sum(map(len, column.values())) or any(len(each) != 1 for each in items):
                given = sum(map(len, column.values()))
                raise ConnectorError(
                    f"WriteObservationsToEpisodes: expected one item of 'obs' for each of {len(own)} acting agents, "
                    f"but there are {given}, under the keys {list(column)[:4]}. It stands in an env-to-module "
                    f"pipeline, before AgentToModuleMapping."
                )
            column = [item for each in items for item in each]
        if len(column) != len(own):
            raise ConnectorError(
                f"WriteObservationsToEpisodes: {len(column)} items of 'obs', but {len(own)} acting agents."
            )
        for episode, item in zip(own, column, strict=True):
            episode.set_observations(new_data=item, at_indices=-1)
        return batch


def _nothing() -> ConnectorError:
    return ConnectorError(
        "WriteObservationsToEpisodes: the batch has no 'obs'. Put AddObservationsFromEpisodesToBatch, or another piece "
        "that adds them, before it."
    )
