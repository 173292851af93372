"""The episodes of one run of a learner pipeline, which its pieces may see extended, or take some out of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from marl_connectors.connectors.item_keys import agent_episodes
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup, Phase
from marl_connectors.episodes.extended_episodes import extended, originals
from marl_connectors.episodes.info_column import InfoColumn
from marl_connectors.episodes.rows import whose
from marl_connectors.errors import ConnectorError
from marl_connectors.trees import tree_map

EPISODES_OF_RUN = "episodes_of_run"
"""Key in ``shared_data``: the run's EpisodesOfRun."""


class EpisodesOfRun(Sequence[Any]):
    """The episodes that a learner pipeline's pieces get in one run: as they are, or with an artificial step each.

    A piece that works on items may set others, ``episodes[:] = ...``: later pieces see these, the caller does not.

    Attributes:
        replaced: Whether a piece has done so.
    """

    __slots__ = ("_episodes", "_extended", "_is_extended", "replaced")

    def __init__(self, episodes: Sequence[Any]):
        self._episodes = episodes
        self._is_extended = False
        self._extended: list[Any] | None = None
        self.replaced = False

    def extend(self) -> None:
        """From now on, every episode has one artificial step more. They are made when a piece looks at them."""
        self._is_extended = True

    @property
    def unextended(self) -> Sequence[Any]:
        """The episodes as they are, which costs nothing."""
        return self._episodes

    def _shown(self) -> Sequence[Any]:
        if not self._is_extended:
            return self._episodes
        if self._extended is None:
            self._extended = [extended(episode) for episode in self._episodes]
        return self._extended

    def __len__(self) -> int:
        return len(self._episodes if self._extended is None else self._extended)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._shown()[index]

    def __setitem__(self, index: int | slice, value: Any) -> None:
        shown = list(self._shown())
        shown[index] = value
        if self._is_extended:
            self._extended = shown
        else:
            self._episodes = shown
        self.replaced = True

    def __iter__(self) -> Iterator[Any]:
        return iter(self._shown())


def without_taken_out(batch: ColumnBatch, episodes: Sequence[Any]) -> ColumnBatch:
    """The batch without the rows of episodes that a piece has taken out of the run.

    Raises:
        ConnectorError: If it has put others in.
    """
    if not isinstance(episodes, EpisodesOfRun) or not episodes.replaced or batch.phase is not Phase.ITEMS:
        return batch
    parts = originals(agent_episodes(episodes, stepped_only=False))
    left = {id(part) for part in parts}
    known = {id(episode) for group in batch.groups for episode in group.rows.episodes}
    for part in parts:
        if len(part) and id(part) not in known:
            raise ConnectorError(
                f"a piece has put {whose(part)} into the episodes, which is none of those that the batch is made of. "
                f"Take episodes out only, change their data in place, or run the pipeline on items."
            )
    groups = [_only(group, left) for group in batch.groups]
    return ColumnBatch([group for group in groups if len(group.rows)], batch.phase)


def _only(group: ColumnGroup, left: set[int]) -> ColumnGroup:
    """The rows of some agent episodes."""
    rows = group.rows
    keep = np.repeat([id(episode) in left for episode in rows.episodes], rows.counts)
    if keep.all():
        return group
    index = np.flatnonzero(keep)
    kept, sequences = rows.kept(index), group.sequences
    present = [begin < end for begin, end in itertools.pairwise(kept.splits)]
    kept.module_ids = tuple(itertools.compress(kept.module_ids, present))
    kept.splits = (0, *itertools.compress(kept.splits[1:], present))
    sizes = set(np.diff(kept.splits).tolist())
    kept.rows_per_module = sizes.pop() if len(sizes) == 1 else None
    own = ColumnGroup(kept)
    own.action_dist_cls, own.holders = group.action_dist_cls, group.holders
    for name, column in group.items():
        own[name] = tree_map(
            lambda leaf: InfoColumn(leaf[i] for i in index.tolist()) if isinstance(leaf, InfoColumn) else leaf[index],
            column,
        )
    if sequences is not None:
        own.sequences = sequences.without(keep)
        own.sequences.counts = own.sequences.counts[own.sequences.counts > 0]
        own.sequences.splits = (0, *itertools.compress(own.sequences.splits[1:], present))
        own.sequences.max_lens = tuple(itertools.compress(own.sequences.max_lens, present))
    return own
