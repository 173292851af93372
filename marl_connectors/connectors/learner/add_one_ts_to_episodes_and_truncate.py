"""Adds an artificial step to each episode, whose value can be bootstrapped from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import RUN_EPISODES, ColumnGroup, RunEpisodes
from marl_connectors.episodes.bootstrap_view import extended
from marl_connectors.errors import ConnectorError


class AddOneTsToEpisodesAndTruncate(ConnectorV2):
    """Adds an artificial step to each episode, with the last observation repeated, for all later pieces.

    The artificial step has the reward 0, and zeros for actions and module outputs. Episodes that have not ended are
    truncated there. Later pieces that work on items get views of the episodes with this step. What they write to real
    steps reaches the episodes themselves, whose length does not change.

    Writes ``loss_mask``, False for artificial steps. Columns need nothing else, since each episode's last observation
    has a row in any train batch. It must be the first piece of a LearnerConnectorPipeline, as in PPO's default one.
    Keeps no state.
    """

    belongs_in = (LEARNER,)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the mask, and extends the episodes for later pieces that work on items."""
        rows = c.rows
        if Columns.LOSS_MASK not in c:
            c[Columns.LOSS_MASK] = np.ones(len(rows), bool) if rows.acted is None else rows.acted.copy()
        if RUN_EPISODES in c.shared_data:
            c.shared_data[RUN_EPISODES].extend()

    def __call__(self, *, batch: dict[str, Any], episodes: Sequence[Any], **common: Any) -> dict[str, Any]:
        """Replaces the episodes in a list by views that are one step longer, if the piece is called by hand.

        Raises:
            ConnectorError: If the episodes are not in a list.
        """
        if isinstance(episodes, RunEpisodes):
            episodes.extend()
        elif isinstance(episodes, list):
            episodes[:] = [extended(episode) for episode in episodes]
        else:
            raise ConnectorError(
                f"AddOneTsToEpisodesAndTruncate: expected a list of episodes, so that they can be replaced by longer "
                f"ones, got {type(episodes).__name__}. Pass list(episodes), or use a LearnerConnectorPipeline."
            )
        return super().__call__(batch=batch, episodes=episodes, **common)
