"""Lists of arrays and numbers that one process writes and another one reads, in memory that both have mapped."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import reduction
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import optree

_HEADER = 64  # bytes, of numbers that need no layout
_ALIGN = 64


class SharedBlock:
    """Memory without a name: the system frees it when the last process that has it is gone, however that one ended.

    It can be given to a new process as an argument, and to no process that runs already.

    Attributes:
        header: ``[8]`` int64, for whatever the two sides agree on.
    """

    def __init__(self, fd: int | None = None):
        """Makes a new block, or takes over the file descriptor of one."""
        if fd is None:
            fd = _new_file()
            os.ftruncate(fd, mmap.PAGESIZE)
        self._fd = fd
        self._map()
        self.header = self.array(np.dtype(np.int64), (_HEADER // 8,), 0)

    def _map(self) -> None:
        self._memory = mmap.mmap(self._fd, os.fstat(self._fd).st_size)

    def reserve(self, size: int) -> None:
        """Makes it at least so many bytes long, in this process and, once it is told, in the other one."""
        if size > os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, size + size // 2)
        if size > len(self._memory):
            self._map()

    def array(self, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> np.ndarray:
        """A view of a part of it."""
        count = int(np.prod(shape))
        return np.frombuffer(self._memory, dtype, count, offset).reshape(shape) if count else np.zeros(shape, dtype)

    def close(self) -> None:
        """Gives the file descriptor back; arrays that were made before stay valid."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., SharedBlock], tuple[Any, ...]]:
        return _received, (reduction.DupFd(self._fd),)


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("marl-connectors")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _received(handle: Any) -> SharedBlock:
    return SharedBlock(handle.detach())


@dataclass(slots=True)
class Column:
    """Where one array or number of each of several items is.

    Attributes:
        kind: ``"array"``, the name of Python's type (``"int"``), or ``"scalar"`` for numpy's.
        dtype: Its numpy type.
        shape: Of all items together, ``(n, ...)``.
        offset: In the block, in bytes.
        values: The column itself; each process has its own view.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    values: np.ndarray = field(default_factory=lambda: np.zeros(0), compare=False)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.kind, self.dtype, self.shape, self.offset

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.kind, self.dtype, self.shape, self.offset = state

    def put(self, items: Any) -> bool:
        """Writes the items, if they are of the column's kind. A hot path."""
        dtype = self.values.dtype
        if set(map(type, items)) != {_TYPES.get(self.kind, dtype.type)}:
            return False
        if self.kind == "array" and list(map(_dtype_of, items)).count(dtype) < len(items):
            return False
        try:
            array = np.array(items)
        except (ValueError, OverflowError):
            return False
        if array.shape != self.shape or array.dtype != dtype:
            return False
        self.values[...] = array
        return True

    def items(self, *, copy: bool) -> list[Any]:
        """What was written, as it was; arrays are views unless they are copied."""
        values = self.values
        if self.kind not in ("array", "scalar"):
            return values.tolist()
        if copy:
            values = values.copy()
        if self.kind == "array" and values.ndim == 1:
            return [values[i, ...] for i in range(len(values))]
        return list(values)


@dataclass(slots=True)
class Part:
    """Items of one kind.

    Attributes:
        places: Their places in the list; None if they are all of it.
        structure: What nested items are like, with the numbers of their columns as leaves; None for plain ones.
        columns: Their leaves.
    """

    places: list[int] | None
    structure: Any
    columns: list[Column]

    def of(self, items: list[Any]) -> list[Any]:
        """Those items of a list that belong here."""
        if self.places is None:
            return items
        found = itemgetter(*self.places)(items)
        return list(found) if len(self.places) > 1 else [found]


@dataclass(slots=True)
class Layout:
    """How a list of items stands in a block.

    Attributes:
        num_items: Of the list.
        parts: The items that are in the block, by kind.
        others: The places of items that are of no kind that fits there; they are sent as they are.
        size: The bytes of the block that are needed.
    """

    num_items: int
    parts: list[Part]
    others: list[int]
    size: int


Note = tuple[Layout | None, list[Any]] | None
"""What the reader must be told beside the block: a new layout, and the items that are not in the block."""


