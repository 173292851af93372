"""The columns of minibatches: slices of an epoch's columns, which are put in order when somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.info_column import InfoColumn
from marl_connectors.episodes.sequences import PaddedColumns, Sequences
from marl_connectors.errors import did_you_mean
from marl_connectors.learner.counted_rows import CountedRows
from marl_connectors.transfers import all_moved, all_on_host, moved
from marl_connectors.trees import leaves, tree_map


class EpochOfRows:
    """All columns of some modules in one epoch's order; each minibatch is a slice.

    A column is only brought into that order when somebody asks for it.
    """

    def __init__(self, group: ColumnGroup, order: np.ndarray, real: np.ndarray | None):
        """Takes the order.

        Args:
            group: The train batch.
            order: ``[N]`` rows, minibatch after minibatch.
            real: ``[N]`` bool, False for rows that only fill a stack up; None if all are real.
        """
        self._group = group
        self._order = torch.from_numpy(order)
        self._real = real
        self._device = leaves(next(iter(group.values())))[0].device
        self._gathered: dict[str, Any] = {}

    @cached_property
    def _on_device(self) -> list[Tensor]:
        """The order and, if some rows only fill up, which are real."""
        return all_moved([self._order.numpy(), *([] if self._real is None else [self._real])], self._device)

    def names(self) -> list[str]:
        """Of all columns."""
        return [*self._group, *([Columns.LOSS_MASK] if self._has_own_mask else [])]

    @property
    def _has_own_mask(self) -> bool:
        return self._real is not None and Columns.LOSS_MASK not in self._group

    def __contains__(self, name: object) -> bool:
        return name in self._group or (name == Columns.LOSS_MASK and self._has_own_mask)

    def column(self, name: str) -> Any:
        """``[N, ...]``."""
        if name not in self:
            raise _missing(name, self._group)
        if name not in self._gathered:
            self._gathered[name] = self._gather(name)
        return self._gathered[name]

    def _gather(self, name: str) -> Any:
        if name == Columns.LOSS_MASK and self._real is not None:  # rows that do not count are in no minibatch
            return self._on_device[1]
        column = self._group[name]
        order = self._order if isinstance(column, InfoColumn) else self._on_device[0]
        return tree_map(lambda leaf: leaf.index_select(0, order), column)

    def infos(self, column: InfoColumn, begin: int, end: int, stacked: int) -> InfoColumn | list[InfoColumn]:
        """The info dicts of a minibatch, for each module by itself if there are several."""
        infos = column[begin:end]
        return infos.unflatten(0, (stacked, -1)) if stacked else infos

    def counted_rows(self, begin: int, end: int, stacked: int) -> CountedRows:
        """Of a minibatch."""
        if self._real is None or not stacked:
            return CountedRows()
        real = self._real[begin:end].reshape(stacked, -1)
        if real.all():
            return CountedRows()
        counts = self._on_device[1][begin:end].view(stacked, -1).float()
        return CountedRows(counts / counts.sum(1, keepdim=True))


class EpochOfSequences:
    """The same for stateful modules: their sequences in the epoch's order, filled up with zeros.

    Sequences that only fill a stack up are copies whose ``loss_mask`` is False throughout.
    """

    def __init__(
        self, group: ColumnGroup, sequences: Sequences, module: int, order: np.ndarray, real: np.ndarray | None
    ):
        """As for ``EpochOfRows``, with sequences for rows.

        Args:
            group: The train batch.
            sequences: Of its rows.
            module: One of the modules that the sequences are of; all have one ``max_seq_len``.
            order: ``[N]`` sequences.
            real: ``[N]`` bool, or None.
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
        """Of all columns."""
        return list(self._columns)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def column(self, name: str) -> Any:
        """``[N, L, ...]``; states before the first steps, and lengths, ``[N, ...]``."""
        if name not in self._columns:
            raise _missing(name, self._columns)
        column = self._columns[name]
        if name == Columns.LOSS_MASK and self._real is not None:
            return moved(self._counted, column.device)
        return column

    def infos(self, column: InfoColumn, begin: int, end: int, stacked: int) -> InfoColumn:
        """The info dicts of some of the sequences: one a step, without padding."""
        if stacked:
            raise KeyError(
                "the sequences of several modules at once have no 'infos'. Override compute_loss_for_module only, so "
                "that modules are updated one after another, or set .learners(stack_modules=False)."
            )
        return column[self._begins[begin] : self._begins[end]]

    def counted_rows(self, begin: int, end: int, stacked: int) -> CountedRows:
        """Of a minibatch."""
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

    For stateful modules they are sequences, ``[S, L, ...]`` or ``[M, S, L, ...]``. ``loss_mask`` is False where a row
    or step means nothing, if there are such. Info dicts of sequences are a flat list: those of the first sequence's
    ``seq_lens[0]`` steps, of the second one's, and so on.
    """

    __slots__ = ("_begin", "_counted", "_end", "_epoch", "_stack")

    def __init__(self, epoch: EpochOfRows | EpochOfSequences, begin: int, end: int, stack: int):
        """Looks at a slice of an epoch.

        Args:
            epoch: Its columns.
            begin: The first row or sequence.
            end: One behind the last.
            stack: How many modules' rows these are, one module's behind the other's; 0 for one module unstacked.
        """
        self._epoch = epoch
        self._begin = begin
        self._end = end
        self._stack = stack
        self._counted: CountedRows | None = None

    @property
    def counted_rows(self) -> CountedRows:
        """What a loss is computed of."""
        if self._counted is None:
            self._counted = self._epoch.counted_rows(self._begin, self._end, self._stack)
        return self._counted

    def __getitem__(self, name: str) -> Any:
        column = self._epoch.column(name)
        if isinstance(column, InfoColumn):
            return self._epoch.infos(column, self._begin, self._end, self._stack)
        return self._part(column) if type(column) is Tensor else tree_map(self._part, column)

    def _part(self, leaf: Tensor) -> Tensor:
        part = leaf[self._begin : self._end]
        return part.unflatten(0, (self._stack, -1)) if self._stack else part

    def __contains__(self, name: object) -> bool:
        return name in self._epoch

    def __iter__(self) -> Iterator[str]:
        return iter(self._epoch.names())

    def __len__(self) -> int:
        return len(self._epoch.names())
