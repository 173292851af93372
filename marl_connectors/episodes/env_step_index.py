"""Finds an episode's rows by env step, for reading, slicing and printing.

An agent's rows follow one another in its own time, as it need not observe at every env step. The functions here find
the rows that belong to env steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from marl_connectors.episodes.episode_base import PLAIN
from marl_connectors.episodes.items import count, joined, row, unbatch
from marl_connectors.episodes.lookback import OUTSIDE, Padded, Positions, gather
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import (
    ACTIONS,
    INFOS,
    NOTHING,
    REWARDS,
    STEP,
    ArrayStorage,
    ListStorage,
    T,
    known_items,
)
from marl_connectors.typing import AgentID, Tree

NEVER: Final = -(2**62)
"""The env step of an index that is out of range."""

EnvSteps: TypeAlias = int | range | list[int]
"""One env step, a ``range`` of them in any step size, or a list of any."""
Lives: TypeAlias = Sequence[SingleAgentEpisode]
"""The episodes of one agent's lives in a chunk, oldest first."""
LEGEND: Final = "x observed and acted, o observed, T terminated, / truncated, . nothing"


def first_row_from(times: Sequence[int] | np.ndarray, t: int) -> int:
    """Returns the first row that was observed at env step ``t`` or later.

    Args:
        times: The env step of each row, ascending.
        t: An env step.

    Returns:
        The row's number, which is ``len(times)`` if all rows were observed before ``t``.
    """
    rows = len(times)
    if not rows:
        return 0
    at: Any = times.__getitem__ if type(times) is list else times.item  # type: ignore[union-attr]
    at_best = rows - 1 - (at(-1) - t)  # the row if the agent has observed at every env step since
    if at_best >= rows:
        return rows
    if at_best > 0:
        return at_best if at(at_best) == t else bisect_left(times, t, at_best)
    return 0 if at(0) >= t else bisect_left(times, t)


class AgentColumn:
    """One column of one agent over all its lives in a chunk.

    Attributes:
        items: One item for each row. An action that waits, and its reward so far, are in the last row.
        times: The env steps at which the rows were observed. The newest may belong to a row without an item.
    """

    __slots__ = ("items", "times")

    def __init__(self, items: list | Tree, times: Sequence[int] | np.ndarray):
        self.items = items
        self.times = times

    @classmethod
    def of(cls, lives: Lives, name: str) -> AgentColumn | None:
        """Joins the column of several lives; returns None if none of them has such a column."""
        parts: list[AgentColumn] = []
        for episode in lives:
            storage = episode.storage
            if name not in STEP and name not in storage.extra_keys():
                continue
            parts.append(cls(known_items(storage, name), storage.column(T)))  # type: ignore[arg-type]
        if len(parts) < 2:
            return parts[0] if parts else None
        whole = [part for part in parts if count(part.items)] or parts[:1]
        times = [int(t) for part in whole for t in part.times[: count(part.items)]]
        return cls(joined([part.items for part in whole]), times)

    def rows_at(self, wanted: EnvSteps, *, fill: bool) -> Positions:
        """Returns the rows that were observed at the wanted env steps, as positions in ``items``.

        Args:
            wanted: Env steps.
            fill: Whether a position is wanted for each env step; it is ``OUTSIDE`` where no row was observed.
        """
        if type(wanted) is int:
            return self._row_at(wanted)
        if type(wanted) is range and wanted.step == 1:
            return self._rows_in(wanted, fill)
        rows = [self._row_at(t) for t in wanted]  # type: ignore[union-attr]
        return rows if fill else [row for row in rows if row != OUTSIDE]

    def indices_in(self, wanted: range | list[int], *, fill: bool) -> Sequence[int]:
        """Returns the index in ``wanted`` of each row that ``rows_at`` returns."""
        if fill:
            return range(len(wanted))
        if type(wanted) is range and wanted.step == 1:
            rows = self._rows_in(wanted, fill)
            return [int(t) - wanted.start for t in self.times[rows]]  # type: ignore[index]
        return [index for index, t in enumerate(wanted) if self._row_at(t) != OUTSIDE]

    def _row_at(self, t: int) -> int:
        times = self.times
        row = first_row_from(times, t)
        rows = len(self.items) if type(self.items) in (list, np.ndarray) else count(self.items)
        return row if row < rows and times[row] == t else OUTSIDE

    def _rows_in(self, wanted: range, fill: bool) -> slice | Padded | list[int]:
        times, start = self.times, wanted.start
        high = min(first_row_from(times, wanted.stop), count(self.items))
        low = min(first_row_from(times, start), high)
        inside = slice(low, high)
        if not fill or high - low == len(wanted):
            return inside
        if low == high:
            return Padded(len(wanted), slice(0, 0), 0)
        before, after = int(times[low]) - start, wanted.stop - 1 - int(times[high - 1])
        if len(wanted) == before + high - low + after:
            return Padded(before, inside, after)
        rows = [OUTSIDE] * len(wanted)
        for number in range(low, high):
            rows[int(times[number]) - start] = number
        return rows


def _is_empty(positions: Positions) -> bool:
    if isinstance(positions, slice):
        return positions.start == positions.stop
    if isinstance(positions, Padded):
        return False
    return positions == OUTSIDE if isinstance(positions, int) else not positions


