"""Splits the train batch into minibatches, and selects the rows that count in the loss.

Every module has its own number of minibatches, and minibatches of several modules may be stacked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.sequences import PaddedColumns, Sequences
from marl_connectors.errors import did_you_mean
from marl_connectors.rl_module.stacking import SPARE_ROWS, each_leaf
from marl_connectors.transfers import all_moved, all_on_host, moved
from marl_connectors.trees import leaves
from marl_connectors.typing import ModuleID


class CountedRows:
    """Selects the rows that are part of the loss: ``[R]``, or ``[M, R]`` for ``M`` stacked modules.

    If a module has fewer than ``R`` rows, copies of its rows with weight 0 are added. So values in the padding, even
    NaN, affect neither a loss nor a gradient.

    Attributes:
        weights: ``[M, R]``, the weight of each row in its module's mean; None if all rows have the same weight.
    """

    __slots__ = ("_index", "_num_axes", "_shape", "weights")

    def __init__(self, weights: Tensor | None = None, index: Tensor | None = None, num_axes: int = 1, stacked: int = 0):
        """Selects rows.

        Args:
            weights: As above.
            index: The positions of the rows after the first ``num_axes`` axes are flattened, module by module; None if
                the columns hold exactly these rows.
            num_axes: The number of axes of a column before those of a row.
            stacked: The number of modules if the first axis is theirs, else 0.
        """
        self.weights = weights
        self._index = index
        self._num_axes = num_axes
        self._shape = (stacked, -1) if stacked else None

    @classmethod
    def of_mask(cls, mask: np.ndarray, *, stacked: int = 0, device: torch.device | str = "cpu") -> CountedRows:
        """Selects the rows for which a mask is True, at least one of each module.

        Args:
            mask: ``[B]`` or ``[S, T]`` bool; with ``stacked`` modules, ``[M, B]`` or ``[M, S, T]``.
            stacked: The number of modules if the first axis is theirs, else 0.
            device: The device of the columns.
        """
        flat = mask.reshape(max(stacked, 1), -1)
        counts = flat.sum(1)
        longest = int(counts.max())
        places = np.argsort(~flat, axis=1, kind="stable")[:, :longest]
        real = np.arange(longest) < counts[:, None]
        places = np.where(real, places, places[:, :1]) + np.arange(len(flat))[:, None] * flat.shape[1]
        weights = [] if real.all() else [(real / counts[:, None]).astype(np.float32)]
        index, *found = all_moved([places.reshape(-1), *weights], torch.device(device))
        return cls(found[0] if found else None, index, mask.ndim, stacked)

    @classmethod
    def of(cls, batch: Mapping[str, Any], *, stacked: int = 0) -> CountedRows:
        """Selects the rows of a batch that count: those of ``loss_mask`` if the batch has one, else all."""
        known = getattr(batch, "counted_rows", None)
        if known is not None:
            return known
        if Columns.LOSS_MASK not in batch:
            return cls()
        mask = batch[Columns.LOSS_MASK]
        return cls.of_mask(all_on_host([mask])[0].numpy().astype(bool), stacked=stacked, device=mask.device)

    def pick(self, column: Any) -> Any:
        """Returns the rows of a column (or a tree of columns) that count, ``[R, ...]`` or ``[M, R, ...]``."""
        return column if self._index is None else each_leaf(column, self._pick)

    def _pick(self, leaf: Tensor) -> Tensor:
        assert self._index is not None
        picked = leaf.flatten(0, self._num_axes - 1).index_select(0, self._index)
        return picked if self._shape is None else picked.unflatten(0, self._shape)

    def mean(self, values: Tensor) -> Tensor:
        """Returns the mean of values that ``pick`` returned: a scalar, or ``[M]``."""
        return values.mean(-1) if self.weights is None else (values * self.weights).sum(-1)


class EpochRows:
    """All columns of some modules in the order of one epoch, of which each minibatch is a slice.

    A column is put into that order when it is first read.
    """

    def __init__(self, group: ColumnGroup, order: np.ndarray, real: np.ndarray | None):
        """Sets the order.

        Args:
            group: The train batch.
            order: ``[N]`` rows, minibatch after minibatch.
            real: ``[N]`` bool, False for rows of padding; None if there are none.
        """
        self._group = group
        self._order = torch.from_numpy(order)
        self._real = real
        first = next(column for column in group.values() if not isinstance(column, InfoColumn))
        self._device = (first if type(first) is Tensor else leaves(first)[0]).device
        size = group.splits[-1]
        self._is_as_given = len(order) == size and bool((order == np.arange(size)).all())
        self._gathered: dict[str, Any] = {}

    @cached_property
    def _on_device(self) -> list[Tensor]:
        """The order and, if there are rows of padding, ``real``."""
        return all_moved([self._order.numpy(), *([] if self._real is None else [self._real])], self._device)

    def names(self) -> list[str]:
        """Returns the names of all columns."""
        return [*self._group, *([Columns.LOSS_MASK] if self._has_own_mask else [])]

    @property
    def _has_own_mask(self) -> bool:
        return self._real is not None and Columns.LOSS_MASK not in self._group

    def __contains__(self, name: object) -> bool:
        return name in self._group or (name == Columns.LOSS_MASK and self._has_own_mask)

    def column(self, name: str) -> Any:
        """Returns a column, ``[N, ...]``."""
        if name not in self:
            raise _missing(name, self._group)
        if name not in self._gathered:
            self._gathered[name] = self._gather(name)
        return self._gathered[name]

    def _gather(self, name: str) -> Any:
        if name == Columns.LOSS_MASK and self._real is not None:  # rows that do not count are in no minibatch
            return self._on_device[1]
        column = self._group[name]
        if isinstance(column, InfoColumn):
            return column.index_select(0, self._order)
        if self._is_as_given:  # a copy takes less time than a selection
            return each_leaf(column, torch.clone)
        order = self._on_device[0]
        return each_leaf(column, lambda leaf: leaf.index_select(0, order))

    def infos(self, column: InfoColumn, begin: int, end: int, stacked: int) -> InfoColumn | list[InfoColumn]:
        """Returns the info dicts of a minibatch, in a list for each module if there are several."""
        infos = column[begin:end]
        return infos.unflatten(0, (stacked, -1)) if stacked else infos

    def counted_rows(self, begin: int, end: int, stacked: int) -> CountedRows:
        """Returns the rows of a minibatch that count."""
        if self._real is None or not stacked:
            return CountedRows()
        real = self._real[begin:end].reshape(stacked, -1)
        if real.all():
            return CountedRows()
        counts = self._on_device[1][begin:end].view(stacked, -1).float()
        return CountedRows(counts / counts.sum(1, keepdim=True))


class EpochSequences:
    """All columns of stateful modules in the order of one epoch: their sequences, padded with zeros.

    Sequences that pad a stack are copies whose ``loss_mask`` is False throughout.
    """

    def __init__(
        self, group: ColumnGroup, sequences: Sequences, module: int, order: np.ndarray, real: np.ndarray | None
    ):
        """Sets the order.

        Args:
            group: The train batch.
            sequences: The sequences of its rows.
            module: The index of one of the modules, which all have the same ``max_seq_len``.
            order: ``[N]`` sequences, minibatch after minibatch.
            real: ``[N]`` bool, False for sequences of padding; None if there are none.
        """
        self._columns = PaddedColumns(group, sequences, module, order)
        self._real = real
        self._begins = np.concatenate([[0], np.cumsum(sequences.lengths[order])])
        rows, self._counted = sequences.rows(order, sequences.max_lens[module])
        if Columns.LOSS_MASK in group:
            self._counted = self._counted & all_on_host([group[Columns.LOSS_MASK]])[0].numpy().astype(bool)[rows]
        if real is not None:
            self._counted = self._counted & real[:, None]

    def names(self) -> list[str]:
        """Returns the names of all columns."""
        return list(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def column(self, name: str) -> Any:
        """Returns a column, ``[N, L, ...]``; for states before the first steps and for lengths, ``[N, ...]``."""
        if name not in self._columns:
            raise _missing(name, self._columns)
        column = self._columns[name]
        if name == Columns.LOSS_MASK and self._real is not None:
            return moved(self._counted, column.device)
        return column

    def infos(self, column: InfoColumn, begin: int, end: int, stacked: int) -> InfoColumn:
        """Returns the info dicts of some of the sequences: one for each step, without padding."""
        if stacked:
            raise KeyError(
                "the sequences of several modules at once have no 'infos'. Override compute_loss_for_module only, so "
                "that modules are updated one after another, or set .learners(stack_modules=False)."
            )
        return column[self._begins[begin] : self._begins[end]]

    def counted_rows(self, begin: int, end: int, stacked: int) -> CountedRows:
        """Returns the rows of a minibatch that count."""
        mask = self._counted[begin:end]
        device = self._columns[Columns.LOSS_MASK].device
        if stacked:
            mask = mask.reshape(stacked, -1, mask.shape[1])
        return CountedRows.of_mask(mask, stacked=stacked, device=device)


def _missing(name: str, columns: Mapping[str, Any]) -> KeyError:
    return KeyError(
        f"the train batch has no column {name!r}, which the loss reads. Add the learner connector piece that "
        f"makes it, such as GeneralAdvantageEstimation. {did_you_mean(name, columns)}"
    )


class MiniBatchColumns(Mapping[str, Any]):
    """The columns of one minibatch: ``[B, ...]`` for one module, ``[M, B, ...]`` for stacked modules.

    For stateful modules they are sequences, ``[S, L, ...]`` or ``[M, S, L, ...]``. ``loss_mask`` is False for padding,
    if there is any. Info dicts of sequences are a flat list: those of the first sequence's ``seq_lens[0]`` steps, then
    those of the second sequence, and so on.
    """

    __slots__ = ("_begin", "_counted", "_end", "_epoch", "_stack")

    def __init__(self, epoch: EpochRows | EpochSequences, begin: int, end: int, stack: int):
        """Selects a slice of an epoch.

        Args:
            epoch: The columns of the epoch.
            begin: The first row or sequence.
            end: The row or sequence after the last one.
            stack: The number of stacked modules, whose rows stand one module after another; 0 for a single module.
        """
        self._epoch = epoch
        self._begin = begin
        self._end = end
        self._stack = stack
        self._counted: CountedRows | None = None

    @property
    def counted_rows(self) -> CountedRows:
        """The rows that a loss is computed from."""
        if self._counted is None:
            self._counted = self._epoch.counted_rows(self._begin, self._end, self._stack)
        return self._counted

    def __getitem__(self, name: str) -> Any:
        column = self._epoch.column(name)
        if isinstance(column, InfoColumn):
            return self._epoch.infos(column, self._begin, self._end, self._stack)
        return each_leaf(column, self._part)

    def get(self, name: str, default: Any = None) -> Any:
        """Returns a column; ``default`` if there is none. It costs no search for columns with similar names."""
        return self[name] if name in self else default  # noqa: SIM401

    def _part(self, leaf: Tensor) -> Tensor:
        part = leaf[self._begin : self._end]
        return part.view(self._stack, -1, *part.shape[1:]) if self._stack else part

    def __contains__(self, name: object) -> bool:
        return name in self._epoch

    def __iter__(self) -> Iterator[str]:
        return iter(self._epoch.names())

    def __len__(self) -> int:
        return len(self._epoch.names())


Shuffle = Callable[[ModuleID, int], np.ndarray]
"""A function from ``(module_id, rows)`` to a permutation of ``range(rows)``."""


class ModuleRows(NamedTuple):
    """The rows of a module that count in its loss. For a stateful module, these are sequences with such rows.

    Attributes:
        own: ``[n]`` the rows or sequences in this learner's column group.
        number: The number ``N`` of rows or sequences of all learners.
        lengths: ``[N]`` the number of rows of each sequence that count; None without sequences.
        max_len: The length to which sequences are padded; None without sequences.
        positions: ``[n]`` the positions of ``own`` among the ``N`` rows or sequences; None if there is one learner.
    """

    own: np.ndarray
    number: int
    lengths: np.ndarray | None = None
    max_len: int | None = None
    positions: np.ndarray | None = None


class GroupRows(NamedTuple):
    """The rows of the modules of a column group that count in their losses.

    Attributes:
        modules: The rows of each module, in the order of the group.
        columns: The columns of this learner's rows; None if only other learners have rows.
    """

    modules: Mapping[ModuleID, ModuleRows]
    columns: ColumnGroup | None

    @property
    def module_ids(self) -> tuple[ModuleID, ...]:
        """The modules, in order."""
        return tuple(self.modules)

    @classmethod
    def of(cls, group: ColumnGroup) -> GroupRows:
        """Returns the rows of a group that count, for a single learner."""
        sequences = group.sequences
        lengths = None if sequences is None else _counted_steps(group, sequences)
        splits = group.splits if sequences is None else sequences.splits
        counts = _counting_rows(group) if lengths is None else lengths > 0
        modules = {}
        for i, (module_id, (begin, end)) in enumerate(zip(group.module_ids, itertools.pairwise(splits), strict=True)):
            own = np.arange(begin, end) if counts is None else begin + np.flatnonzero(counts[begin:end])
            if sequences is None or lengths is None:
                modules[module_id] = ModuleRows(own, len(own))
            else:
                modules[module_id] = ModuleRows(own, len(own), lengths[own], sequences.max_lens[i])
        return cls(modules, group)


@dataclass(slots=True)
class MiniBatch:
    """Rows of one module's train batch, or of the train batches of several modules of a bucket.

    If several learners update the modules together, each has some of the rows, or none.

    Attributes:
        module_ids: The modules that this learner's rows belong to.
        columns: ``[B, ...]`` each, or ``[M, B, ...]`` if ``is_stacked``; for stateful modules ``[S, L, ...]``. Empty
            without rows.
        sizes: The number of rows (or steps) of each module that count.
        of_all: The modules that the rows of all learners belong to, and the number of rows (or steps) that count.
    """

    module_ids: tuple[ModuleID, ...]
    columns: Mapping[str, Any]
    sizes: tuple[int, ...]
    of_all: Mapping[ModuleID, int]

    @property
    def is_stacked(self) -> bool:
        """Whether the columns have a first axis for the modules."""
        return len(self.module_ids) > 1

    @property
    def size(self) -> int:
        """The number of rows (or steps) that count."""
        return sum(self.sizes)

    @property
    def weights(self) -> list[float] | None:
        """The share of each module's rows that this learner has; None if it has all rows."""
        found = [size / self.of_all[m] for m, size in zip(self.module_ids, self.sizes, strict=True)]
        return None if set(found) == {1.0} else found


