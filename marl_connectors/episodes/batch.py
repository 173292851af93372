"""The batch of a pipeline: columns of groups of agents, and in a learner pipeline the episodes it was made of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, overload

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.episodes.bootstrap_view import extended
from marl_connectors.episodes.rollout import OF_ALL_ROWS, Positions, Rollout
from marl_connectors.episodes.rows import Rows
from marl_connectors.episodes.sequences import PaddedColumns, Sequences
from marl_connectors.errors import did_you_mean, listed
from marl_connectors.trees import read_only
from marl_connectors.typing import ModuleID

_NO_HOLDERS: Mapping[str, frozenset[ModuleID]] = {}
_FOR_PIECES = ("rl_module", "explore", "shared_data", "metrics", "program")
RUN_EPISODES = "episodes_of_run"
"""Key in ``shared_data``: the run's RunEpisodes."""
RANKS = "ranks"
"""Key in ``shared_data``: the ``Ranks`` of a learner that updates modules together with others, each from its own
episodes. Without other learners there is no such key."""


class Phase(Enum):
    """The form of a batch that a piece on items gets."""

    ITEMS = "column -> item key -> list of items"
    MODULE_ITEMS = "module -> column -> list of items"
    ARRAYS = "module -> column -> array"
    TENSORS = "module -> column -> tensor"


class NoColumn(KeyError):
    """Raised when a group has no column of a name.

    Attributes:
        column: The name.
    """

    def __init__(self, column: str, message: str):
        super().__init__(message)
        self.column = column


class ColumnGroup(dict[str, Any]):
    """The columns of agents with like spaces: name to ``[B, ...]`` array or tensor, aligned with ``rows``.

    ``group["obs"]`` reads the observations from the trajectories until a piece adds them to the batch.

    Attributes:
        rows: The agent-steps of the ``B`` rows, from which the rest of their trajectories can be read.
        module_ids: The modules that have rows here, in order.
        splits: Module ``i`` has rows ``splits[i]:splits[i + 1]``.
        rows_per_module: The number of rows of each module, or None if they differ.
        sequences: The sequences of the rows in a train batch of stateful modules; the columns keep one row for each
            agent-step.
        stacking: The positions of the rows in the stack of their modules' bucket, once they are tensors on a device;
            else None.
        action_dist_cls: Set by GetActions when it leaves the log-probabilities to be computed for the whole fragment.
        holders: Column to the modules that output it, for columns that only some of the modules output. The rows of
            the others hold zeros there, which are not recorded.
        rl_module: The module whose batch is made or whose output is translated: in env runners and policies the
            RLModule of a single agent, else the MultiRLModule.
        explore: Whether actions will be sampled; None in a learner pipeline.
        shared_data: Pieces use this dict to pass data to later pieces of the same step, also to those of the
            module-to-env pipeline.
        metrics: A MetricsLogger, or None.
        program: The program that is recorded for another machine; None in a run.
    """

    __slots__ = (
        "action_dist_cls",
        "explore",
        "holders",
        "metrics",
        "module_ids",
        "program",
        "rl_module",
        "rows",
        "rows_per_module",
        "sequences",
        "shared_data",
        "splits",
        "stacking",
    )

    def __init__(self, rows: Rows):
        super().__init__()
        self.rows = rows
        self.module_ids: tuple[ModuleID, ...] = rows.module_ids
        self.splits: tuple[int, ...] = rows.splits
        self.rows_per_module: int | None = rows.rows_per_module
        self.sequences: Sequences | None = None
        self.stacking: Any = None
        self.action_dist_cls: type | None = None
        self.holders: Mapping[str, frozenset[ModuleID]] = _NO_HOLDERS
        self.within()

    def within(
        self,
        *,
        rl_module: Any = None,
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        metrics: Any = None,
        program: Any = None,
    ) -> ColumnGroup:
        """Sets what pieces get beside the columns, and returns the group. The arguments are attributes."""
        self.rl_module = rl_module
        self.explore = explore
        self.shared_data: dict[str, Any] = {} if shared_data is None else shared_data
        self.metrics = metrics
        self.program = program
        return self

    def within_that_of(self, other: ColumnGroup) -> ColumnGroup:
        """Sets for pieces what another group has, and returns the group."""
        return self.within(**{name: getattr(other, name) for name in _FOR_PIECES})

    def parts(self) -> list[tuple[ModuleID, slice]]:
        """Returns each module with the slice of its rows."""
        bounds = itertools.starmap(slice, itertools.pairwise(self.splits))
        return list(zip(self.module_ids, bounds, strict=True))

    def __missing__(self, name: str) -> Any:
        if name == Columns.OBS:
            return read_only(self.rows.get(name))
        raise NoColumn(
            name,
            f"no column {name!r} in the batch. {did_you_mean(name, self)} Columns of the trajectories: "
            f"c.rows.get({name!r}).",
        )

    def __repr__(self) -> str:
        columns = ", ".join(f"{name} {_shape_text(column)}" for name, column in self.items())
        return f"<{self.splits[-1]} rows of {listed(self.module_ids, 'module')}: {columns or 'no columns yet'}>"

    def like(self) -> ColumnGroup:
        """Returns a group for the same rows without columns."""
        group = ColumnGroup(self.rows).within_that_of(self)
        group.module_ids, group.splits, group.rows_per_module = self.module_ids, self.splits, self.rows_per_module
        group.sequences = self.sequences
        return group

    def take_from(self, other: ColumnGroup) -> None:
        """Replaces the columns with the columns of another group that has the same rows."""
        self.clear()
        self.update(other)
        self.holders, self.action_dist_cls = other.holders, other.action_dist_cls

    def module_columns(self) -> Iterator[tuple[ModuleID, Mapping[str, Any]]]:
        """Yields each module and its part of all columns, in the form that it gets: sequences are padded."""
        if self.sequences is not None:
            for i, module_id in enumerate(self.module_ids):
                yield module_id, PaddedColumns(self, self.sequences, i)
            return
        for module_id, begin, end in zip(self.module_ids, self.splits, self.splits[1:], strict=False):
            yield module_id, {n: slice_tree(c, begin, end) for n, c in self.items() if self.has_column(module_id, n)}

    def has_column(self, module_id: ModuleID, name: str) -> bool:
        """Whether a module has items in a column."""
        return name in self and (name not in self.holders or module_id in self.holders[name])

    def held_rows(self, name: str) -> np.ndarray:
        """Returns ``[B]`` bool, True in the rows of the modules that have items in a column."""
        has = [self.has_column(module_id, name) for module_id in self.module_ids]
        return np.repeat(has, np.diff(self.splits))

    def record_in(self, rollout: Rollout, positions: Positions) -> None:
        """Writes all columns, which modules have output, to the rows of a rollout that they were computed for."""
        if self.holders or rollout.recorded != self.keys():
            self._mark_partly_given(rollout)
        rollout.record(positions, self)
        for name in self.holders:
            rollout.given[name][positions] = self.held_rows(name)

    def _mark_partly_given(self, rollout: Rollout) -> None:
        """Marks in which rows of a rollout a column is, if not all modules that act now and before output it."""
        held_before = rollout.columns.keys() - OF_ALL_ROWS
        partly = set(self.holders)
        if held_before:
            others = (held_before ^ self.keys()) - OF_ALL_ROWS
            partly |= others - {Columns.ACTION_LOGP} if self.action_dist_cls is not None else others
        for name in partly - rollout.given.keys():
            rollout.given[name] = np.full(rollout.num_rows * rollout.num_lanes, name in held_before)
            rollout.given[name][rollout.cursor[~rollout.pending]] = False
        rollout.recorded = frozenset(self)


