"""Where one agent's steps are kept.

===========  =================================================================
class        what it is for
===========  =================================================================
ListStorage  an episode that grows: one Python list for each column
ArrayStorage a finished chunk: one array, or tree of arrays, for each column
LaneStorage  a view of a rollout that other code fills (``episodes/rollout.py``)
===========  =================================================================

A *row* is one agent-step. It opens when the agent observes, it holds what the agent does, every reward until the
next observation is added to it, and that observation closes it. Only closed rows are in the columns; a row whose
action waits for the environment's answer is *pending*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.lookback import count, is_branch, map_tree, part_of, row
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import leaves, same_structure, tree_map
from marl_connectors.typing import Tree

WITH_LAST = frozenset((Columns.OBS, Columns.INFOS, Columns.T))
"""The columns that hold one item more than the others: what the newest observation brought."""

STEP = (Columns.OBS, Columns.INFOS, Columns.T, Columns.ACTIONS, Columns.REWARDS)
"""The columns that every episode has; all others are extra model outputs."""


class EpisodeStorage(Protocol):
    """What an episode needs of the place where its steps are kept."""

    @property
    def is_numpy(self) -> bool:
        """Whether columns are arrays."""
        ...

    @property
    def lookback(self) -> int:
        """Closed rows that are kept from before the chunk."""
        ...

    def __len__(self) -> int:
        """Closed rows, without the lookback."""
        ...

    def column(self, name: str) -> list | Tree:
        """All items, oldest first: ``lookback + len``, and one more for the columns in ``WITH_LAST``."""
        ...

    def extra_keys(self) -> tuple[str, ...]:
        """Names of the extra model outputs."""
        ...

    def pending(self) -> dict[str, Any] | None:
        """Action, reward so far and extra model outputs of the open row if the agent has acted and waits."""
        ...

    def set_items(self, name: str, positions: list[int], items: Sequence[Any]) -> None:
        """Overwrites items; positions count as in ``column``."""
        ...

    def set_column(self, name: str, values: list | Tree) -> None:
        """Overwrites all items of a column, or adds one."""
        ...

    def to_lists(self) -> ListStorage:
        """A copy that can grow."""
        ...


class _ColumnStorage:
    """Columns by name, and the open row."""

    __slots__ = ("columns", "lookback", "open_row")
    is_numpy = False

    def __init__(self, columns: dict[str, Any], *, lookback: int = 0, open_row: Mapping[str, Any] | None = None):
        self.columns = columns
        self.lookback = lookback
        self.open_row: dict[str, Any] | None = None if open_row is None else dict(open_row)

    def __len__(self) -> int:
        return len(self.columns[Columns.REWARDS]) - self.lookback

    def column(self, name: str) -> Any:
        return self.columns[name]

    def extra_keys(self) -> tuple[str, ...]:
        return tuple(name for name in self.columns if name not in STEP)

    def pending(self) -> dict[str, Any] | None:
        return None if self.open_row is None else dict(self.open_row)

    def _check_count(self, name: str, values: list | Tree) -> None:
        wanted = self.lookback + len(self) if name not in WITH_LAST else len(self.columns[Columns.T])
        if count(values) != wanted:
            raise IndexError(
                f"episode: column {name!r} holds {wanted} item(s), but {count(values)} came to replace them."
            )


class ListStorage(_ColumnStorage):
    """Python lists, one item a row. The only storage that grows."""

    __slots__ = ("heads",)

    def __init__(
        self,
        columns: dict[str, list] | None = None,
        *,
        lookback: int = 0,
        open_row: Mapping[str, Any] | None = None,
        heads: dict[str, Tree] | None = None,
    ):
        """``heads`` are empty arrays whose dtypes a column of arrays had before it became a list."""
        super().__init__(
            {name: [] for name in STEP} if columns is None else columns, lookback=lookback, open_row=open_row
        )
        self.heads = {} if heads is None else heads

    @classmethod
    def from_storage(
        cls, storage: EpisodeStorage, start: int = 0, stop: int | None = None, lookback: int | None = None
    ):
        """A copy of the rows ``[start, stop)`` of any storage, which can grow on its own.

        The open row comes along if ``stop`` is None.
        """
        end = storage.lookback + len(storage) if stop is None else stop
        columns, heads = {}, {}
        for name in (*STEP, *storage.extra_keys()):
            column = storage.column(name)
            if not isinstance(column, list):
                heads[name] = head(column)
            columns[name] = unbatch(column, start, end + (name in WITH_LAST))
        columns[Columns.T] = [int(t) for t in columns[Columns.T]]
        columns[Columns.REWARDS] = [float(reward) for reward in columns[Columns.REWARDS]]
        return cls(
            columns,
            lookback=(storage.lookback if lookback is None else lookback),
            open_row=storage.pending() if stop is None else None,
            heads=heads,
        )

    def observe(self, observation: Any, infos: Mapping[str, Any] | None, t: int) -> None:
        """Closes the row that is open, and opens the next one. An observation not yet acted on is replaced.

        Environments may reuse their buffers and info dicts, so both are copied.
        """
        item = map_tree(lambda leaf, _: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, observation)
        columns = self.columns
        newest = (item, dict(infos) if infos else {}, int(t))
        if self.open_row is None and columns[Columns.T]:
            columns[Columns.OBS][-1], columns[Columns.INFOS][-1], columns[Columns.T][-1] = newest
            return
        for name, value in zip((Columns.OBS, Columns.INFOS, Columns.T), newest, strict=True):
            columns[name].append(value)
        if self.open_row is not None:
            for name, value in self.open_row.items():
                columns[name].append(value)
            self.open_row = None

    def act(self, action: Any, extra_model_outputs: Mapping[str, Any] | None, who: str) -> None:
        """Writes what the agent does to the row that is open.

        Raises:
            EpisodeError: If the extra model outputs are not those of the rows before.
        """
        extras = dict(extra_model_outputs) if extra_model_outputs else {}
        known = self.extra_keys()
        if set(extras) != set(known):
            if self.columns[Columns.REWARDS] or any(name in STEP for name in extras):
                raise EpisodeError(
                    f"{who}: the steps so far have the extra model outputs {sorted(known)}, but {sorted(extras)} came. "
                    f"Give every action of an episode the same ones."
                )
            for name in known:
                del self.columns[name]
            self.columns.update({name: [] for name in extras})
        self.open_row = {Columns.ACTIONS: action, Columns.REWARDS: 0.0, **extras}

    def extend(self, other: EpisodeStorage, who: str) -> None:
        """Appends another storage's own rows, and the open one. Its first observation is this one's newest.

        Raises:
            EpisodeError: If the extra model outputs differ.
        """
        known, extras = self.extra_keys(), other.extra_keys()
        if set(known) != set(extras) and (len(other) or other.pending()):
            if self.columns[Columns.REWARDS]:
                raise EpisodeError(
                    f"{who}: its extra model outputs are {sorted(known)}, those of the chunk to append "
                    f"{sorted(extras)}. Both must have the same ones."
                )
            self.columns = {name: self.columns.get(name, []) for name in (*STEP, *extras)}
        start, stop = other.lookback, other.lookback + len(other)
        for name in (*STEP, *extras) if len(other) else WITH_LAST:
            column = self.columns[name]
            if name in WITH_LAST:
                del column[-1:]
            column.extend(unbatch(other.column(name), start, stop + (name in WITH_LAST)))
        self.open_row = other.pending()

    def to_lists(self) -> ListStorage:
        return ListStorage.from_storage(self)

    def set_items(self, name: str, positions: list[int], items: Sequence[Any]) -> None:
        column = self.columns[name]
        for position, item in zip(positions, items, strict=True):
            column[position] = float(item) if name == Columns.REWARDS else item

    def set_column(self, name: str, values: list | Tree) -> None:
        self._check_count(name, values)
        self.heads.pop(name, None)
        items = unbatch(values)
        self.columns[name] = [float(item) for item in items] if name == Columns.REWARDS else items


class ArrayStorage(_ColumnStorage):
    """Arrays, or trees of arrays, one row each. Infos stay a list of dicts."""

    __slots__ = ()
    is_numpy = True

    @classmethod
    def from_lists(
        cls, lists: ListStorage, observation_space: Space | None, action_space: Space | None
    ) -> ArrayStorage:
        """Arrays in the spaces' dtypes; rewards are float64, the env steps int64."""
        known = {Columns.OBS: observation_space, Columns.ACTIONS: action_space}
        columns: dict[str, Any] = {}
        for name, items in lists.columns.items():
            if name == Columns.INFOS:
                columns[name] = items
            elif name in (Columns.T, Columns.REWARDS):
                columns[name] = np.array(items, np.int64 if name == Columns.T else np.float64)
            else:
                columns[name] = batch(items, known.get(name), lists.heads.get(name), name)
        return cls(columns, lookback=lists.lookback, open_row=lists.open_row)

    @classmethod
    def from_storage(cls, storage: EpisodeStorage, start: int, stop: int, lookback: int, open_row: Mapping | None):
        """A copy of the rows ``[start, stop)`` of an array-backed storage."""
        columns = {}
        for name in (*STEP, *storage.extra_keys()):
            column, end = storage.column(name), stop + (name in WITH_LAST)
            if isinstance(column, list):
                columns[name] = column[start:end]
            else:
                columns[name] = map_tree(lambda leaf, _, end=end: leaf[start:end].copy(), column)
        return cls(columns, lookback=lookback, open_row=open_row)

    def to_lists(self) -> ListStorage:
        return ListStorage.from_storage(self)

    def set_items(self, name: str, positions: list[int], items: Sequence[Any]) -> None:
        column = self.columns[name]
        if isinstance(column, list):
            for position, item in zip(positions, items, strict=True):
                column[position] = item
        elif positions:
            values = batch(list(items), None, head(column), name)
            if sorted(positions) == list(range(count(column))):
                order = np.argsort(positions)
                self.columns[name] = map_tree(lambda leaf, _: leaf[order], values)
                return
            if not _fits(column, values):
                raise EpisodeError(
                    f"episode: column {name!r} holds {_kind(column)}, but {_kind(values)} came for "
                    f"{len(positions)} of its {count(column)} item(s). Set all items (lookback included) at once to "
                    f"change the shape or type of a column."
                )
            where = np.array(positions, np.int64)
            tree_map(lambda leaf, value: leaf.__setitem__(where, value), column, values)

    def set_column(self, name: str, values: list | Tree) -> None:
        self._check_count(name, values)
        if name == Columns.INFOS:
            self.columns[name] = list(values)
        elif isinstance(values, list):
            like = self.columns.get(name)
            self.columns[name] = batch(values, None, None if like is None else head(like), name)
        else:
            self.columns[name] = map_tree(lambda leaf, _: np.array(leaf), values)


