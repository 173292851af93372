"""Decides when a run is saved, so that little is lost however it ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from marl_connectors.algorithms.fitting.run_folder import RunFolder

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm

CHECKPOINT_AGE_S = 20.0
"""The age of the latest checkpoint after which another is saved, whatever the number of iterations."""
_SAVING_SHARE = 0.02
"""The largest share of the time that saving such checkpoints may take."""


class Saver:
    """Saves an Algorithm every few iterations, and in between if the latest checkpoint is old.

    Attributes:
        saved_iteration: The iteration of the latest checkpoint; -1 before the first one.
    """

    def __init__(self, algo: Algorithm, folder: RunFolder, every: int, saved_iteration: int = -1):
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
        self._saved_at = time.monotonic()
        self._saving_s = 0.0
        self._has_failed = False

    def iteration_ended(self, iteration: int, *, is_last: bool) -> None:
        """Saves the algorithm if it is time.

        Args:
            iteration: The number of iterations so far.
            is_last: Whether the run is at its end, so that ``save`` comes next.
        """
        age = time.monotonic() - self._saved_at
        if iteration % self._every == 0:
            self.save(iteration)
        elif age >= max(CHECKPOINT_AGE_S, self._saving_s / _SAVING_SHARE) and not is_last:
            self.save(iteration, in_between=True)

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
        self.saved_iteration, self._saved_at = iteration, time.monotonic()
        self._saving_s = self._saved_at - began

    def save_last(self) -> None:
        """Saves the algorithm if the run fails: it has gone back to its newest complete iteration.

        It does nothing if it could not go back, if the metrics of this iteration are not on disk, or if a checkpoint
        could not be written.
        """
        if not (self._has_failed or self._algo.is_broken) and 0 < self._algo.iteration == self._folder.logged_iteration:
            self.save(self._algo.iteration)
