"""Where one agent's steps are kept.

============  =================================================================
class         what it is for
============  =================================================================
ListStorage   an episode that grows: one Python list for each column
ArrayStorage  a finished chunk: one array, or tree of arrays, for each column
LaneStorage   a view of a rollout that other code fills
============  =================================================================

A *row* is one agent-step. It opens when the agent observes and holds what the agent does; every reward until the agent
acts again is added to it, and the next observation closes it. Only closed rows are in the columns; a row whose
action waits for the environment's answer is *pending*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.episodes.batching import batch, head, joined
from marl_connectors.episodes.lookback import count, map_tree
from marl_connectors.typing import Tree

WITH_LAST = frozenset((Columns.OBS, Columns.INFOS, Columns.T))
"""The columns that hold one item more than the others: what the newest observation brought."""

OBS: Final = Columns.OBS
INFOS: Final = Columns.INFOS
T: Final = Columns.T
ACTIONS: Final = Columns.ACTIONS
REWARDS: Final = Columns.REWARDS
STEP: Final = (OBS, INFOS, T, ACTIONS, REWARDS)
"""The columns that every episode has; all others are extra model outputs."""
UNSURE: Final = object()
"""A quick look did not find out."""
NOTHING: Final = object()
"""There is no such item."""


class EpisodeStorage(Protocol):
    """What an episode needs of the place where its steps are kept."""

    @property
    def is_numpy(self) -> bool:
        """Whether columns are arrays."""
        ...

    @property
    def untyped(self) -> frozenset[str]:
        """Columns of arrays that are empty, and of which nobody knows the items' dtype."""
        ...

    @property
    def actions_from_0(self) -> bool:
        """Whether actions of a Discrete space are without its ``start``, as a runner records them."""
        ...

    @property
    def lookback(self) -> int:
        """Closed rows that are kept from before the chunk."""
        ...

    @property
    def newest_t(self) -> int | None:
        """The env step of the newest observation; None before there is any."""
        ...

    def __len__(self) -> int:
        """Closed rows, without the lookback."""
        ...

    def column(self, name: str) -> list | Tree:
        """All items, oldest first: ``lookback + len``, and one more for the columns in ``WITH_LAST``."""
        ...

    def part(self, name: str, start: int, stop: int | None) -> list | Tree:
        """The items ``[start, stop)`` of ``column(name)``, None for its end."""
        ...

    def item_at(self, name: str, t: int) -> Any:
        """The item of the row that was observed at env step ``t``, or ``NOTHING``; ``UNSURE`` if that takes longer."""
        ...

    def extra_keys(self) -> tuple[str, ...]:
        """Names of the extra model outputs."""
        ...

    def pending(self) -> dict[str, Any] | None:
        """Action, reward so far and extra model outputs of the open row if the agent has acted and waits."""
        ...

    def set_items(self, name: str, positions: Sequence[int], items: Sequence[Any]) -> None:
        """Overwrites items; positions count as in ``column``."""
        ...

    def set_pending(self, name: str, item: Any) -> None:
        """Overwrites what is in the row that waits."""
        ...

    def set_column(self, name: str, values: list | Tree) -> None:
        """Overwrites all items of a column, or adds one."""
        ...


class ColumnStorage:
    """Columns by name, and the open row.

    Attributes:
        columns: All of them, by name.
        extras: The names of the extra model outputs among them.
        lookback: Closed rows that are kept from before the chunk.
        open_row: Action, reward so far and extra model outputs of the row that waits, or None.
    """

    __slots__ = ("columns", "extras", "lookback", "open_row")
    is_numpy = False
    untyped: frozenset[str] = frozenset()
    columns: dict[str, Any]

    def __init__(self, columns: dict[str, Any], *, lookback: int = 0, open_row: Mapping[str, Any] | None = None):
        self.columns = columns
        self.extras = tuple([name for name in columns if name not in STEP])
        self.lookback = lookback
        self.open_row: dict[str, Any] | None = None if open_row is None else dict(open_row)

    def __len__(self) -> int:
        return len(self.columns[Columns.REWARDS]) - self.lookback

    @property
    def newest_t(self) -> int | None:
        times = self.columns[T]
        return int(times[-1]) if len(times) else None

    def column(self, name: str) -> Any:
        return self.columns[name]

    def item_at(self, name: str, t: int) -> Any:
        """A hot path: an agent that observes at every env step is easily looked up."""
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
        """Checks a column's length, and notes a new one's name."""
        wanted = self.lookback + len(self) if name not in WITH_LAST else len(self.columns[Columns.T])
        if count(values) != wanted:
            raise IndexError(
                f"episode: column {name!r} holds {wanted} item(s), but {count(values)} came to replace them."
            )
        if name not in self.columns:
            self.extras = (*self.extras, name)


def known_items(storage: EpisodeStorage, name: str) -> list | Tree:
    """All items of a column; of an action that waits, what is known already stands last."""
    column = storage.column(name)
    pending = None if name in WITH_LAST else storage.pending()
    if pending is None or name not in pending:
        return column
    if isinstance(column, list):
        newest: Any = [pending[name]]
    else:
        newest = batch([pending[name]], like=None if name in storage.untyped else head(column))
    return joined([column, newest]) if count(column) else newest
