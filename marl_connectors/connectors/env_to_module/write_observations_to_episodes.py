"""Writes the batch's observations back to the episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import ENV_TO_MODULE
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.trees import leaves


class WriteObservationsToEpisodes(ConnectorV2):
    """Replaces the newest observations of the episodes by the batch's ``obs``; the batch stays as it is.

    It must be after a piece that adds observations to the batch, and before AgentToModuleMapping. The learner gets the
    observations that it writes. Reads ``obs`` of the batch; writes ``obs`` to the episodes. Keeps no state.
    """

    belongs_in = (ENV_TO_MODULE,)

    def before_columns(self, groups: Sequence[ColumnGroup], rl_module: Any) -> None:
        """Checks that either all groups have observations or none has."""
        having = [group for group in groups if Columns.OBS in group]
        if having and len(having) < len(groups):
            given, wanted = (sum(len(group.rows) for group in some) for some in (having, groups))
            raise ConnectorError(
                f"WriteObservationsToEpisodes: expected one item of 'obs' for each of {wanted} acting agents, but "
                f"there are {given}. Put it into an env-to-module pipeline, before AgentToModuleMapping."
            )

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Writes all rows at once.

        Raises:
            ConnectorError: If the batch has no ``obs``, or ``obs`` has tensors.
        """
        if Columns.OBS not in c:
            raise _nothing()
        observations = c[Columns.OBS]
        if c.program is None and any(not isinstance(leaf, np.ndarray) for leaf in leaves(observations)):
            raise ConnectorError(
                "WriteObservationsToEpisodes: expected arrays in 'obs', got tensors. Put it before NumpyToTensor."
            )
        c.rows.set(Columns.OBS, observations)


def _nothing() -> ConnectorError:
    return ConnectorError(
        "WriteObservationsToEpisodes: the batch has no 'obs'. Put AddObservationsFromEpisodesToBatch, or another piece "
        "that adds them, before it."
    )