@dataclass(slots=True)
class _Share:
    """The rows of one module in an epoch, and their division into minibatches.

    Attributes:
        module_id: The module.
        order: ``[n]`` this learner's rows or sequences.
        bounds: Minibatch ``i`` has ``order[bounds[i]:bounds[i + 1]]``.
        lengths: The number of rows or sequences of each minibatch, of all learners.
        sizes: The number of rows or steps of each minibatch that count, of all learners.
        own_sizes: The number of those that this learner has.
        max_len: The length to which sequences are padded; None without sequences.
    """

    module_id: ModuleID
    order: np.ndarray
    bounds: list[int]
    lengths: list[int]
    sizes: list[int]
    own_sizes: list[int]
    max_len: int | None

    def __len__(self) -> int:
        return len(self.sizes)


def minibatches_of_epoch(
    rows: GroupRows,
    stacks: Sequence[Sequence[ModuleID]] = (),
    *,
    size_of: Callable[[ModuleID], int | None],
    shuffle: Shuffle | None,
    only: Collection[ModuleID] | None = None,
) -> Iterator[MiniBatch]:
    """Yields every row of every module once, in minibatches.

    A module's rows are divided evenly, into ``ceil(rows / size)`` minibatches whose sizes differ by at most one. So no
    row is left out, and no minibatch is tiny. Each module has its own number of minibatches, so no module is trained
    more often because another has more rows. The sequences of a stateful module are not divided, and each minibatch has
    about as many steps as the others. Rows for which ``loss_mask`` is False, and sequences without other rows, are in
    no minibatch.

    The first minibatches of modules that may be stacked are computed together, then the second ones, and so on. A
    module without further minibatches takes no part in the rest. Shorter minibatches are padded to the longest. If the
    padding would cost more than stacking saves, they are computed separately.

    The minibatches depend on the rows of all learners, so they are the same on each. A learner gets its own rows of
    each minibatch, which may be none.

    Args:
        rows: The train batch, in tensors.
        stacks: Module ids that may be stacked, as members of one bucket in its order. Other modules are not stacked.
        size_of: Returns a module's minibatch size; None for all rows at once.
        shuffle: Permutes a module's rows, or its sequences if it is stateful; None to keep their order.
        only: The modules that take part; None for all.
    """
    shares = {
        module_id: _share(module_id, own, size_of(module_id), shuffle)
        for module_id, own in rows.modules.items()
        if own.number and (only is None or module_id in only)
    }
    together = {module_id for stack in stacks for module_id in stack}
    for stack in (*stacks, *((module_id,) for module_id in shares if module_id not in together)):
        yield from _dealt(rows.columns, [shares[m] for m in stack if m in shares])


