"""Storages of one agent's steps.

============  =================================================================
class         what it is for
============  =================================================================
ListStorage   an episode that grows: one Python list for each column
ArrayStorage  a finished chunk: one array, or tree of arrays, for each column
LaneStorage   a view of a rollout that a runner fills (``lane_storage``)
============  =================================================================

A *row* is one agent-step. It opens when the agent observes, and holds the agent's action; every reward until the agent
acts again is added to it, and the next observation closes it. Only closed rows are in the columns; a row whose
action waits for the environment's step is *pending*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV, MODULE, MODULE_OUTPUTS
from marl_connectors.episodes.items import alike, batch, count, head, joined, kind, map_tree, owned, unbatch
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import tree_map
from marl_connectors.typing import Tree

WITH_LAST = frozenset((Columns.OBS, Columns.INFOS, Columns.T))
"""The columns that hold one item more than the others: that of the newest observation."""

OBS: Final = Columns.OBS
INFOS: Final = Columns.INFOS
T: Final = Columns.T
ACTIONS: Final = Columns.ACTIONS
REWARDS: Final = Columns.REWARDS
STEP: Final = (OBS, INFOS, T, ACTIONS, REWARDS)
"""The columns that every episode has; all others are extra model outputs."""
UNSURE: Final = object()
"""The result of ``item_at`` where a quick look cannot decide."""
NOTHING: Final = object()
"""The result where there is no such item."""
_NUMBERS: Final = frozenset((int, float, np.float32, np.float64, np.int64))


class EpisodeStorage(Protocol):
    """The interface of storages that an episode reads and writes."""

    @property
    def is_numpy(self) -> bool:
        """Whether columns are arrays."""
        ...

    @property
    def untyped(self) -> frozenset[str]:
        """Empty columns of arrays whose items' dtype is unknown."""
        ...

    @property
    def action_units(self) -> str:
        """Whose actions these are, one of ``action_units.ALL``."""
        ...

    @property
    def given_units(self) -> str | None:
        """The same; None if it follows from the extra model outputs."""
        ...

    @property
    def lookback(self) -> int:
        """The number of closed rows from before the chunk."""
        ...

    @property
    def newest_t(self) -> int | None:
        """The env step of the newest observation, None before the first one."""
        ...

    def __len__(self) -> int:
        """The number of closed rows, without the lookback."""
        ...

    def column(self, name: str) -> list | Tree:
        """Returns all items, oldest first: ``lookback + len``, and one more for the columns in ``WITH_LAST``."""
        ...

    def part(self, name: str, start: int, stop: int | None) -> list | Tree:
        """Returns the items ``[start, stop)`` of ``column(name)``; None stands for its end."""
        ...

    def item_at(self, name: str, t: int) -> Any:
        """Returns the item of the row that was observed at env step ``t``.

        It is ``NOTHING`` if there is none, and ``UNSURE`` if it takes a search to find out.
        """
        ...

    def extra_keys(self) -> tuple[str, ...]:
        """Returns the names of the extra model outputs."""
        ...

    def pending(self) -> dict[str, Any] | None:
        """Returns action, reward so far and extra model outputs of the row that waits, or None."""
        ...

    def set_items(self, name: str, positions: Sequence[int], items: Sequence[Any]) -> None:
        """Overwrites items; positions count as in ``column``."""
        ...

    def set_pending(self, name: str, item: Any) -> None:
        """Overwrites an item of the row that waits."""
        ...

    def set_column(self, name: str, values: list | Tree) -> None:
        """Overwrites all items of a column, or adds one."""
        ...


