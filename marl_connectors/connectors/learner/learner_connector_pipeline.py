"""The pipeline from episodes to a train batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.episodes.column_batch import ColumnBatch
from marl_connectors.episodes.extended_episodes import extended

EPISODES_OF_RUN = "episodes_of_run"
"""Key in ``shared_data``: the run's EpisodesOfRun."""


class EpisodesOfRun(Sequence[Any]):
    """The episodes that a learner pipeline's pieces get in one run: as they are, or with an artificial step each."""

    __slots__ = ("_episodes", "_extended", "_is_extended")

    def __init__(self, episodes: Sequence[Any]):
        self._episodes = episodes
        self._is_extended = False
        self._extended: list[Any] | None = None

    def extend(self) -> None:
        """From now on, every episode has one artificial step more. They are made when a piece looks at them."""
        self._is_extended = True

    def _shown(self) -> Sequence[Any]:
        if not self._is_extended:
            return self._episodes
        if self._extended is None:
            self._extended = [extended(episode) for episode in self._episodes]
        return self._extended

    def __len__(self) -> int:
        return len(self._episodes)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._shown()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._shown())


class LearnerConnectorPipeline(ConnectorPipelineV2):
    """From finished episodes, or chunks of them, to a train batch.

    Behind an AddOneTsToEpisodesAndTruncate, and for the length of one run, pieces that work on items see episodes that
    are one artificial step longer. The caller's episodes stay as they are.
    """

    in_learner_pipeline = True

    def run(
        self, batch: ColumnBatch, *, episodes: Sequence[Any], shared_data: dict[str, Any] | None = None, **common: Any
    ) -> ColumnBatch:
        """Runs all pieces, on columns where they can; see ``ConnectorPipelineV2.run``."""
        return super().run(batch, **_of_run(episodes, shared_data), **common)

    def __call__(
        self, *, episodes: Sequence[Any], shared_data: dict[str, Any] | None = None, **common: Any
    ) -> dict[str, Any]:
        """Runs all pieces on items; see ``ConnectorPipelineV2``."""
        return super().__call__(**_of_run(episodes, shared_data), **common)


def _of_run(episodes: Sequence[Any], shared_data: dict[str, Any] | None) -> dict[str, Any]:
    if not isinstance(episodes, EpisodesOfRun):  # an inner pipeline's episodes are those of the outer one
        episodes = EpisodesOfRun(episodes)
    shared_data = {} if shared_data is None else shared_data
    shared_data[EPISODES_OF_RUN] = episodes
    return {"episodes": episodes, "shared_data": shared_data}
