"""Decides when a run is saved, so that little is lost however it ends."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

from marl_connectors.algorithms.fitting.run_folder import RunFolder
from marl_connectors.checkpoints import EncodedState

CHECKPOINT_AGE_S = 20.0
"""The age of the latest checkpoint after which another is saved, whatever the number of iterations."""
_SAVING_SHARE = 0.02
"""The largest share of the time that saving such checkpoints may take, and that keeping states may take."""
_SOON_KEPT_S = 0.02
"""States that are copied in this time are kept after every iteration."""


class Saver:
    """Saves an Algorithm every few iterations, and in between if the latest checkpoint is old.

    After an iteration that is not saved, it keeps a copy of the state, in case that the next iteration fails. Large
    states, such as those with a replay buffer, are copied after some of the iterations only, so that this takes little
    time.

    Attributes:
        saved_iteration: The iteration of the latest checkpoint; -1 before the first one.
    """

    def __init__(self, algo: Any, folder: RunFolder, every: int, saved_iteration: int = -1):
        """Begins to count the age of the latest checkpoint.

        Args:
            algo: The Algorithm.
            folder: The folder of the run.
            every: The number of iterations from one checkpoint to the next.
            saved_iteration: The iteration of the latest checkpoint; -1 if there is none.
        """
        self.saved_iteration = saved_iteration
        self._algo, self._folder = algo, folder
        self._every = every
        self._last: EncodedState | None = None
        self._iteration = 0
        self._saved_at = time.monotonic()
        self._saving_s = 0.0
        self._kept_at, self._keeping_s = -math.inf, 0.0
        self._is_within = self._has_failed = False

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        """Runs an iteration in its block. If that fails, the algorithm has no complete state any more."""
        self._is_within = True
        yield
        self._is_within = False

    def iteration_ended(self, iteration: int, *, is_last: bool) -> None:
        """Saves the algorithm if it is time, or else keeps its state if that takes little time.

        Args:
            iteration: The number of iterations so far.
            is_last: Whether the run is at its end, so that ``save`` comes next.
        """
        now = time.monotonic()
        age = now - self._saved_at
        if iteration % self._every == 0:
            self.save(iteration)
        elif age >= max(CHECKPOINT_AGE_S, self._saving_s / _SAVING_SHARE) and not is_last:
            self.save(iteration, in_between=True)
        elif self._keeping_s <= _SOON_KEPT_S or now - self._kept_at >= self._keeping_s / _SAVING_SHARE:
            self._last = None  # so that there are never two copies
            self._iteration, self._last = iteration, EncodedState.copy_of(self._algo.get_state())
            self._kept_at = time.monotonic()
            self._keeping_s = self._kept_at - now

    def save(self, iteration: int, *, in_between: bool = False) -> None:
        """Saves the algorithm, unless the latest checkpoint is of this iteration."""
        if self.saved_iteration == iteration:
            return
        began = time.monotonic()
        try:
            self._folder.save_checkpoint(self._algo, iteration, in_between=in_between)
        except Exception:
            self._has_failed = True
            raise
        self.saved_iteration, self._saved_at, self._last = iteration, time.monotonic(), None
        self._saving_s = self._saved_at - began

    def save_last(self) -> None:
        """Saves the newest complete state whose metrics are on disk, if it is not saved yet. Called if the run fails.

        It does nothing if the run fails because a checkpoint could not be written.
        """
        if self._has_failed:
            return
        if not self._is_within and 0 < self._algo.iteration == self._folder.logged_iteration:
            self.save(self._algo.iteration)
        elif self._last is not None:
            self._folder.save_checkpoint(self._last, self._iteration)
            self.saved_iteration, self._last = self._iteration, None