class ColumnStorage:
    """Columns by name, and the open row: the common part of lists and arrays.

    Attributes:
        columns: Name to column.
        extras: The names of the extra model outputs among them.
        lookback: The number of closed rows from before the chunk.
        open_row: Action, reward so far and extra model outputs of the row that waits, or None.
        given_units: Whose actions these are; None if it follows from the extra model outputs, as in episodes by hand.
    """

    __slots__ = ("columns", "extras", "given_units", "lookback", "open_row")
    is_numpy = False
    untyped: frozenset[str] = frozenset()
    columns: dict[str, Any]

    def __init__(
        self,
        columns: dict[str, Any],
        *,
        lookback: int = 0,
        open_row: Mapping[str, Any] | None = None,
        action_units: str | None = None,
    ):
        self.columns = columns
        self.given_units = action_units
        self.extras = tuple([name for name in columns if name not in STEP])
        self.lookback = lookback
        self.open_row: dict[str, Any] | None = None if open_row is None else dict(open_row)

    def __len__(self) -> int:
        return len(self.columns[Columns.REWARDS]) - self.lookback

    @property
    def action_units(self) -> str:
        if self.given_units is not None:
            return self.given_units
        return ENV if MODULE_OUTPUTS.isdisjoint(self.extras) else MODULE

    @property
    def newest_t(self) -> int | None:
        times = self.columns[T]
        return int(times[-1]) if len(times) else None

    def column(self, name: str) -> Any:
        return self.columns[name]

    def item_at(self, name: str, t: int) -> Any:
        # The row of an agent that observes at every env step is computed, not searched.
        column, times = self.columns.get(name), self.columns[T]
        if not len(times) or not isinstance(column, (list, np.ndarray)):
            return UNSURE
        row = len(times) - 1 - (times[-1] if type(times) is list else times.item(-1)) + t
        if row >= len(times):
            return NOTHING
        if row < 0 or times[row] != t:
            return UNSURE  # the agent may have skipped steps, or lived before
        if row < len(column):
            return column[row]
        return NOTHING if self.open_row is None else self.open_row.get(name, NOTHING)

    def part(self, name: str, start: int, stop: int | None) -> Any:
        column = self.columns[name]
        if isinstance(column, (list, np.ndarray)):
            return column[start:stop]
        return map_tree(lambda leaf, _: leaf[start:stop], column)

    def extra_keys(self) -> tuple[str, ...]:
        return self.extras

    def pending(self) -> dict[str, Any] | None:
        return None if self.open_row is None else dict(self.open_row)

    def set_pending(self, name: str, item: Any) -> None:
        assert self.open_row is not None
        self.open_row[name] = float(item) if name == REWARDS else item

    def _accept(self, name: str, values: list | Tree) -> None:
        """Checks the length of a new column, and adds its name to the extra model outputs if it is unknown."""
        wanted = self.lookback + len(self) if name not in WITH_LAST else len(self.columns[Columns.T])
        if count(values) != wanted:
            raise IndexError(
                f"episode: column {name!r} holds {wanted} item(s), but {count(values)} came to replace them."
            )
        if name not in self.columns:
            self.extras = (*self.extras, name)