# Between lists of items and arrays.


def batch(items: list[Any], space: Space | None = None, like: Tree | None = None, name: str = "items") -> Tree:
    """Items as one array (or tree of arrays) with a new first axis.

    Args:
        items: Numbers, arrays, or dicts and tuples of them, all of one shape.
        space: Their space, if known. Its dtype is used wherever it loses nothing.
        like: An array or tree whose dtype is used in the same way where there is no space.
        name: Stands in messages.

    Raises:
        EpisodeError: If the items differ in shape or in keys.
    """
    if not items:
        return like if like is not None else np.zeros(0) if space is None else spaces.zeros(space, 0)
    first = items[0]
    if is_branch(first, space):
        keys = list(first) if isinstance(first, dict) else range(len(first))
        if any(type(item) is not type(first) or len(item) != len(first) for item in items):
            raise EpisodeError(
                f"episode: the {name!r} have different keys, so they do not stand in one tree of arrays."
            )
        parts = {
            key: batch([item[key] for item in items], part_of(space, key), part_of(like, key), f"{name}/{key}")
            for key in keys
        }
        return parts if isinstance(first, dict) else tuple(parts.values())
    try:
        array = np.array(items)
    except ValueError as error:
        shapes = sorted({str(np.shape(item)) for item in items})
        raise EpisodeError(
            f"episode: the {name!r} have different shapes ({', '.join(shapes)}), so they do not stand in one array. "
            f"Write items of one shape for all steps."
        ) from error
    if space is not None and space.dtype is not None and space.shape == array.shape[1:]:
        return _lossless(array, space.dtype)
    return _lossless(array, like.dtype) if isinstance(like, np.ndarray) else array


