"""Train batches in shuffled pieces: every module has its own number of minibatches, and several may go stacked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.learner.minibatch_columns import EpochOfRows, EpochOfSequences, MiniBatchColumns
from marl_connectors.rl_module.stacked_rows import SPARE_ROWS
from marl_connectors.transfers import all_on_host
from marl_connectors.typing import ModuleID

Shuffle = Callable[[ModuleID, int], np.ndarray]
"""``(module_id, rows)`` to a permutation of ``range(rows)``."""


@dataclass(slots=True)
class MiniBatch:
    """A piece of one module's train batch, or of those of several modules of a bucket.

    Attributes:
        module_ids: Whose rows these are.
        columns: ``[B, ...]`` each, or ``[M, B, ...]`` if ``is_stacked``; of stateful modules ``[S, L, ...]``.
        sizes: How many rows (or steps) of each module count.
    """

    module_ids: tuple[ModuleID, ...]
    columns: MiniBatchColumns
    sizes: tuple[int, ...]

    @property
    def is_stacked(self) -> bool:
        """Whether the columns have a first axis for the modules."""
        return len(self.module_ids) > 1

    @property
    def size(self) -> int:
        """How many rows (or steps) count."""
        return sum(self.sizes)


@dataclass(slots=True)
class _Share:
    """What one module goes through in an epoch.

    Attributes:
        module_id: Whose it is.
        order: ``[N]`` rows or sequences.
        bounds: Minibatch ``i`` has ``order[bounds[i]:bounds[i + 1]]``.
        sizes: How many rows or steps of each minibatch count.
    """

    module_id: ModuleID
    order: np.ndarray
    bounds: list[int]
    sizes: list[int]

    def __len__(self) -> int:
        return len(self.sizes)


def minibatches_of_epoch(
    group: ColumnGroup,
    stacks: Sequence[Sequence[ModuleID]] = (),
    *,
    size_of: Callable[[ModuleID], int | None],
    shuffle: Shuffle | None,
    only: Collection[ModuleID] | None = None,
) -> Iterator[MiniBatch]:
    """Every row of every module once, in minibatches.

    A module's rows are dealt out evenly: ``ceil(rows / size)`` minibatches whose sizes differ by at most one, so no
    row is left out and none is in a tiny minibatch. Each module has its own number of them, so none is trained more
    often because another has more rows. A stateful module's sequences are dealt out whole, so that each minibatch has
    about as many steps as the others. Rows of which ``loss_mask`` is False are in no minibatch, sequences of which it
    leaves no step neither.

    Modules that may go stacked go through their first minibatches together, then through their second ones, and so on;
    who is through takes no part in the rest. Shorter minibatches are filled up to the longest; those for which that
    would cost more than it spares go apart.

    Args:
        group: The train batch, in tensors.
        stacks: Module ids that may go stacked, as members of one bucket in its order. The others go one by one.
        size_of: A module's minibatch size; None for all rows at once.
        shuffle: None to keep the order. Of a stateful module, sequences are permuted.
        only: Which modules take part; None for all.
    """
    shares = {share.module_id: share for share in _shares(group, size_of, shuffle, only)}
    together = {module_id for stack in stacks for module_id in stack}
    for stack in (*stacks, *((module_id,) for module_id in shares if module_id not in together)):
        yield from _dealt(group, [shares[m] for m in stack if m in shares])


def _shares(
    group: ColumnGroup,
    size_of: Callable[[ModuleID], int | None],
    shuffle: Shuffle | None,
    only: Collection[ModuleID] | None,
) -> Iterator[_Share]:
    sequences = group.sequences
    lengths = None if sequences is None else _counted_steps(group, sequences)
    splits = group.splits if sequences is None else sequences.splits
    counts = _counting_rows(group) if lengths is None else lengths > 0
    for module_id, begin, end in zip(group.module_ids, splits, splits[1:], strict=False):
        if only is not None and module_id not in only:
            continue
        own = np.arange(begin, end) if counts is None else begin + np.flatnonzero(counts[begin:end])
        if not len(own):
            continue
        order = own if shuffle is None else own[shuffle(module_id, len(own))]
        if lengths is None:
            yield _share_of_rows(module_id, order, size_of(module_id))
        else:
            yield _share_of_sequences(module_id, order, lengths, size_of(module_id))


def _share_of_rows(module_id: ModuleID, order: np.ndarray, size: int | None) -> _Share:
    number = math.ceil(len(order) / size) if size else 1
    bounds = [len(order) * i // number for i in range(number + 1)]
    return _Share(module_id, order, bounds, [end - begin for begin, end in itertools.pairwise(bounds)])


def _share_of_sequences(module_id: ModuleID, order: np.ndarray, lengths: np.ndarray, size: int | None) -> _Share:
    steps = np.concatenate([[0], np.cumsum(lengths[order])])
    number = min(math.ceil(int(steps[-1]) / size) if size else 1, len(order))
    # Each minibatch ends with the sequence that brings it nearest to its share of the steps, and has at least one.
    ends = np.searchsorted(steps, steps[-1] * np.arange(1, number) / number - lengths[order].mean() / 2)
    ends = np.maximum.accumulate(np.maximum(ends, 1) - np.arange(number - 1)) + np.arange(number - 1)
    ends = np.minimum(ends, len(order) - np.arange(number - 1, 0, -1))
    bounds = [0, *ends.tolist(), len(order)]
    return _Share(module_id, order, bounds, np.diff(steps[bounds]).tolist())


def _dealt(group: ColumnGroup, shares: Sequence[_Share]) -> Iterator[MiniBatch]:
    """The minibatches of modules that may go stacked."""
    if not shares:
        return
    sequences = group.sequences
    row = 1 if sequences is None else sequences.max_lens[group.module_ids.index(shares[0].module_id)]
    stacks: list[tuple[int, list[_Share]]] = []
    for number in range(max(map(len, shares))):
        active = [share for share in shares if number < len(share)]
        stacks += [(number, stack) for stack in _of_like_size(active, number, row)]
    pieces, reals = zip(*(_filled_up(stack, number) for number, stack in stacks), strict=True)
    order = np.concatenate(pieces)
    real = (
        None
        if all(part is None for part in reals)
        else np.concatenate(
            [np.ones(len(piece), bool) if part is None else part for piece, part in zip(pieces, reals, strict=True)]
        )
    )
    if sequences is None:
        epoch = EpochOfRows(group, order, real)
    else:
        epoch = EpochOfSequences(group, sequences, group.module_ids.index(shares[0].module_id), order, real)
    begin = 0
    for (number, stack), piece in zip(stacks, pieces, strict=True):
        end = begin + len(piece)
        columns = MiniBatchColumns(epoch, begin, end, len(stack) if len(stack) > 1 else 0)
        sizes = tuple(share.sizes[number] for share in stack)
        yield MiniBatch(tuple(share.module_id for share in stack), columns, sizes)
        begin = end


def _of_like_size(active: list[_Share], number: int, row: int) -> list[list[_Share]]:
    """Stacks in which filling up costs less than a stack more; ``row`` is what an item counts as in rows."""
    if len(active) == 1:
        return [active]
    lengths = [share.bounds[number + 1] - share.bounds[number] for share in active]
    by_length = sorted(range(len(active)), key=lambda i: -lengths[i])
    stacks = [[by_length[0]]]
    for place, i in enumerate(by_length[1:], start=1):
        padding = (lengths[stacks[-1][0]] - lengths[i]) * (len(by_length) - place) * row
        if padding > SPARE_ROWS:
            stacks.append([i])
        else:
            stacks[-1].append(i)
    return [[active[i] for i in sorted(stack)] for stack in stacks]


def _filled_up(stack: list[_Share], number: int) -> tuple[np.ndarray, np.ndarray | None]:
    """The rows (or sequences) of one minibatch, module by module, and which are no copies (None: none is one)."""
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
    """``[B]`` bool; None if all rows count."""
    mask = group.get(Columns.LOSS_MASK)
    return None if mask is None else all_on_host([mask])[0].numpy().astype(bool)


def _counted_steps(group: ColumnGroup, sequences: Sequences) -> np.ndarray:
    """``[S]`` how many steps of each sequence a loss is computed of."""
    mask = _counting_rows(group)
    if mask is None:
        return sequences.lengths
    before = np.concatenate([[0], np.cumsum(mask)])
    return before[sequences.starts + sequences.lengths] - before[sequences.starts]