class ListStorage(ColumnStorage):
    """Python lists, one item a row. The only storage that grows."""

    __slots__ = ("heads",)

    def __init__(
        self,
        columns: dict[str, list] | None = None,
        *,
        lookback: int = 0,
        open_row: Mapping[str, Any] | None = None,
        heads: dict[str, Tree] | None = None,
        action_units: str | None = None,
    ):
        """Creates a storage.

        Args:
            columns: Name to list; empty lists if None.
            lookback: The number of closed rows from before the chunk.
            open_row: The items of the row that waits, or None.
            heads: Name to an empty array in the dtype that the column had before it became a list.
            action_units: Whose actions these are; None if it follows from the extra model outputs.
        """
        super().__init__(
            {name: [] for name in STEP} if columns is None else columns,
            lookback=lookback,
            open_row=open_row,
            action_units=action_units,
        )
        self.heads = {} if heads is None else heads

    @classmethod
    def from_storage(
        cls, storage: EpisodeStorage, start: int = 0, stop: int | None = None, lookback: int | None = None
    ) -> ListStorage:
        """Returns a copy of the rows ``[start, stop)`` of any storage, which can grow on its own.

        It includes the open row if ``stop`` is None.
        """
        end = storage.lookback + len(storage) if stop is None else stop
        columns: dict[str, list] = {}
        heads: dict[str, Tree] = dict(storage.heads) if isinstance(storage, ListStorage) else {}
        for name in (*STEP, *storage.extra_keys()):
            column = storage.part(name, start, end + 1 if name in WITH_LAST else end)
            if type(column) is list:
                columns[name] = column
            elif name in (T, REWARDS):
                columns[name] = column.tolist()  # type: ignore[union-attr]
            else:
                if name not in storage.untyped:
                    heads[name] = head(column)
                columns[name] = unbatch(column)
        return cls(
            columns,
            lookback=storage.lookback if lookback is None else lookback,
            open_row=storage.pending() if stop is None else None,
            heads=heads,
            action_units=storage.given_units,
        )

    def append(
        self,
        observation: Any,
        action: Any,
        reward: float,
        infos: dict[str, Any],
        extra_model_outputs: Mapping[str, Any] | None,
        t: int | None = None,
    ) -> None:
        """Adds a whole step: the action that follows the newest observation, and the next observation.

        No row may wait, and the extra model outputs must be the expected ones. Without ``t``, the next env step is
        meant. Only the extra model outputs are copied.
        """
        columns = self.columns
        if extra_model_outputs:
            for name, value in extra_model_outputs.items():
                columns[name].append(value if type(value) in _NUMBERS else owned(value))
        columns[OBS].append(observation)
        columns[INFOS].append(infos)
        times = columns[T]
        times.append(times[-1] + 1 if t is None else t)
        columns[ACTIONS].append(action)
        columns[REWARDS].append(reward)

    def observe(self, observation: Any, infos: dict[str, Any], t: int) -> None:
        """Closes the row that waits, and opens the next one; replaces an observation that was not acted upon."""
        columns = self.columns
        newest = (observation, infos, int(t))
        if self.open_row is None and columns[T]:
            columns[OBS][-1], columns[INFOS][-1], columns[T][-1] = newest
            return
        for name, value in zip((OBS, INFOS, T), newest, strict=True):
            columns[name].append(value)
        if self.open_row is not None:
            for name, value in self.open_row.items():
                columns[name].append(value)
            self.open_row = None

    def act(self, action: Any, extra_model_outputs: Mapping[str, Any]) -> None:
        """Writes an action to the open row. The extra model outputs must be the expected ones."""
        outputs = {name: owned(value) for name, value in extra_model_outputs.items()}
        self.open_row = {ACTIONS: action, REWARDS: 0.0, **outputs}

    def expect(self, extra_model_outputs: Mapping[str, Any], whose: Any) -> None:
        """Checks the names of extra model outputs against those of the rows before; the first action sets them.

        Raises:
            EpisodeError: If they differ. The message begins with ``whose.who``.
        """
        known = self.extras
        if set(extra_model_outputs) == set(known):
            return
        taken = sorted(name for name in extra_model_outputs if name in STEP)
        if taken:
            raise EpisodeError(
                f"{whose.who}: {taken} are names of other columns. Give extra model outputs other names."
            )
        if self.columns[REWARDS]:
            raise EpisodeError(
                f"{whose.who}: the steps so far have the extra model outputs {sorted(known)}, but "
                f"{sorted(extra_model_outputs)} came. Give every action of an episode the same ones."
            )
        self._set_extras(tuple(extra_model_outputs))

    def _set_extras(self, names: tuple[str, ...]) -> None:
        """Sets the names of the extra model outputs, before the first row is closed."""
        for name in self.extras:
            if name not in names:
                del self.columns[name]
        for name in names:
            self.columns.setdefault(name, [])
        self.extras = names

    def extend(self, other: EpisodeStorage) -> None:
        """Appends another storage's own rows, and the open one. Its first observation is this one's newest.

        Both must have the same extra model outputs, if both have steps.
        """
        extras = other.extra_keys()
        if set(self.extras) != set(extras) and (len(other) or other.pending()):
            self._set_extras(extras)
        if isinstance(other, ListStorage):
            self.heads = other.heads | self.heads
        if not self.columns[ACTIONS] and self.open_row is None:
            self.given_units = other.given_units
        start, stop = other.lookback, other.lookback + len(other)
        for name in (*STEP, *extras) if len(other) else WITH_LAST:
            column = self.columns[name]
            if name in WITH_LAST:
                del column[-1:]
            part = other.part(name, start, stop + (name in WITH_LAST))
            if isinstance(part, list) or name in (T, REWARDS):
                column.extend(part if isinstance(part, list) else part.tolist())  # type: ignore[union-attr]
                continue
            if name not in other.untyped:
                self.heads.setdefault(name, head(part))
            column.extend(unbatch(part))
        self.open_row = other.pending()

    def set_items(self, name: str, positions: Sequence[int], items: Sequence[Any]) -> None:
        column = self.columns[name]
        if name == REWARDS and set(map(type, items)) != {float}:
            items = [float(item) for item in items]
        if isinstance(positions, range) and positions.step == 1:
            column[positions.start : positions.stop] = items
            return
        for position, item in zip(positions, items, strict=True):
            column[position] = item

    def set_column(self, name: str, values: list | Tree) -> None:
        self._accept(name, values)
        self.heads.pop(name, None)
        items = unbatch(values)
        self.columns.setdefault(name, [])[:] = [float(item) for item in items] if name == REWARDS else items