def _shape_text(column: Any) -> str:
    """Returns the shape and dtype of a column: ``[8, 6] float32``; of a tree, those of each leaf."""
    if isinstance(column, Mapping):
        return "{" + ", ".join(f"{key}: {_shape_text(part)}" for key, part in column.items()) + "}"
    if isinstance(column, tuple):
        return "(" + ", ".join(map(_shape_text, column)) + ")"
    if not hasattr(column, "shape"):
        return f"list of {len(column)}"
    return f"{list(column.shape)} {str(column.dtype).removeprefix('torch.')}"


class ColumnBatch:
    """All groups of a batch, and the phase of its construction."""

    __slots__ = ("groups", "phase")

    def __init__(self, groups: list[ColumnGroup], phase: Phase = Phase.ITEMS):
        self.groups = groups
        self.phase = phase


class RunEpisodes(Sequence[Any]):
    """The episodes that a learner pipeline's pieces get in one run, with or without an artificial step each.

    A piece on items may replace them, ``episodes[:] = ...``: later pieces get the new ones, the caller keeps the old.

    Attributes:
        replaced: Whether a piece has replaced any.
    """

    __slots__ = ("_episodes", "_extended", "_is_extended", "replaced")

    def __init__(self, episodes: Sequence[Any]):
        self._episodes = episodes
        self._is_extended = False
        self._extended: list[Any] | None = None
        self.replaced = False

    def extend(self) -> None:
        """Adds an artificial step to every episode from now on. The views are made when a piece reads them."""
        self._is_extended = True

    @property
    def unextended(self) -> Sequence[Any]:
        """The episodes without artificial steps."""
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


def slice_tree(column: Any, begin: int, end: int) -> Any:
    """Returns the rows ``begin:end`` of an array, tensor or tree of them."""
    if isinstance(column, dict):
        return {key: slice_tree(part, begin, end) for key, part in column.items()}
    if isinstance(column, tuple):
        return tuple(slice_tree(part, begin, end) for part in column)
    return column[begin:end]