class ColumnWriter:
    """Writes one list after another to a block. Lists like the one before need no words."""

    def __init__(self, block: SharedBlock):
        self._block = block
        self._layout: Layout | None = None
        self._specs: list[Any] = []

    def write(self, items: list[Any]) -> Note:
        """Puts a list in the place of the former one; None if there is nothing to say about it."""
        layout = self._layout
        if layout is not None and layout.num_items == len(items) and self._put(layout, items):
            return (None, [items[place] for place in layout.others]) if layout.others else None
        layout = self._plan(items)
        self._block.reserve(layout.size)
        _attach(layout, self._block)
        if not self._put(layout, items):
            layout, self._specs = Layout(len(items), [], list(range(len(items))), _HEADER), []
        self._layout = layout
        return layout, [items[place] for place in layout.others]

    def _put(self, layout: Layout, items: list[Any]) -> bool:
        for part, spec in zip(layout.parts, self._specs, strict=True):
            own = part.of(items)
            if spec is None:
                if not part.columns[0].put(own):
                    return False
                continue
            columns = _by_leaf(own, spec)
            if columns is None or not all(column.put(v) for column, v in zip(part.columns, columns, strict=True)):
                return False
        return True

    def _plan(self, items: list[Any]) -> Layout:
        by_kind: dict[Any, list[int]] = {}
        for place, item in enumerate(items):
            by_kind.setdefault(_kind_of(item), []).append(place)
        others = by_kind.pop(None, [])
        parts, size, self._specs = [], _HEADER, []
        for places in by_kind.values():
            own = [items[place] for place in places]
            spec = _structure(own[0]) if isinstance(own[0], (dict, tuple, list)) else None
            columns = []
            for values in [own] if spec is None else _by_leaf(own, spec) or []:
                array = np.array(values)
                columns.append(Column(_kind_name(values[0]), array.dtype.str, array.shape, size))
                size += -(-array.nbytes // _ALIGN) * _ALIGN
            structure = None if spec is None else optree.tree_unflatten(spec, range(len(columns)))
            parts.append(Part(None if len(places) == len(items) else places, structure, columns))
            self._specs.append(spec)
        return Layout(len(items), parts, others, size)


class ColumnReader:
    """Reads what a ColumnWriter wrote to the same block."""

    def __init__(self, block: SharedBlock, *, copy: bool):
        """Takes the block.

        Args:
            block: The writer's.
            copy: Whether arrays must outlive the writer's next list.
        """
        self._block = block
        self._copy = copy
        self._layout = Layout(0, [], [], 0)
        self._specs: list[Any] = []

    def read(self, note: Note = None) -> list[Any]:
        """The newest list.

        Args:
            note: What the writer's ``write`` gave.
        """
        new, others = note if note is not None else (None, [])
        if new is not None:
            self._block.reserve(new.size)
            _attach(new, self._block)
            self._layout = new
            self._specs = [None if p.structure is None else optree.tree_structure(p.structure) for p in new.parts]
        layout, items = self._layout, []
        if len(layout.parts) == 1 and not layout.others:
            return self._items(layout.parts[0], self._specs[0])
        items = [None] * layout.num_items
        for part, spec in zip(layout.parts, self._specs, strict=True):
            for place, item in zip(part.places or range(layout.num_items), self._items(part, spec), strict=True):
                items[place] = item
        for place, item in zip(layout.others, others, strict=True):
            items[place] = item
        return items

    def _items(self, part: Part, spec: Any) -> list[Any]:
        columns = [column.items(copy=self._copy) for column in part.columns]
        if spec is None:
            return columns[0]
        return [optree.tree_unflatten(spec, leaves) for leaves in zip(*columns, strict=True)]


def _attach(layout: Layout, block: SharedBlock) -> None:
    for part in layout.parts:
        for column in part.columns:
            column.values = block.array(np.dtype(column.dtype), column.shape, column.offset)


def _by_leaf(items: list[Any], spec: Any) -> list[tuple[Any, ...]] | None:
    """For each leaf of nested items, that of all items; None if they are not all alike."""
    flat = [optree.tree_flatten(item) for item in items]
    if any(own != spec for _, own in flat):
        return None
    return list(zip(*(leaves for leaves, _ in flat), strict=True))


_TYPES = {"array": np.ndarray, "bool": bool, "int": int, "float": float}
_KINDS = {kind: name for name, kind in _TYPES.items()}
_dtype_of = attrgetter("dtype")
_INT64 = np.iinfo(np.int64)


def _structure(tree: Any) -> Any:
    return optree.tree_structure(tree)


def _kind_name(item: Any) -> str:
    return _KINDS.get(type(item), "scalar")


def _kind_of(item: Any) -> Any:
    """What items must have in common to share columns; None for an item that has no place in one."""
    if not isinstance(item, (dict, tuple, list)):
        return _kind_of_leaf(item)
    nested: Any = item
    leaves, spec = optree.tree_flatten(nested)
    kinds = tuple(map(_kind_of_leaf, leaves))
    return (spec, kinds) if kinds and None not in kinds else None


def _kind_of_leaf(item: Any) -> Any:
    """Likewise. What would come out as another type, or in another order of bytes, has no place."""
    name = _kind_name(item)
    if name == "int":
        return (name,) if _INT64.min <= item <= _INT64.max else None
    if name in ("bool", "float"):
        return (name,)
    dtype = getattr(item, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "biufc" or not dtype.isnative:
        return None
    if type(item) is np.ndarray or type(item) is np.dtype(dtype.str).type:
        return name, dtype.str, item.shape
    return None