class ArrayStorage(ColumnStorage):
    """Arrays, or trees of arrays, one row each. Infos stay a list of dicts."""

    __slots__ = ("untyped",)
    is_numpy = True

    def __init__(
        self,
        columns: dict[str, Any],
        *,
        lookback: int = 0,
        open_row: Mapping[str, Any] | None = None,
        untyped: frozenset[str] = frozenset(),
        action_units: str | None = None,
    ):
        """Creates a storage.

        Args:
            columns: Name to array or tree of arrays.
            lookback: The number of closed rows from before the chunk.
            open_row: The items of the row that waits, or None.
            untyped: The names of empty columns whose dtype is unknown, and float64 for now.
            action_units: Whose actions these are; None if it follows from the extra model outputs.
        """
        super().__init__(columns, lookback=lookback, open_row=open_row, action_units=action_units)
        self.untyped = untyped

    @classmethod
    def from_lists(
        cls, lists: ListStorage, observation_space: Space | None, action_space: Space | None
    ) -> ArrayStorage:
        """Returns arrays in the spaces' dtypes; rewards are float64, the env steps int64."""
        known = {Columns.OBS: observation_space, Columns.ACTIONS: action_space}
        columns: dict[str, Any] = {}
        for name, items in lists.columns.items():
            if name == Columns.INFOS:
                columns[name] = items
            elif name in (Columns.T, Columns.REWARDS):
                columns[name] = np.array(items, np.int64 if name == Columns.T else np.float64)
            elif not items and lists.open_row is not None:
                columns[name] = head(batch([lists.open_row[name]], known.get(name), lists.heads.get(name), name))
            else:
                columns[name] = batch(items, known.get(name), lists.heads.get(name), name)
        typed = {*(name for name in known if known[name] is not None), *lists.heads, *(lists.open_row or ())}
        untyped = frozenset(name for name, items in lists.columns.items() if not items and name not in typed)
        return cls(
            columns,
            lookback=lists.lookback,
            open_row=lists.open_row,
            untyped=untyped,
            action_units=lists.given_units,
        )

    @classmethod
    def from_storage(cls, storage: EpisodeStorage, start: int, stop: int, lookback: int, open_row: Mapping | None):
        """Returns a copy of the rows ``[start, stop)`` of a storage of arrays."""
        columns = {}
        for name in (*STEP, *storage.extra_keys()):
            column = storage.part(name, start, stop + (name in WITH_LAST))
            if type(column) is np.ndarray:
                columns[name] = column.copy()
            else:
                columns[name] = column if type(column) is list else map_tree(lambda leaf, _: leaf.copy(), column)
        return cls(
            columns,
            lookback=lookback,
            open_row=open_row,
            untyped=storage.untyped,
            action_units=storage.given_units,
        )

    def set_items(self, name: str, positions: Sequence[int], items: Sequence[Any]) -> None:
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
            if not alike(column, values):
                raise EpisodeError(
                    f"episode: column {name!r} holds {kind(column)}, but {kind(values)} came for "
                    f"{len(positions)} of its {count(column)} item(s). Set all items (lookback included) at once to "
                    f"change the shape or type of a column."
                )
            where = np.array(positions, np.int64)
            tree_map(lambda leaf, value: leaf.__setitem__(where, value), column, values)

    def set_column(self, name: str, values: list | Tree) -> None:
        self._accept(name, values)
        if name == Columns.INFOS:
            self.columns[name] = list(values)
        elif isinstance(values, list):
            like = self.columns.get(name)
            self.columns[name] = batch(values, None, None if like is None else head(like), name)
        else:
            self.columns[name] = map_tree(lambda leaf, _: np.array(leaf), values)


def known_items(storage: EpisodeStorage, name: str) -> list | Tree:
    """Returns all items of a column; the last one may be that of the row that waits."""
    column = storage.column(name)
    pending = None if name in WITH_LAST else storage.pending()
    if pending is None or name not in pending:
        return column
    if isinstance(column, list):
        newest: Any = [pending[name]]
    else:
        newest = batch([pending[name]], like=None if name in storage.untyped else head(column))
    return joined([column, newest]) if count(column) else newest
