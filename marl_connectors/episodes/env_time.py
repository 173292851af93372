"""Which of an agent's rows were observed at which env steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from marl_connectors.episodes.batching import joined
from marl_connectors.episodes.lookback import OUTSIDE, Padded, Positions, count
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import STEP, T, known_items
from marl_connectors.typing import Tree

NEVER: Final = -(2**62)
"""The env step of an index that is out of range."""

EnvSteps: TypeAlias = int | range | list[int]
"""One env step, some in a row (``range``, in any step size), or any."""


def first_row_from(times: Sequence[int] | np.ndarray, t: int) -> int:
    """The first row that was observed at env step ``t`` or later; ``times`` rise, and have as many items as rows."""
    rows = len(times)
    if not rows:
        return 0
    at: Any = times.__getitem__ if type(times) is list else times.item  # type: ignore[union-attr]
    at_best = rows - 1 - (at(-1) - t)  # where it is if the agent observed at every env step since
    if at_best >= rows:
        return rows
    if at_best > 0:
        return at_best if at(at_best) == t else bisect_left(times, t, at_best)
    return 0 if at(0) >= t else bisect_left(times, t)


class AgentColumn:
    """One column of one agent over all its lives in a chunk.

    Attributes:
        items: One a row. An action that waits, and its reward so far, are known, and stand in the last row.
        times: The env steps at which the rows were observed; the newest may be of a row that has no item yet.
    """

    __slots__ = ("items", "times")

    def __init__(self, items: list | Tree, times: Sequence[int] | np.ndarray):
        self.items = items
        self.times = times

    @classmethod
    def of(cls, lives: Sequence[SingleAgentEpisode], name: str) -> AgentColumn | None:
        """The column over several lives; None if none of them has such a column."""
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
        """The rows observed at the wanted env steps, as positions in ``items``.

        Args:
            wanted: Env steps.
            fill: Whether a row is wanted for each of them; those that there are not come back as ``OUTSIDE``.
        """
        if type(wanted) is int:
            return self._row_at(wanted)
        if type(wanted) is range and wanted.step == 1:
            return self._rows_in(wanted, fill)
        rows = [self._row_at(t) for t in wanted]  # type: ignore[union-attr]
        return rows if fill else [row for row in rows if row != OUTSIDE]

    def places(self, wanted: range | list[int], *, fill: bool) -> Sequence[int]:
        """Of the rows that ``rows_at`` gives, each one's place in ``wanted``."""
        if fill:
            return range(len(wanted))
        if type(wanted) is range and wanted.step == 1:
            rows = self._rows_in(wanted, fill)
            return [int(t) - wanted.start for t in self.times[rows]]  # type: ignore[index]
        return [place for place, t in enumerate(wanted) if self._row_at(t) != OUTSIDE]

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
        for row in range(low, high):
            rows[int(times[row]) - start] = row
        return rows


def is_empty(positions: Positions) -> bool:
    """Whether there is no row at all."""
    if isinstance(positions, slice):
        return positions.start == positions.stop
    if isinstance(positions, Padded):
        return False
    return positions == OUTSIDE if isinstance(positions, int) else not positions
