"""Rows of a bucket's modules as one stack, filled up where modules have different numbers of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.sequences import PaddedColumns
from marl_connectors.rl_module.bucket import Bucket, each_leaf

SPARE_ROWS = 1024
"""So many rows of padding cost about as much as running a module by itself."""
_FEW = 3
"""Fewer modules run faster one after another than filling up their rows takes."""


class StackedRows(Mapping[str, Any]):
    """The columns of a group as the twin of a bucket takes them: ``[M, L, ...]``, of sequences ``[M, S, T, ...]``.

    ``L`` is the longest module's number of rows (``S``: of sequences). What is missing, also for members without rows,
    stands for itself with copies of other rows, so whatever is computed of it is thrown away by ``unstacked``.
    A column is only filled up when somebody asks for it.
    """

    def __init__(self, bucket: Bucket, group: ColumnGroup):
        """Looks at a group whose modules all are members of the bucket."""
        self._sequences = group.sequences
        splits = group.splits if self._sequences is None else self._sequences.splits
        counts, begins = np.diff(splits), np.minimum(splits[:-1], splits[-1] - 1)
        members = np.array([bucket.module_ids.index(m) for m in group.module_ids])
        longest = max(int(counts.max()), 1)
        within = np.arange(longest) < counts[:, None]
        index = np.zeros((len(bucket.module_ids), longest), np.int64)
        index[members] = np.where(within, begins[:, None] + np.arange(longest), begins[:, None])
        self._lead = index.shape
        self._back = torch.from_numpy(
            np.flatnonzero(within) + np.repeat((members - np.arange(len(members))) * longest, counts)
        )
        self._columns: Mapping[str, Any] = group
        self._index = None if self._stands_so(index) else torch.from_numpy(index.reshape(-1))
        if self._sequences is not None:
            self._columns = PaddedColumns(group, self._sequences, 0, index.reshape(-1))

    @staticmethod
    def _stands_so(index: np.ndarray) -> bool:
        """Whether the rows are in the columns as they are wanted, so that no copy is needed."""
        return bool((index.reshape(-1) == np.arange(index.size)).all())

    @staticmethod
    def pays(bucket: Bucket, group: ColumnGroup) -> bool:
        """Whether running a group's modules together costs less than running one after another."""
        sequences, number, members = group.sequences, len(group.module_ids), len(bucket.module_ids)
        if number < 2 or 2 * number < members:
            return False
        if sequences is None:
            if number < _FEW and group.rows_per_module is None:
                return False
            counts, each = np.diff(group.splits), 1
        else:
            if len(set(sequences.max_lens)) > 1:
                return False
            counts, each = np.diff(sequences.splits), sequences.max_lens[0]
        padding = (members * int(counts.max()) - int(counts.sum())) * each
        return bool(counts.any()) and padding <= SPARE_ROWS * len(counts)

    def unstacked(self, column: Any) -> Any:
        """``[B, ...]`` (of sequences ``[S, ...]``) of what the twin gave, ``[M, L, ...]``, in the group's order."""
        return each_leaf(column, lambda leaf: leaf.flatten(0, 1).index_select(0, self._back.to(leaf.device)))

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        index = self._index
        if self._sequences is not None or index is None:
            return each_leaf(column, self._unflat)
        return each_leaf(column, lambda leaf: self._unflat(leaf.index_select(0, index.to(leaf.device))))

    def _unflat(self, leaf: Tensor) -> Tensor:
        return leaf.unflatten(0, self._lead)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def run_stacked(bucket: Bucket, group: ColumnGroup, method: str, **kwargs: Any) -> dict[str, Any]:
    """A forward pass of a group's rows by the bucket's twin, as ``[B, ...]`` columns. A hot path."""
    if group.rows_per_module is not None and group.module_ids == bucket.module_ids:  # spares the indices
        return bucket.unstack(getattr(bucket.twin, method)(bucket.stack(group, group.rows_per_module), **kwargs))
    rows = StackedRows(bucket, group)
    outputs = getattr(bucket.twin, method)(rows, **kwargs)
    return {name: rows.unstacked(column) for name, column in outputs.items()}
