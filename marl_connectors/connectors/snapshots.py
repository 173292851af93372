"""What is in a batch, and in the trajectories behind it, at one moment."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import optree
import torch

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.episodes.column_batch import ColumnBatch
from marl_connectors.episodes.extended_episodes import originals
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import leaves
from marl_connectors.typing import ModuleID

_TRAJECTORIES = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """One column of one group of modules (or one leaf of it, where it is a tree).

    Attributes:
        modules: The modules whose rows these are; empty where a batch of items does not say.
        name: The column's name.
        leaf: Where in a tree, such as ``"['position']"``; empty for a plain column.
        shape: Of the column, or of its list of items.
        dtype: Of the numbers; ``"list of ..."`` for items.
        device: ``"cpu"`` also for arrays; empty for lists.
    """

    modules: tuple[ModuleID, ...]
    name: str
    leaf: str
    shape: tuple[int, ...]
    dtype: str
    device: str


class Snapshot:
    """The columns of a batch, with their values and where in memory they are.

    Attributes:
        shapes: Of all columns.
        names: Of all columns, without repetition.
    """

    def __init__(self, batch: Any, episodes: Sequence[Any], *, keep_values: bool = True):
        """Looks at a batch.

        Args:
            batch: Columns, or items in any phase.
            episodes: The episodes behind it.
            keep_values: Whether to copy the values, for a later snapshot to be compared with.
        """
        self._columns: dict[tuple[Any, ...], tuple[ColumnShape, list[Any]]] = {}
        for modules, name, column in _columns(batch):
            for leaf, values, is_list in _info_leaves(column) if name == Columns.INFOS else _leaves(column):
                self._columns[modules, name, leaf] = (_shape(modules, name, leaf, values, is_list), values)
        self._arrays = [value for _, values in self._columns.values() for value in values]
        self._trajectories = _trajectories(batch, episodes)
        self._rows = _rows_of(batch)
        self._steps = _steps_of(batch, episodes)
        self._memory = _Memory([*self._arrays, *(value for values in self._trajectories.values() for value in values)])
        self.shapes = tuple(shape for shape, _ in self._columns.values())
        self.names = tuple(dict.fromkeys(shape.name for shape in self.shapes))
        if keep_values:
            self._columns = {key: (shape, _copies(values)) for key, (shape, values) in self._columns.items()}
            self._trajectories = {key: _copies(values) for key, values in self._trajectories.items()}
            self._rows = {key: (shape, _copies(values)) for key, (shape, values) in self._rows.items()}
            self._steps = {
                key: (module, [_copies(step) for step in steps]) for key, (module, steps) in self._steps.items()
            }

    def bytes_not_in(self, earlier: Snapshot) -> int:
        """Bytes of this batch that are in memory of their own."""
        own = _Memory([value for value in self._arrays if not earlier._memory.holds(value)])
        return own.num_bytes

    def changed_since(self, earlier: Snapshot) -> tuple[str, ...]:
        """Columns of both snapshots that differ in anything."""
        both = [name for name in self.names if name in earlier.names]
        return tuple(name for name in both if not self._same(name, earlier))

    def _same(self, name: str, earlier: Snapshot) -> bool:
        here, there = ({k: v for k, v in s._columns.items() if k[1] == name} for s in (self, earlier))
        return list(here) == list(there) and all(
            here[key][0] == there[key][0] and _equal(here[key][1], there[key][1]) for key in here
        )

    def written_since(self, earlier: Snapshot) -> tuple[str, ...]:
        """Columns of the trajectories that differ."""
        found: dict[str, None] = {}
        for key, values in self._trajectories.items():
            before = earlier._trajectories.get(key)
            if before is None or not _equal(values, before):
                found[key[2]] = None
        return tuple(found)

    def writes_since(self, earlier: Snapshot) -> tuple[tuple[ColumnShape, ...], tuple[ColumnShape, ...], int]:
        """What was written to the trajectories: as it was, as it is, and its bytes.

        These are the batch's rows in the columns that differ, or the single steps that do, where no row does.
        """
        before: list[ColumnShape] = []
        after: list[ColumnShape] = []
        num_bytes = 0
        for name in self.written_since(earlier):
            for old, new, size in self._rows_written(name, earlier) or self._steps_written(name, earlier):
                before += [] if old is None else [old]
                after.append(new)
                num_bytes += size
        return tuple(before), tuple(after), num_bytes

    def _rows_written(self, name: str, earlier: Snapshot) -> list[tuple[ColumnShape | None, ColumnShape, int]]:
        found = []
        for key, (shape, values) in self._rows.items():
            old, old_values = earlier._rows.get(key, (None, []))
            if key[1] == name and not _equal(values, old_values):
                found.append((old, shape, _num_bytes(values)))
        return found

    def _steps_written(self, name: str, earlier: Snapshot) -> list[tuple[ColumnShape | None, ColumnShape, int]]:
        by_module: dict[tuple[ModuleID, ...], list[tuple[list[Any] | None, list[Any]]]] = {}
        for key, (modules, steps) in self._steps.items():
            if key[1] == name:
                old = earlier._steps[key][1] if key in earlier._steps else []
                pairs = [(old[i] if i < len(old) else None, step) for i, step in enumerate(steps)]
                changed = [pair for pair in pairs if pair[0] is None or not _equal(pair[1], pair[0])]
                by_module.setdefault(modules, []).extend(changed)
        found = []
        for modules, changed in by_module.items():
            for leaf in range(len(changed[0][1]) if changed else 0):
                old, new = ([step[leaf] for step in steps if step] for steps in zip(*changed, strict=True))
                before, after = (_shape_of_steps(modules, name, items) if items else None for items in (old, new))
                if after is not None:
                    found.append((before, after, _num_bytes(new)))
        return found


class _Memory:
    """Which stretches of memory some arrays take up."""

    def __init__(self, arrays: Sequence[Any]):
        self._stretches: dict[str, list[tuple[int, int]]] = {}
        for device, begin, end in sorted({where for where in map(_where, arrays) if where is not None}):
            known = self._stretches.setdefault(device, [])
            if known and begin <= known[-1][1]:
                known[-1] = (known[-1][0], max(end, known[-1][1]))
            else:
                known.append((begin, end))

    def holds(self, array: Any) -> bool:
        """Whether an array shares memory with these; numbers that are no arrays take up none."""
        where = _where(array)
        if where is None:
            return True
        device, begin, end = where
        known = self._stretches.get(device, [])
        place = bisect.bisect_right(known, (begin, end))
        near = known[max(place - 1, 0) : place + 1]
        return any(begin < other_end and other_begin < end for other_begin, other_end in near)

    @property
    def num_bytes(self) -> int:
        """Of all stretches."""
        return sum(end - begin for known in self._stretches.values() for begin, end in known)


def _where(array: Any) -> tuple[str, int, int] | None:
    """Device, first byte and the one after the last."""
    if isinstance(array, torch.Tensor):
        start, device, size = array.data_ptr(), str(array.device), array.element_size()
        strides = [stride * size for stride in array.stride()]
    elif isinstance(array, np.ndarray):
        start, device, size = array.__array_interface__["data"][0], "cpu", array.itemsize
        strides = list(array.strides)
    else:
        return None
    if 0 in array.shape:
        return None
    reach = [(length - 1) * stride for length, stride in zip(array.shape, strides, strict=True)]
    return device, start + sum(min(r, 0) for r in reach), start + sum(max(r, 0) for r in reach) + size


def _columns(batch: Any) -> Iterator[tuple[tuple[ModuleID, ...], str, Any]]:
    """``(modules, name, column)`` of a batch of either form."""
    if isinstance(batch, ColumnBatch):
        for group in batch.groups:
            for name, column in group.items():
                yield group.module_ids, name, column
            if group.sequences is not None:
                yield group.module_ids, Columns.SEQ_LENS, group.sequences.lengths
                if group.sequences.state_in is not None:
                    yield group.module_ids, Columns.STATE_IN, group.sequences.state_in
        return
    for name, column in batch.items():
        if isinstance(column, dict) and column and all(isinstance(key, str) for key in column):
            for own_name, own in column.items():
                yield (name,), own_name, own
        elif isinstance(column, dict):
            yield (), name, [item for items in column.values() for item in items]
        else:
            yield (), name, column


def _leaves(column: Any) -> Iterator[tuple[str, list[Any], bool]]:
    """``(leaf, arrays, is_list)`` of a column: one array, or one for each item of a list."""
    found: dict[str, list[Any]] = {}
    for item in column if isinstance(column, list) else [column]:
        paths, values, _ = optree.tree_flatten_with_path(item)
        for path, value in zip(paths, values, strict=True):
            found.setdefault("".join(f"[{part!r}]" for part in path), []).append(value)
    for path, values in found.items():
        yield path, values, isinstance(column, list)


def _info_leaves(column: Any) -> list[tuple[str, list[Any], bool]]:
    """As ``_leaves``; info dicts hold anything, and are compared by what they show."""
    return [("", [str(info) for info in column], True)] if len(column) else []


def _shape(modules: tuple[ModuleID, ...], name: str, leaf: str, values: list[Any], is_list: bool) -> ColumnShape:
    first = values[0]
    dtype = str(first.dtype).removeprefix("torch.") if hasattr(first, "dtype") else type(first).__name__
    kind = "tensor " if isinstance(first, torch.Tensor) else ""
    if is_list:
        return ColumnShape(modules, name, leaf, (len(values), *np.shape(first)), f"list of {kind}{dtype}", "")
    device = str(first.device) if isinstance(first, torch.Tensor) else "cpu"
    return ColumnShape(modules, name, leaf, tuple(np.shape(first)), f"{kind}{dtype}", device)


def _shape_of_steps(modules: tuple[ModuleID, ...], name: str, items: list[Any]) -> ColumnShape:
    shape = _shape(modules, name, "", items, True)
    return replace(shape, dtype=shape.dtype.removeprefix("list of "), device="cpu")


def _trajectories(batch: Any, episodes: Sequence[Any]) -> dict[tuple[str, int, str], list[Any]]:
    """The columns of all rollouts that the batch has rows of, and of all agent episodes."""
    groups = batch.groups if isinstance(batch, ColumnBatch) else []
    rollouts = {id(part.rollout): part.rollout for group in groups for part in group.rows.parts}
    found: dict[tuple[str, int, str], list[Any]] = {}
    for i, rollout in enumerate(rollouts.values()):
        for name in rollout.columns:
            found["rollout", i, name] = [*leaves(rollout.columns[name]), *leaves(rollout.source(name))]
    for i, episode in enumerate(_agent_episodes(batch, episodes)):
        for name in (*_TRAJECTORIES, *episode.storage.extra_keys()):
            found["episode", i, name] = leaves(episode.storage.column(name))
    return found


def _rows_of(batch: Any) -> dict[tuple[Any, ...], tuple[ColumnShape, list[Any]]]:
    """What the trajectories have for the rows of the batch."""
    found: dict[tuple[Any, ...], tuple[ColumnShape, list[Any]]] = {}
    for group in batch.groups if isinstance(batch, ColumnBatch) else []:
        for name in dict.fromkeys(name for part in group.rows.parts for name in part.rollout.columns):
            try:
                column = group.rows.get(name) if group.rows.has(name) else None
            except (EpisodeError, KeyError):  # some rows have it, or have it in other shapes
                continue
            for leaf, values, _ in [] if column is None else _leaves(column):
                found[group.module_ids, name, leaf] = (_shape(group.module_ids, name, leaf, values, False), values)
    return found


def _steps_of(
    batch: Any, episodes: Sequence[Any]
) -> dict[tuple[int, str], tuple[tuple[ModuleID, ...], list[list[Any]]]]:
    """The columns of all agent episodes, step by step, each step as its leaves."""
    found: dict[tuple[int, str], tuple[tuple[ModuleID, ...], list[list[Any]]]] = {}
    for i, episode in enumerate(_agent_episodes(batch, episodes)):
        modules = () if episode.module_id is None else (episode.module_id,)
        for name in (*_TRAJECTORIES, *episode.storage.extra_keys()):
            column = episode.storage.column(name)
            if isinstance(column, list):
                steps = [leaves(item) for item in column]
            else:
                steps = [list(step) for step in zip(*leaves(column), strict=True)]
            found[i, name] = (modules, steps)
    return found


def _agent_episodes(batch: Any, episodes: Sequence[Any]) -> list[Any]:
    groups = batch.groups if isinstance(batch, ColumnBatch) else []
    parts = [episode for group in groups for episode in group.rows.episodes]
    parts += ConnectorV2.single_agent_episode_iterator(episodes, agents_that_stepped_only=False)
    return list({id(part): part for part in originals(parts)}.values())


def _num_bytes(values: Sequence[Any]) -> int:
    return sum(value.nbytes if hasattr(value, "nbytes") else np.asarray(value).nbytes for value in values)


def _copies(values: list[Any]) -> list[Any]:
    return [
        value.detach().clone() if isinstance(value, torch.Tensor) else np.array(value, copy=True) for value in values
    ]


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(_equal_arrays, one, other))


def _equal_arrays(one: Any, other: Any) -> bool:
    one, other = (x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x) for x in (one, other))
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))
