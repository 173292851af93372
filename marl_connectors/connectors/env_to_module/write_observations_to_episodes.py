"""Makes what is in the batch what the episodes hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ENV_TO_MODULE, ConnectorV2
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.trees import leaves


class WriteObservationsToEpisodes(ConnectorV2):
    """Writes the batch's ``obs`` over the newest observations of the episodes; the batch stays as it is.

    Stands after a piece that puts observations into the batch, and before AgentToModuleMapping. What it writes is what
    the learner gets. Keeps no state.
    """

    belongs_in = (ENV_TO_MODULE,)

    def before_columns(self, groups: Sequence[ColumnGroup], rl_module: Any) -> None:
        """Checks that there are observations for all, or for nobody."""
        having = [group for group in groups if Columns.OBS in group]
        if having and len(having) < len(groups):
            given, wanted = (sum(len(group.rows) for group in some) for some in (having, groups))
            raise ConnectorError(
                f"WriteObservationsToEpisodes: expected one item of 'obs' for each of {wanted} acting agents, but "
                f"there are {given}. It stands in an env-to-module pipeline, before AgentToModuleMapping."
            )

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


def _nothing() -> ConnectorError:
    return ConnectorError(
        "WriteObservationsToEpisodes: the batch has no 'obs'. Put AddObservationsFromEpisodesToBatch, or another piece "
        "that adds them, before it."
    )