def _share(module_id: ModuleID, rows: ModuleRows, size: int | None, shuffle: Shuffle | None) -> _Share:
    """Divides the rows of a module into the minibatches of an epoch."""
    order = np.arange(rows.number) if shuffle is None else shuffle(module_id, rows.number)
    lengths = None if rows.lengths is None else rows.lengths[order]
    bounds = _even_bounds(rows.number, size) if lengths is None else _bounds_of_sequences(lengths, size)
    numbers = [end - begin for begin, end in itertools.pairwise(bounds)]
    sizes = numbers if lengths is None else _sums(lengths, bounds)
    if rows.positions is None:
        return _Share(module_id, rows.own[order], bounds, numbers, sizes, sizes, rows.max_len)
    found = np.full(rows.number, -1)
    found[rows.positions] = rows.own
    found = found[order]
    is_own = found >= 0
    own_bounds = np.concatenate([[0], np.cumsum(is_own)])[bounds].tolist()
    own_sizes = _sums(is_own if lengths is None else np.where(is_own, lengths, 0), bounds)
    return _Share(module_id, found[is_own], own_bounds, numbers, sizes, own_sizes, rows.max_len)


def _even_bounds(rows: int, size: int | None) -> list[int]:
    """Returns the bounds of minibatches of a number of rows."""
    number = math.ceil(rows / size) if size else 1
    return [rows * i // number for i in range(number + 1)]


def _bounds_of_sequences(lengths: np.ndarray, size: int | None) -> list[int]:
    """Returns the bounds of minibatches of sequences with these numbers of steps."""
    steps = np.concatenate([[0], np.cumsum(lengths)])
    number = min(math.ceil(int(steps[-1]) / size) if size else 1, len(lengths))
    # Each minibatch ends with the sequence that brings it nearest to its share of the steps, and has at least one.
    ends = np.searchsorted(steps, steps[-1] * np.arange(1, number) / number - lengths.mean() / 2)
    ends = np.maximum.accumulate(np.maximum(ends, 1) - np.arange(number - 1)) + np.arange(number - 1)
    ends = np.minimum(ends, len(lengths) - np.arange(number - 1, 0, -1))
    return [0, *ends.tolist(), len(lengths)]


def _sums(values: np.ndarray, bounds: Sequence[int]) -> list[int]:
    """Returns the sum of the values between each two bounds."""
    return np.diff(np.concatenate([[0], np.cumsum(values)])[list(bounds)]).tolist()


def _dealt(group: ColumnGroup | None, shares: Sequence[_Share]) -> Iterator[MiniBatch]:
    """Yields the minibatches of modules that may be stacked."""
    if not shares:
        return
    row = shares[0].max_len or 1
    stacks: list[tuple[int, list[_Share]]] = []
    for number in range(max(map(len, shares))):
        active = [share for share in shares if number < len(share)]
        stacks += [(number, stack) for stack in _of_like_size(active, number, row)]
    own_stacks = [[share for share in stack if share.own_sizes[number]] for number, stack in stacks]
    epoch, ends = _epoch(group, [(number, own) for (number, _), own in zip(stacks, own_stacks, strict=True)])
    begin = 0
    for (number, stack), own, end in zip(stacks, own_stacks, ends, strict=True):
        columns: Mapping[str, Any] = {}
        if own and epoch is not None:
            columns = MiniBatchColumns(epoch, begin, end, len(own) if len(own) > 1 else 0)
        ids, sizes = tuple(share.module_id for share in own), tuple(share.own_sizes[number] for share in own)
        yield MiniBatch(ids, columns, sizes, {share.module_id: share.sizes[number] for share in stack})
        begin = end


def _of_like_size(active: list[_Share], number: int, row: int) -> list[list[_Share]]:
    """Groups shares into stacks such that padding costs less than another stack; an item counts as ``row`` rows."""
    if len(active) == 1:
        return [active]
    lengths = [share.lengths[number] for share in active]
    by_length = sorted(range(len(active)), key=lambda i: -lengths[i])
    stacks = [[by_length[0]]]
    for place, i in enumerate(by_length[1:], start=1):
        padding = (lengths[stacks[-1][0]] - lengths[i]) * (len(by_length) - place) * row
        if padding > SPARE_ROWS:
            stacks.append([i])
        else:
            stacks[-1].append(i)
    return [[active[i] for i in sorted(stack)] for stack in stacks]


def _epoch(
    group: ColumnGroup | None, stacks: Sequence[tuple[int, list[_Share]]]
) -> tuple[EpochRows | EpochSequences | None, list[int]]:
    """Returns the columns of an epoch in the order of its minibatches, and the end of each minibatch in them.

    Args:
        group: The train batch; None if this learner has no rows.
        stacks: For each minibatch its number and the shares of its modules; an empty list where the learner has no
            rows.
    """
    filled = [_filled_up(own, number) if own else (np.zeros(0, np.int64), None) for number, own in stacks]
    ends = list(itertools.accumulate(len(piece) for piece, _ in filled))
    first = next((own[0] for _, own in stacks if own), None)
    if group is None or first is None:
        return None, ends
    order = np.concatenate([piece for piece, _ in filled])
    real = None
    if any(part is not None for _, part in filled):
        real = np.concatenate([np.ones(len(piece), bool) if part is None else part for piece, part in filled])
    sequences = group.sequences
    if sequences is None:
        return EpochRows(group, order, real), ends
    return EpochSequences(group, sequences, group.module_ids.index(first.module_id), order, real), ends


def _filled_up(stack: list[_Share], number: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns the rows (or sequences) of one minibatch, module by module, and a mask of those that are no padding.

    The mask is None if there is no padding.
    """
    own = [share.order[share.bounds[number] : share.bounds[number + 1]] for share in stack]
    longest = max(map(len, own))
    joined = np.concatenate(own)
    if longest * len(own) == len(joined):
        return joined, None
    lengths = np.array([len(part) for part in own])
    begins = np.cumsum(lengths) - lengths
    real = np.arange(longest) < lengths[:, None]
    place = begins[:, None] + np.where(real, np.arange(longest), 0)
    return joined[place.reshape(-1)], real.reshape(-1)


def _counting_rows(group: ColumnGroup) -> np.ndarray | None:
    """Returns ``[B]`` bool, whether each row counts; None if all rows count."""
    mask = group.get(Columns.LOSS_MASK)
    return None if mask is None else all_on_host([mask])[0].numpy().astype(bool)


def _counted_steps(group: ColumnGroup, sequences: Sequences) -> np.ndarray:
    """Returns ``[S]``, the number of steps of each sequence that a loss is computed from."""
    mask = _counting_rows(group)
    if mask is None:
        return sequences.lengths
    before = np.concatenate([[0], np.cumsum(mask)])
    return before[sequences.starts + sequences.lengths] - before[sequences.starts]
