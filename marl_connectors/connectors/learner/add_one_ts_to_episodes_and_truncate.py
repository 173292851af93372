"""Gives each episode a step to be bootstrapped from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2
from marl_connectors.episodes.batch import EPISODES_OF_RUN, ColumnGroup, EpisodesOfRun
from marl_connectors.episodes.bootstrap_view import extended
from marl_connectors.errors import ConnectorError


class AddOneTsToEpisodesAndTruncate(ConnectorV2):
    """Lets pieces after it see every episode with one artificial step more, in which the last observation is repeated.

    The artificial step has the reward 0 and zeros for actions and module outputs. Episodes that have not ended are
    truncated there. What is written to real steps reaches the episodes themselves, which stay as long as they are.

    Writes ``loss_mask``, False for artificial steps. In columns there is nothing else to do: each episode's last
    observation has a row in any train batch. Stands first in a LearnerConnectorPipeline, and in PPO's it does. Keeps no
    state.
    """

    belongs_in = (LEARNER,)

    def on_columns(self, *, columns: ColumnGroup, shared_data: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Adds the mask, and lets later pieces that work on items see longer episodes."""
        rows = columns.rows
        if Columns.LOSS_MASK not in columns:
            columns[Columns.LOSS_MASK] = np.ones(len(rows), bool) if rows.acted is None else rows.acted.copy()
        if shared_data and EPISODES_OF_RUN in shared_data:
            shared_data[EPISODES_OF_RUN].extend()

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **common: Any) -> dict[str, Any]:
        """Called by hand. In a list, the episodes are replaced by views that are one step longer.

        Raises:
            ConnectorError: If the episodes stand in anything but a list.
        """
        if isinstance(episodes, EpisodesOfRun):
            episodes.extend()
        elif isinstance(episodes, list):
            episodes[:] = [extended(episode) for episode in episodes]
        else:
            raise ConnectorError(
                f"AddOneTsToEpisodesAndTruncate: the episodes must be in a list, so that longer ones can stand in it, "
                f"but {type(episodes).__name__} came. Pass list(episodes), or use a LearnerConnectorPipeline."
            )
        return super().__call__(batch=batch, episodes=episodes, **common)
