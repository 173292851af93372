"""The sequences of rows in a train batch, for stateful modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.trees import tree_map
from marl_connectors.typing import Tree


class Sequences:
    """An index over rows: each sequence is a run of consecutive rows of one agent episode.

    Columns keep a row for each agent-step; a sequence is padded with zeros only when a module gets it
    (``PaddedColumns``).

    Attributes:
        starts: ``[S]`` the first row of each sequence.
        lengths: ``[S]`` the number of rows of each sequence, at least 1.
        counts: ``[E]`` the number of sequences of each agent episode.
        splits: Module ``i`` has sequences ``splits[i]:splits[i + 1]``.
        max_lens: The length to which the sequences of each module are padded.
        state_in: ``[S, ...]`` tree, the state before each sequence's first step; None until a piece has added it.
        to_column: A function that turns an array into the columns' type, an array or a tensor.
    """

    __slots__ = ("counts", "lengths", "max_lens", "splits", "starts", "state_in", "to_column")

    def __init__(
        self,
        starts: np.ndarray,
        lengths: np.ndarray,
        *,
        counts: np.ndarray,
        splits: tuple[int, ...],
        max_lens: tuple[int, ...],
        state_in: Tree | None = None,
        to_column: Callable[[np.ndarray], Any] = np.asarray,
    ):
        self.starts = starts
        self.lengths = lengths
        self.counts = counts
        self.splits = splits
        self.max_lens = max_lens
        self.state_in = state_in
        self.to_column = to_column

    @classmethod
    def of_rows(cls, counts: list[int], splits: tuple[int, ...], max_lens: tuple[int, ...]) -> Sequences:
        """Cuts each agent episode's rows into sequences of the greatest length; its last one may be shorter.

        Args:
            counts: The number of rows of each agent episode.
            splits: Module ``i`` has rows ``splits[i]:splits[i + 1]``.
            max_lens: The greatest length of a sequence of module ``i``.
        """
        rows = np.array(counts, np.int64)
        begins = np.cumsum(rows) - rows
        module_of = np.searchsorted(np.array(splits), begins, side="right") - 1
        longest = np.array(max_lens, np.int64)[module_of]
        number = -(-rows // longest)
        number_in_episode = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
        offsets = number_in_episode * np.repeat(longest, number)
        starts = np.repeat(begins, number) + offsets
        lengths = np.minimum(np.repeat(rows, number) - offsets, np.repeat(longest, number))
        bounds = tuple(np.searchsorted(starts, splits).tolist())
        return cls(starts, lengths, counts=number, splits=bounds, max_lens=max_lens)

    def __len__(self) -> int:
        return len(self.starts)

    def within(self, module: int) -> Any:
        """Returns ``[S, L]`` bool for a module's sequences, False after a sequence's end, in the columns' type."""
        begin, end = self.splits[module : module + 2]
        return self.to_column(np.arange(self.max_lens[module]) < self.lengths[begin:end, None])

    def with_states(self, state_in: Tree | None) -> Sequences:
        """Returns the same sequences with other states before their first steps."""
        return Sequences(
            self.starts,
            self.lengths,
            counts=self.counts,
            splits=self.splits,
            max_lens=self.max_lens,
            state_in=state_in,
            to_column=self.to_column,
        )

    def without(self, keep: np.ndarray) -> Sequences:
        """Returns the sequences of the rows that are left after others were dropped.

        Args:
            keep: ``[B]`` bool, False for dropped rows.
        """
        before = np.concatenate([[0], np.cumsum(keep)])
        lengths = before[self.starts + self.lengths] - before[self.starts]
        some = lengths > 0
        kept_before = np.concatenate([[0], np.cumsum(some)])
        ends = np.cumsum(self.counts)
        picked = np.flatnonzero(some)
        states = self.state_in
        return Sequences(
            before[self.starts][some],
            lengths[some],
            counts=kept_before[ends] - kept_before[ends - self.counts],
            splits=tuple(kept_before[list(self.splits)].tolist()),
            max_lens=self.max_lens,
            state_in=None if states is None else tree_map(lambda leaf: leaf[self.to_column(picked)], states),
            to_column=self.to_column,
        )

    def rows(self, which: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows of some sequences.

        Args:
            which: ``[N]`` the numbers of the sequences.
            length: The length to which they are padded.

        Returns:
            ``[N, length]`` rows (after a sequence's end, its first one) and ``[N, length]`` bool, False there.
        """
        within = np.arange(length) < self.lengths[which, None]
        starts = self.starts[which, None]
        return np.where(within, starts + np.arange(length), starts), within


class PaddedColumns(Mapping[str, Any]):
    """Columns as a stateful module gets them: ``[S, L, ...]``, with zeros after each sequence's end.

    ``state_in`` is ``[S, ...]``, ``seq_lens`` ``[S]`` and ``loss_mask`` ``[S, L]``, False where a step has no meaning.
    A column is only padded when somebody asks for it.
    """

    def __init__(
        self, columns: Mapping[str, Any], sequences: Sequences, module: int = 0, which: np.ndarray | None = None
    ):
        """Creates a view of one module's sequences.

        Args:
            columns: ``[B, ...]`` each, arrays or tensors.
            sequences: The sequences of all their rows.
            module: The module's number.
            which: ``[N]`` the numbers of the wanted sequences, in that order; None for all of the module's.
        """
        self._columns = columns
        self._sequences = sequences
        self._which = np.arange(*sequences.splits[module : module + 2]) if which is None else which
        self._rows, self._within = sequences.rows(self._which, sequences.max_lens[module])
        self._full = bool(self._within.all())
        self._filled: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._filled:
            self._filled[name] = self._fill(name)
        return self._filled[name]

    def _fill(self, name: str) -> Any:
        sequences = self._sequences
        if name == Columns.STATE_IN and sequences.state_in is not None:
            which = sequences.to_column(self._which)
            return tree_map(lambda leaf: leaf[which], sequences.state_in)
        if name == Columns.SEQ_LENS:
            return sequences.to_column(sequences.lengths[self._which])
        if name == Columns.LOSS_MASK and name not in self._columns:
            return sequences.to_column(self._within)
        column = self._columns[name]
        if isinstance(column, InfoColumn):
            return InfoColumn(column[i] for i in self._rows[self._within].tolist())
        return tree_map(self._padded, column)

    def _padded(self, leaf: Any) -> Any:
        padded = leaf[self._row_index]
        if not self._full:
            padded[self._padding] = 0
        return padded

    @cached_property
    def _row_index(self) -> Any:
        return self._sequences.to_column(self._rows)

    @cached_property
    def _padding(self) -> Any:
        return self._sequences.to_column(~self._within)

    def __contains__(self, name: object) -> bool:
        own = (Columns.SEQ_LENS, Columns.LOSS_MASK)
        return name in self._columns or name in own or (name == Columns.STATE_IN and self._has_states)

    @property
    def _has_states(self) -> bool:
        return self._sequences.state_in is not None

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self._columns if name != Columns.LOSS_MASK)
        yield from (Columns.LOSS_MASK, Columns.SEQ_LENS)
        if self._has_states:
            yield Columns.STATE_IN

    def __len__(self) -> int:
        return sum(1 for _ in self)


def unpadded(column: Any, within: Any) -> Any:
    """Turns ``[S, L, ...]`` into ``[B, ...]`` again, without the padding (where ``within`` is False)."""
    return column if isinstance(column, InfoColumn) else tree_map(lambda leaf: leaf[within], column)