# Reading.


def items_at(lives: Lives, name: str, wanted: EnvSteps, fill: Any, one_hot_discrete: bool) -> Any:
    """Returns one agent's items of a column at some env steps: one item for an int, else a batch.

    Args:
        lives: The agent's lives.
        name: The column.
        wanted: Env steps.
        fill: The value where the agent has no item; None leaves these env steps out.
        one_hot_discrete: Whether discrete parts become one-hot vectors.

    Returns:
        ``NOTHING`` if the agent has no such column, or no item at these env steps and there is no ``fill``.
    """
    column = AgentColumn.of(lives, name)
    return NOTHING if column is None else _picked(column, lives, name, wanted, fill, one_hot_discrete)


def _picked(column: AgentColumn, lives: Lives, name: str, wanted: EnvSteps, fill: Any, one_hot_discrete: bool) -> Any:
    rows = column.rows_at(wanted, fill=fill is not None)
    if _is_empty(rows) and not (fill is not None and type(rows) is int):
        return NOTHING
    items = column.items
    if type(items) in PLAIN and type(rows) in (int, slice) and rows != OUTSIDE and not one_hot_discrete:
        return items[rows]  # type: ignore[index]
    return gather(items, rows, fill, lives[-1]._space(name), one_hot_discrete, name == INFOS)


def dicts_at(
    lives_of: Iterable[tuple[AgentID, Lives]],
    name: str,
    wanted: range | list[int],
    fill: Any,
    one_hot_discrete: bool,
) -> list[dict[AgentID, Any]]:
    """Returns a dict, agent to item, for each env step; see ``items_at``."""
    by_time: list[dict[AgentID, Any]] = [{} for _ in wanted]
    for agent_id, lives in lives_of:
        column = AgentColumn.of(lives, name)
        if column is None:
            continue
        picked = _picked(column, lives, name, wanted, fill, one_hot_discrete)
        if picked is NOTHING:
            continue
        indices = column.indices_in(wanted, fill=fill is not None)
        if type(picked) in PLAIN:
            for index, item in zip(indices, picked, strict=True):
                by_time[index][agent_id] = item
        else:
            for position, index in enumerate(indices):
                by_time[index][agent_id] = row(picked, position)
    return by_time


# Slicing.


def between(
    episode: SingleAgentEpisode,
    begin: int,
    end: int,
    *,
    env_t_started: int,
    env_t: int,
    len_lookback_buffer: int | None,
) -> SingleAgentEpisode | None:
    """Returns one agent's part of a slice of a multi-agent episode, or None if it has none.

    Args:
        episode: A life of the agent.
        begin: The first env step of the slice.
        end: The env step after its last one.
        env_t_started: The env step at which the whole chunk started.
        env_t: The newest env step of the whole chunk.
        len_lookback_buffer: The steps of lookback to keep; None for as many as ``episode`` has.
    """
    storage = episode.storage
    times = np.asarray(storage.column(T))
    if not len(times) or times[storage.lookback] > end:
        return None
    has_ended_before = episode.is_done and times[-1] <= begin
    if has_ended_before and begin > env_t_started:
        return None
    first = max(int(np.searchsorted(times, begin, "right")) - 1, storage.lookback)
    last = max(int(np.searchsorted(times, end, "right")) - 1, first)
    piece = episode._rows(first - storage.lookback, last - storage.lookback, len_lookback_buffer)
    joined_here = times[storage.lookback] > begin or (begin == env_t_started and (end > begin or env_t == begin))
    if joined_here:
        piece.uncredited_reward = episode.uncredited_reward
    elif begin == env_t_started:
        piece.withdraw_reward(episode.uncredited_reward)
    pending = storage.pending()
    if last < len(times) - 1:
        names = (ACTIONS, REWARDS, *storage.extra_keys())
        pending = {name: unbatch(storage.part(name, last, last + 1))[0] for name in names}
    if not episode.is_done or last < len(times) - 1:
        own = piece.storage
        assert isinstance(own, (ListStorage, ArrayStorage))
        own.open_row = pending if times[last] < end or end == env_t else None
    return piece


# Printing.


def table(lives_of: Mapping[AgentID, Lives], steps: range) -> str:
    """Returns a text table of who observed, acted and ended when, with a line for each agent.

    Args:
        lives_of: Agent to its lives.
        steps: The env steps to show, a column for each.
    """
    names = {agent_id: str(agent_id) for agent_id in lives_of}
    width = max([len("env step"), *map(len, names.values())])
    cell = max(3, len(str(steps.stop - 1)))
    lines = [f"{'env step':<{width}} " + " ".join(f"{t:>{cell}}" for t in steps)]
    for agent_id, lives in lives_of.items():
        marks: dict[int, str] = {}
        for life in lives:
            observed = [int(t) for t in life.storage.column(T)]
            marks.update(dict.fromkeys(observed, "x"))
            if observed and life.storage.pending() is None:
                marks[observed[-1]] = "T" if life.is_terminated else "/" if life.is_truncated else "o"
        lines.append(f"{names[agent_id]:<{width}} " + " ".join(f"{marks.get(t, '.'):>{cell}}" for t in steps))
    return "\n".join([*lines, LEGEND])
