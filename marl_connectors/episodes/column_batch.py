"""Batches in columns: what flows through a pipeline whose pieces all work on columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from marl_connectors.episodes.rows import Rows
from marl_connectors.episodes.sequences import PaddedColumns, Sequences
from marl_connectors.errors import did_you_mean
from marl_connectors.typing import ModuleID


class Phase(Enum):
    """What a batch looks like to a piece that works on items."""

    ITEMS = "column -> item key -> list of items"
    MODULE_ITEMS = "module -> column -> list of items"
    ARRAYS = "module -> column -> array"
    TENSORS = "module -> column -> tensor"


class ColumnGroup(dict[str, Any]):
    """The columns of agents with like spaces: name to ``[B, ...]`` array or tensor, aligned with ``rows``.

    Attributes:
        rows: The agent-steps that the ``B`` rows stand for, and the way to the rest of their trajectories.
        module_ids: The modules that have rows here, in order.
        splits: Module ``i`` has rows ``splits[i]:splits[i + 1]``.
        rows_per_module: How many rows each module has, or None if they differ.
        sequences: In a train batch of stateful modules, how the rows follow one another; the columns stay rows.
        stacking: Where the rows stand in the stack of their modules' bucket, if NumpyToTensor has told a device that.
        action_dist_cls: Set by GetActions when it leaves the log-probabilities to be computed for the whole fragment.
    """

    __slots__ = ("action_dist_cls", "module_ids", "rows", "rows_per_module", "sequences", "splits", "stacking")

    def __init__(self, rows: Rows):
        super().__init__()
        self.rows = rows
        self.module_ids: tuple[ModuleID, ...] = rows.module_ids
        self.splits: tuple[int, ...] = rows.splits
        self.rows_per_module: int | None = rows.rows_per_module
        self.sequences: Sequences | None = None
        self.stacking: Any = None
        self.action_dist_cls: type | None = None

    def __missing__(self, name: str) -> Any:
        raise KeyError(
            f"no column {name!r} in the batch. {did_you_mean(name, self)} Columns of the trajectories: "
            f"columns.rows.get({name!r})."
        )

    def like(self) -> ColumnGroup:
        """A group for the same rows without columns."""
        group = ColumnGroup(self.rows)
        group.module_ids, group.splits, group.rows_per_module = self.module_ids, self.splits, self.rows_per_module
        group.sequences = self.sequences
        return group

    def module_columns(self) -> Iterator[tuple[ModuleID, Mapping[str, Any]]]:
        """Each module's own part of all columns, as the module gets it: sequences are filled up."""
        if self.sequences is not None:
            for i, module_id in enumerate(self.module_ids):
                yield module_id, PaddedColumns(self, self.sequences, i)
            return
        for module_id, begin, end in zip(self.module_ids, self.splits, self.splits[1:], strict=False):
            yield module_id, {name: slice_tree(column, begin, end) for name, column in self.items()}


class ColumnBatch:
    """All groups of a batch, and what phase of its construction it is in."""

    __slots__ = ("groups", "phase")

    def __init__(self, groups: list[ColumnGroup], phase: Phase = Phase.ITEMS):
        self.groups = groups
        self.phase = phase


def slice_tree(column: Any, begin: int, end: int) -> Any:
    """Rows ``begin:end`` of an array, tensor or tree of them."""
    if isinstance(column, dict):
        return {key: slice_tree(part, begin, end) for key, part in column.items()}
    if isinstance(column, tuple):
        return tuple(slice_tree(part, begin, end) for part in column)
    return column[begin:end]