def unbatch(column: list | Tree, start: int = 0, stop: int | None = None) -> list[Any]:
    """The items ``[start, stop)`` of a column as a list."""
    if isinstance(column, (list, np.ndarray)):
        return list(column[start:stop])
    return [row(column, position) for position in range(*slice(start, stop).indices(count(column)))]


def joined(columns: Sequence[list | Tree]) -> list | Tree:
    """Columns one after the other."""
    if len(columns) == 1:
        return columns[0]
    if any(isinstance(column, list) for column in columns):
        return [item for column in columns for item in unbatch(column)]
    trees: list[Any] = list(columns)
    return tree_map(lambda *leaves: np.concatenate(leaves), *trees)


def head(column: Tree) -> Tree:
    """The column without its items: dtypes and shapes."""
    return map_tree(lambda leaf, _: leaf[:0], column)


def _lossless(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array in ``dtype`` if that holds its values (rounding of floats aside), else as it is."""
    if array.dtype == dtype or array.dtype.kind not in "biufc":
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
    return cast if (array.dtype.kind == "f" and cast.dtype.kind == "f") or np.array_equal(cast, array) else array


def _fits(column: Tree, values: Tree) -> bool:
    if not same_structure(column, values):
        return False
    pairs = zip(leaves(column), leaves(values), strict=True)
    return all(old.shape[1:] == new.shape[1:] and old.dtype == new.dtype for old, new in pairs)


def _kind(column: Tree) -> str:
    return " and ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in leaves(column))


def same_item(one: Any, other: Any) -> bool:
    """Whether two items are equal, not-a-number in the same places included."""
    if is_branch(one) or is_branch(other):
        if type(one) is not type(other) or len(one) != len(other):
            return False
        keys = one if isinstance(one, dict) else range(len(one))
        return all((not isinstance(other, dict) or key in other) and same_item(one[key], other[key]) for key in keys)
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f")
