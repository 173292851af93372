"""Train batches in shuffled pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from marl_connectors.columns import Columns
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.info_column import InfoColumn
from marl_connectors.episodes.sequences import PaddedColumns, Sequences
from marl_connectors.errors import did_you_mean
from marl_connectors.rl_module.bucket import Bucket
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID


class _Epoch:
    """All columns of some modules in one epoch's order; a column is only brought into it when somebody asks for it."""

    def __init__(self, columns: Mapping[str, Any], order: torch.Tensor):
        self.columns = columns
        self._order = order
        self._gathered: dict[str, Any] = {}

    def column(self, name: str) -> Any:
        if name not in self.columns:
            raise _missing(name, self.columns)
        if name not in self._gathered:
            self._gathered[name] = tree_map(
                lambda leaf: leaf.index_select(0, self._order.to(leaf.device)), self.columns[name]
            )
        return self._gathered[name]


class _EpochOfSequences:
    """The same for a stateful module: its sequences in the epoch's order, filled up with zeros."""

    def __init__(self, group: ColumnGroup, sequences: Sequences, module: int, order: np.ndarray):
        self.columns = PaddedColumns(group, sequences, module, order)
        self._begins = np.concatenate([[0], np.cumsum(sequences.lengths[order])])

    def infos(self, column: InfoColumn, begin: int, end: int) -> InfoColumn:
        """The info dicts of some of the sequences: one a step, without padding."""
        return column[self._begins[begin] : self._begins[end]]

    def column(self, name: str) -> Any:
        if name not in self.columns:
            raise _missing(name, self.columns)
        return self.columns[name]


def _missing(name: str, columns: Mapping[str, Any]) -> KeyError:
    return KeyError(
        f"the train batch has no column {name!r}, which the loss reads. Add the learner connector piece that "
        f"makes it, such as GeneralAdvantageEstimation. {did_you_mean(name, columns)}"
    )


class MiniBatchColumns(Mapping[str, Any]):
    """The columns of one minibatch: ``[B, ...]`` for one module, ``[M, B, ...]`` for a stacked bucket.

    For a stateful module they are sequences, ``[S, L, ...]``; ``loss_mask`` is False where a step means nothing. Info
    dicts are a flat list then: those of the first sequence's ``seq_lens[0]`` steps, of the second one's, and so on.
    """

    __slots__ = ("_begin", "_end", "_epoch", "_stack")

    def __init__(self, epoch: _Epoch | _EpochOfSequences, begin: int, end: int, stack: int | None):
        self._epoch = epoch
        self._begin = begin
        self._end = end
        self._stack = stack

    def __getitem__(self, name: str) -> Any:
        column = self._epoch.column(name)
        if isinstance(column, InfoColumn) and isinstance(self._epoch, _EpochOfSequences):
            return self._epoch.infos(column, self._begin, self._end)
        return self._part(column) if type(column) is torch.Tensor else tree_map(self._part, column)

    def _part(self, leaf: torch.Tensor) -> torch.Tensor:
        part = leaf[self._begin : self._end]
        return part if self._stack is None else part.unflatten(0, (self._stack, -1))

    def __contains__(self, name: object) -> bool:
        return name in self._epoch.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._epoch.columns)

    def __len__(self) -> int:
        return len(self._epoch.columns)


class MemberColumns(Mapping[str, Any]):
    """One module's part of the columns of a stacked bucket: ``[B, ...]`` of ``[M, B, ...]``."""

    __slots__ = ("_columns", "_index")

    def __init__(self, columns: Mapping[str, Any], index: int):
        self._columns = columns
        self._index = index

    def __getitem__(self, name: str) -> Any:
        return tree_map(lambda leaf: leaf[self._index], self._columns[name])

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


@dataclass(slots=True)
class MiniBatch:
    """A piece of one module's train batch, or of those of all modules in a bucket.

    Attributes:
        module_ids: Whose rows these are.
        columns: ``[B, ...]`` each, or ``[M, B, ...]`` if ``is_stacked``; of a stateful module ``[S, L, ...]``.
        is_stacked: Whether the columns have a first axis for the modules.
        size: ``B``; of a stateful module, how many steps of its sequences count (``loss_mask``).
    """

    module_ids: tuple[ModuleID, ...]
    columns: MiniBatchColumns
    is_stacked: bool
    size: int


