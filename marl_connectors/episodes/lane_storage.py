"""The storage of an agent's episode that is a view of a rollout: nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.rollout import Rollout, take
from marl_connectors.episodes.storage import ACTIONS, INFOS, NOTHING, OBS, REWARDS, UNSURE, WITH_LAST, T
from marl_connectors.trees import tree_map
from marl_connectors.typing import Tree

_NO_OUTPUTS = (OBS, ACTIONS, REWARDS, T, Columns.ENV_STATE)


class LaneStorage:
    """Rows of one lane of a rollout.

    As long as the episode continues (``stop_row`` is None), it grows with the lane's cursor.
    """

    __slots__ = ("first_row", "lane", "lookback", "rollout", "start_row", "stop_row")
    is_numpy = True
    untyped: frozenset[str] = frozenset()

    def __init__(self, rollout: Rollout, lane: int, *, first_row: int, start_row: int, stop_row: int | None = None):
        """Creates a view.

        Args:
            rollout: The rollout that holds the rows.
            lane: The lane there.
            first_row: The first row of the lookback.
            start_row: The first step's row.
            stop_row: The row of the last observation; None as long as the episode continues.
        """
        self.rollout = rollout
        self.lane = lane
        self.first_row = first_row
        self.start_row = start_row
        self.stop_row = stop_row
        self.lookback = start_row - first_row

    @property
    def action_units(self) -> str:
        return self.rollout.action_units

    @property
    def given_units(self) -> str | None:
        return self.rollout.action_units

    @property
    def last_row(self) -> int:
        """The row of the newest observation."""
        stop_row = self.stop_row
        return self.rollout.cursor.item(self.lane) // self.rollout.num_lanes if stop_row is None else stop_row

    def __len__(self) -> int:
        return self.last_row - self.start_row

    def continued_by(self, other: LaneStorage) -> LaneStorage | None:
        """Returns a view of the rows of both storages, if the other one begins in the last row of this one."""
        if other.rollout is not self.rollout or other.lane != self.lane or other.start_row != self.stop_row:
            return None
        rows = {"first_row": self.first_row, "start_row": self.start_row, "stop_row": other.stop_row}
        return LaneStorage(self.rollout, self.lane, **rows)

    def part(self, name: str, start: int, stop: int | None) -> list | Tree:
        """Returns the items ``[start, stop)`` of a column: a view of the rollout where one column holds them all."""
        rollout = self.rollout
        lanes, first_row = rollout.num_lanes, self.first_row
        if stop is None:
            stop = self.stop_row
            stop = (self.last_row if stop is None else stop) - first_row
            if name in WITH_LAST:
                stop += 1
        begin = (first_row + start) * lanes + self.lane
        end = begin + (stop - start) * lanes if stop > start else begin
        column = rollout.columns.get(name)
        if type(column) is np.ndarray and name not in rollout.layered:
            return column[begin:end:lanes]
        positions = slice(begin, end, lanes)
        if name == INFOS:
            infos = rollout.infos
            if not infos:
                return [{} for _ in range(start, stop)]
            return [infos.get(position, {}) for position in range(positions.start, positions.stop, lanes)]
        if name in rollout.layered and not rollout.is_uniform(name, positions):
            return [rollout.item(name, position) for position in range(positions.start, positions.stop, lanes)]
        return rollout.read(name, positions)

    def position_of(self, name: str, index: int, from_start: bool) -> int:
        """Returns the position in the rollout of the item at a user's index, or -1 if there is none.

        Args:
            name: The column.
            index: An index that counts from t=0, or from the end if it is negative.
            from_start: Whether negative indices count backwards from t=0, too.
        """
        lanes, lane, stop_row = self.rollout.num_lanes, self.lane, self.stop_row
        newest = self.rollout.cursor.item(lane) if stop_row is None else stop_row * lanes + lane
        last = newest if name in WITH_LAST else newest - lanes
        if index < 0 and not from_start:
            position = last + (index + 1) * lanes
        else:
            position = (self.start_row + index) * lanes + lane
        return position if self.first_row * lanes + lane <= position <= last else -1

    def item(self, name: str, index: int, from_start: bool) -> Any:
        """Returns the item at a user's index (see ``position_of``), or ``NOTHING`` if there is none."""
        position = self.position_of(name, index, from_start)
        if position < 0:
            return NOTHING
        return self.rollout.infos.get(position, {}) if name == INFOS else self.rollout.item(name, position)

    @property
    def newest_t(self) -> int | None:
        """The env step of the newest observation."""
        rollout, stop_row = self.rollout, self.stop_row
        times: Any = rollout.columns[T]
        if stop_row is None:
            return times.item(rollout.cursor.item(self.lane))
        return times.item(stop_row * rollout.num_lanes + self.lane)

    def column(self, name: str) -> list | Tree:
        """Returns all items, oldest first, including the lookback."""
        return self.part(name, 0, None)

    def source(self, name: str) -> Tree:
        """Returns the items of ``column`` as the environment returned them, without later changes by pieces."""
        lanes = self.rollout.num_lanes
        first, stop = self.first_row, self.last_row + (name in WITH_LAST)
        return take(self.rollout.source(name), slice(first * lanes + self.lane, stop * lanes + self.lane, lanes))

    def item_at(self, name: str, t: int) -> Any:
        """Returns the item of the row that was observed at env step ``t``, ``NOTHING`` or ``UNSURE``."""
        rollout = self.rollout
        column = rollout.columns.get(name)
        if type(column) is not np.ndarray or name in rollout.layered:
            return UNSURE
        lanes, lane, last_row = rollout.num_lanes, self.lane, self.last_row
        observed_at: Any = rollout.columns[T].item  # type: ignore[union-attr]
        row = last_row - observed_at(last_row * lanes + lane) + t
        if row > last_row:
            return NOTHING
        if row < self.first_row or observed_at(row * lanes + lane) != t:
            return UNSURE
        if row < last_row or name in WITH_LAST:
            return column[row * lanes + lane]
        return NOTHING if self.stop_row is not None else UNSURE

    def extra_keys(self) -> tuple[str, ...]:
        """Returns the names of the recorded module outputs, and of the columns that were added to this episode."""
        rollout = self.rollout
        names = tuple([name for name in rollout.columns if name not in _NO_OUTPUTS])
        if not rollout.given:
            return names
        first, last = (row * rollout.num_lanes + self.lane for row in (self.first_row, self.last_row))
        return tuple([name for name in names if rollout.holds(name, first, last)])

    def pending(self) -> dict[str, Any] | None:
        """Returns action, reward so far and module outputs of the newest row if the agent has acted and waits."""
        if self.stop_row is not None or not self.rollout.pending[self.lane]:
            return None
        position = int(self.rollout.cursor[self.lane])
        here = slice(position, position + 1)
        names = (ACTIONS, REWARDS, *self.extra_keys())
        return {n: tree_map(lambda leaf: leaf[0], self.rollout.read(n, here)) for n in names}

    def set_items(self, name: str, positions: Sequence[int], items: Sequence[Any]) -> None:
        """Writes items to positions in ``column(name)``; later readers of the rollout see them."""
        lanes = self.rollout.num_lanes
        flat = [(self.first_row + position) * lanes + self.lane for position in positions]
        if name == INFOS:
            self.rollout.infos.update(zip(flat, items, strict=True))
        elif flat:
            here = slice(flat[0], flat[0] + 1) if len(flat) == 1 else np.array(flat, np.int64)
            self.rollout.write(name, here, spaces.stack(items))

    def set_pending(self, name: str, item: Any) -> None:
        """Overwrites an item of the row that waits."""
        position = int(self.rollout.cursor[self.lane])
        self.rollout.write(name, slice(position, position + 1), spaces.stack([item]))

    def set_column(self, name: str, values: list | Tree) -> None:
        """Writes all items of ``column(name)`` at once."""
        if name == INFOS:
            self.set_items(name, range(len(values)), values)  # type: ignore[arg-type]
            return
        lanes, begin = self.rollout.num_lanes, self.first_row * self.rollout.num_lanes + self.lane
        rows = self.last_row - self.first_row + (name in WITH_LAST)
        positions = slice(begin, begin + rows * lanes, lanes)
        self.rollout.write(name, positions, spaces.stack(values) if isinstance(values, list) else values)
