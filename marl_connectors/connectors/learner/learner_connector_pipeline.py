"""LearnerConnectorPipeline, the pipeline from episodes to a train batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import RUN_EPISODES, ColumnBatch, RunEpisodes


class LearnerConnectorPipeline(ConnectorPipelineV2):
    """Makes a train batch of finished episodes, or of chunks of them.

    During a run, pieces after AddOneTsToEpisodesAndTruncate that work on items get episodes with an additional
    artificial step. The caller's episodes stay as they are.
    """

    kind = LEARNER
    in_learner_pipeline = True

    def run(
        self, batch: ColumnBatch, *, episodes: Sequence[Any], shared_data: dict[str, Any] | None = None, **common: Any
    ) -> ColumnBatch:
        """Runs all pieces, on columns if they can; see ``ConnectorPipelineV2.run``."""
        return super().run(batch, **_of_run(episodes, shared_data), **common)

    def __call__(
        self, *, episodes: Sequence[Any], shared_data: dict[str, Any] | None = None, **common: Any
    ) -> dict[str, Any]:
        """Runs all pieces on items; see ``ConnectorPipelineV2``."""
        return super().__call__(**_of_run(episodes, shared_data), **common)


def _of_run(episodes: Sequence[Any], shared_data: dict[str, Any] | None) -> dict[str, Any]:
    if not isinstance(episodes, RunEpisodes):  # an inner pipeline gets the episodes of the outer one
        episodes = RunEpisodes(episodes)
    shared_data = {} if shared_data is None else shared_data
    shared_data[RUN_EPISODES] = episodes
    return {"episodes": episodes, "shared_data": shared_data}
