"""Rows of a bucket's modules as one stack, filled up where modules have different numbers of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.sequences import PaddedColumns
from marl_connectors.rl_module.bucket import Bucket, each_leaf
from marl_connectors.transfers import all_moved

SPARE_ROWS = 1024
"""So many rows of padding cost about as much as running a module by itself."""
_FEW = 3
"""Fewer modules run faster one after another than filling up their rows takes."""


class Stacking:
    """Which row of a group (or sequence, of stateful modules in a train batch) stands where in a bucket's stack.

    Attributes:
        lead: ``(M, L)``: all members, and rows of the longest module (or sequences).
        index: ``[M * L]`` the row that each place is filled with; None if rows stand as they are wanted.
        back: ``[B]`` the place of each row.
    """

    def __init__(self, bucket: Bucket, group: ColumnGroup):
        """Looks at a group whose modules all are members of the bucket."""
        splits = group.splits if group.sequences is None else group.sequences.splits
        counts, begins = np.diff(splits), np.minimum(splits[:-1], splits[-1] - 1)
        members = np.array([bucket.module_ids.index(m) for m in group.module_ids])
        longest = max(int(counts.max()), 1)
        within = np.arange(longest) < counts[:, None]
        index = np.zeros((len(bucket.module_ids), longest), np.int64)
        index[members] = np.where(within, begins[:, None] + np.arange(longest), begins[:, None])
        self.lead = index.shape
        self.rows = index.reshape(-1)
        self.places = np.flatnonzero(within) + np.repeat((members - np.arange(len(members))) * longest, counts)
        self.stands_so = bool((self.rows == np.arange(self.rows.size)).all())
        self.back = torch.from_numpy(self.places)
        self.index = None if self.stands_so else torch.from_numpy(self.rows)

    @property
    def arrays(self) -> list[np.ndarray]:
        """What a device has to be told."""
        return [self.places] if self.stands_so else [self.places, self.rows]

    def with_tensors(self, arrays: Sequence[Tensor]) -> Stacking:
        """Takes ``arrays`` as they are on the device."""
        self.back, *index = arrays
        self.index = index[0] if index else None
        return self

    def on(self, device: torch.device) -> Stacking:
        """The same, for columns on a device."""
        if self.back.device == device:
            return self
        return self.with_tensors(all_moved(self.arrays, device))


def is_whole(bucket: Bucket, group: ColumnGroup) -> bool:
    """Whether all members of a bucket, and no others, have equally many rows in a group."""
    return group.rows_per_module is not None and group.module_ids == bucket.module_ids


def stacking_of(rl_module: Any, group: ColumnGroup) -> Stacking | None:
    """What a forward pass of a MultiRLModule has to know to stack a group's rows; None if it needs no indices."""
    bucket = rl_module.bucket_of(group.module_ids) if hasattr(rl_module, "bucket_of") else None
    if bucket is None or not StackedRows.pays(bucket, group):
        return None
    return None if group.sequences is None and is_whole(bucket, group) else Stacking(bucket, group)


class StackedRows(Mapping[str, Any]):
    """The columns of a group as the twin of a bucket takes them: ``[M, L, ...]``, of sequences ``[M, S, T, ...]``.

    ``L`` is the longest module's number of rows (``S``: of sequences). What is missing, also for members without rows,
    stands for itself with copies of other rows, so whatever is computed of it is thrown away by ``unstacked``.
    A column is only filled up when somebody asks for it.
    """

    def __init__(self, bucket: Bucket, group: ColumnGroup):
        """Looks at a group whose modules all are members of the bucket."""
        self._sequences = group.sequences
        self._stacking = Stacking(bucket, group) if group.stacking is None else group.stacking
        self._columns: Mapping[str, Any] = group
        if self._sequences is not None:
            self._columns = PaddedColumns(group, self._sequences, 0, self._stacking.rows)

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
        return each_leaf(column, lambda leaf: leaf.flatten(0, 1).index_select(0, self._stacking.on(leaf.device).back))

    def __getitem__(self, name: str) -> Any:
        column = self._columns[name]
        if self._sequences is not None or self._stacking.stands_so:
            return each_leaf(column, self._unflat)
        return each_leaf(column, self._gathered)

    def _gathered(self, leaf: Tensor) -> Tensor:
        index = self._stacking.on(leaf.device).index
        assert index is not None
        return self._unflat(leaf.index_select(0, index))

    def _unflat(self, leaf: Tensor) -> Tensor:
        return leaf.unflatten(0, self._stacking.lead)

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def run_stacked(bucket: Bucket, group: ColumnGroup, method: str, **kwargs: Any) -> dict[str, Any]:
    """A forward pass of a group's rows by the bucket's twin, as ``[B, ...]`` columns. A hot path."""
    if is_whole(bucket, group) and group.rows_per_module is not None:  # spares the indices
        return bucket.unstack(getattr(bucket.twin, method)(bucket.stack(group, group.rows_per_module), **kwargs))
    rows = StackedRows(bucket, group)
    outputs = getattr(bucket.twin, method)(rows, **kwargs)
    return {name: rows.unstacked(column) for name, column in outputs.items()}