def minibatches_of_epoch(
    group: ColumnGroup,
    bucket: Bucket | None,
    *,
    size_of: Callable[[ModuleID], int | None],
    shuffle: Callable[[ModuleID, int], np.ndarray] | None,
) -> Iterator[MiniBatch]:
    """Every row of every module once, in minibatches.

    A module's rows are dealt out evenly: ``ceil(rows / size)`` minibatches whose sizes differ by at most one, so no
    row is left out and none is in a tiny minibatch. Each module has its own number of them. Modules of a bucket with
    equally many rows go through together, stacked. A stateful module's sequences are dealt out whole, so that each
    minibatch has about as many steps as the others; those of which ``loss_mask`` leaves no step are left out.

    Args:
        group: The train batch, in tensors.
        bucket: The bucket of exactly the group's modules, if they may run stacked.
        size_of: A module's minibatch size; None for all rows at once.
        shuffle: ``(module_id, rows)`` to a permutation of ``range(rows)``; None to keep the order. Of a stateful
            module, sequences are permuted.
    """
    ids, splits = group.module_ids, group.splits
    if group.sequences is not None:
        for i, module_id in enumerate(ids):
            yield from _dealt_in_sequences(group, group.sequences, i, size_of(module_id), shuffle)
        return
    sizes = {size_of(module_id) for module_id in ids}
    if bucket is not None and group.rows_per_module is not None and len(sizes) == 1:
        yield from _dealt(group, ids, splits[:-1], group.rows_per_module, sizes.pop(), shuffle)
        return
    for module_id, begin, end in zip(ids, splits, splits[1:], strict=False):
        yield from _dealt(group, (module_id,), (begin,), end - begin, size_of(module_id), shuffle)


def _dealt(
    group: ColumnGroup,
    module_ids: tuple[ModuleID, ...],
    offsets: tuple[int, ...],
    rows: int,
    size: int | None,
    shuffle: Callable[[ModuleID, int], np.ndarray] | None,
) -> Iterator[MiniBatch]:
    if not rows:
        return
    orders = np.stack(
        [
            offset + (np.arange(rows) if shuffle is None else shuffle(m, rows))
            for m, offset in zip(module_ids, offsets, strict=True)
        ]
    )
    number = math.ceil(rows / size) if size else 1
    bounds = [rows * i // number for i in range(number + 1)]
    pieces = [orders[:, begin:end].reshape(-1) for begin, end in itertools.pairwise(bounds)]
    epoch = _Epoch(group, torch.from_numpy(np.concatenate(pieces)))
    count = len(module_ids)
    for begin, end in itertools.pairwise(bounds):
        columns = MiniBatchColumns(epoch, count * begin, count * end, count if count > 1 else None)
        yield MiniBatch(module_ids, columns, count > 1, end - begin)


def _dealt_in_sequences(
    group: ColumnGroup,
    sequences: Sequences,
    module: int,
    size: int | None,
    shuffle: Callable[[ModuleID, int], np.ndarray] | None,
) -> Iterator[MiniBatch]:
    module_id = group.module_ids[module]
    begin, end = sequences.splits[module : module + 2]
    lengths = _counted_steps(group, sequences)
    own = begin + np.flatnonzero(lengths[begin:end])
    if not len(own):
        return
    order = own if shuffle is None else own[shuffle(module_id, len(own))]
    steps = np.concatenate([[0], np.cumsum(lengths[order])])
    number = min(math.ceil(int(steps[-1]) / size) if size else 1, len(order))
    # Each minibatch ends with the sequence that brings it nearest to its share of the steps, and has at least one.
    ends = np.searchsorted(steps, steps[-1] * np.arange(1, number) / number - lengths[own].mean() / 2)
    ends = np.maximum.accumulate(np.maximum(ends, 1) - np.arange(number - 1)) + np.arange(number - 1)
    ends = np.minimum(ends, len(order) - np.arange(number - 1, 0, -1))
    epoch = _EpochOfSequences(group, sequences, module, order)
    for first, last in itertools.pairwise([0, *ends.tolist(), len(order)]):
        columns = MiniBatchColumns(epoch, first, last, None)
        yield MiniBatch((module_id,), columns, False, int(steps[last] - steps[first]))


def _counted_steps(group: ColumnGroup, sequences: Sequences) -> np.ndarray:
    """``[S]`` how many steps of each sequence a loss is computed of."""
    mask = group.get(Columns.LOSS_MASK)
    if mask is None:
        return sequences.lengths
    before = np.concatenate([[0], np.cumsum(mask.cpu().numpy().astype(bool))])
    return before[sequences.starts + sequences.lengths] - before[sequences.starts]
