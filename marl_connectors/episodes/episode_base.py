"""Base class of SingleAgentEpisode and MultiAgentEpisode."""

from __future__ import annotations

import copy
from time import perf_counter
from typing import Any, Final

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.errors import EpisodeError
from marl_connectors.state import Finite, State

PLAIN: Final = (list, np.ndarray)
"""The types of columns that are indexed without a walk over their parts."""


class EpisodeNotes(State):
    """What is unusual about an episode, beside its columns, ids, spaces and ends: mostly nothing.

    Attributes:
        custom_data: The user's own notes.
        duration_s: The seconds between the first and the last addition; None if nothing was added.
        check_spaces: Whether additions are checked.
    """

    custom_data: dict[Any, Any] | None = None
    duration_s: Finite | None = None
    check_spaces: bool = False


class EpisodeBase:
    """Done flags, the user's own notes, and a clock."""

    __slots__ = ("_custom_data", "_first_time", "_last_time", "check_spaces", "is_terminated", "is_truncated")

    is_terminated: bool
    is_truncated: bool
    check_spaces: bool
    _custom_data: dict[str, Any] | None
    _first_time: float | None
    _last_time: float | None

    def _init_base(self) -> None:
        self.is_terminated = self.is_truncated = self.check_spaces = False
        self._custom_data = self._first_time = self._last_time = None

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended, by termination or by truncation."""
        return self.is_terminated or self.is_truncated

    @property
    def custom_data(self) -> dict[str, Any]:
        """A user's own notes, of which ``cut()`` and slices get a copy."""
        if self._custom_data is None:
            self._custom_data = {}
        return self._custom_data

    def _copy_notes(self, other: EpisodeBase) -> None:
        if other._custom_data:
            self._custom_data = copy.deepcopy(other._custom_data)

    def _base_notes(self) -> dict[str, Any]:
        notes: dict[str, Any] = {}
        if self._custom_data:
            notes["custom_data"] = self._custom_data
        if self._first_time is not None:
            notes["duration_s"] = self.get_duration_s()
        if self.check_spaces:
            notes["check_spaces"] = True
        return notes

    def _set_base_notes(self, notes: EpisodeNotes) -> None:
        self._custom_data, self.check_spaces = notes.custom_data, notes.check_spaces
        if notes.duration_s is not None:
            self._set_duration(notes.duration_s)

    def get_duration_s(self) -> float:
        """Returns the seconds between the first and the last addition; concatenated chunks add up."""
        return 0.0 if self._first_time is None or self._last_time is None else self._last_time - self._first_time

    def _tick(self) -> None:
        """Notes the time of an addition."""
        self._last_time = now = perf_counter()
        if self._first_time is None:
            self._first_time = now

    def _append_notes(self, other: EpisodeBase) -> None:
        """Adopts done flags, notes and duration of the chunk that was appended."""
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        if other._custom_data:
            self.custom_data.update(copy.deepcopy(other._custom_data))
        self._set_duration(self.get_duration_s() + other.get_duration_s())

    def _set_duration(self, seconds: float) -> None:
        self._last_time = perf_counter()
        self._first_time = self._last_time - seconds


def check_item(space: Space, item: Any, name: str, who: str) -> None:
    """Raises an EpisodeError unless an observation or an action is in its space."""
    why = spaces.misfit(space, item)
    if why:
        what = "observation" if name == Columns.OBS else "action"
        raise EpisodeError(
            f"{who}: the {what} leaves its space, {spaces.describe(space)}: {why}. Correct the {what} or the space, or "
            f"turn check_spaces off."
        )


def check_lookback(len_lookback_buffer: Any, who: str) -> None:
    """Raises an EpisodeError unless a length of the lookback is an int of 0 or more."""
    if not isinstance(len_lookback_buffer, (int, np.integer)) or len_lookback_buffer < 0:
        raise EpisodeError(f"{who}: len_lookback_buffer must be an int of 0 or more, but is {len_lookback_buffer!r}.")


def slice_bounds(slice_: slice, len_lookback_buffer: int | None, length: int, who: str) -> tuple[int, int]:
    """Returns the first step of a slice, and the one after its last.

    Raises:
        EpisodeError: If ``slice_`` is no slice or has a step size, or if the lookback is negative.
    """
    if not isinstance(slice_, slice):
        raise EpisodeError(f"{who}: a slice(start, stop) is needed, but {slice_!r} came.")
    if slice_.step not in (None, 1):
        raise EpisodeError(f"{who}: a slice with step {slice_.step} would lose rewards. Leave the step out.")
    if len_lookback_buffer is not None:
        check_lookback(len_lookback_buffer, who)
    start, stop, _ = slice_.indices(length)
    return start, max(start, stop)
