"""What a run keeps beside its results, and the base class of the parts that make it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting.caller import Caller
from marl_connectors.algorithms.fitting.progress import PlayProgress, announced

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.algorithms.config.settings import RunSettings
    from marl_connectors.algorithms.fitting.run_folder import RunFolder


@dataclasses.dataclass(slots=True)
class Run:
    """A call of ``fit``, as its parts know it.

    Attributes:
        algo: The Algorithm.
        folder: The folder of the run.
        caller: Who calls ``fit``.
        say: Prints a sentence, unless nothing is to be shown.
        shows: Whether anything is to be shown.
        requested: The signal that has asked for an end; None if there was none.
        results: The places of what was made, by its name, for the end of the run.
    """

    algo: Algorithm
    folder: RunFolder
    caller: Caller
    say: Callable[[str], None]
    shows: bool
    requested: int | None = None
    results: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def settings(self) -> RunSettings:
        """What is kept in the folder: the algorithm's config."""
        return self.algo.config

    def busy(self, activity: str) -> AbstractContextManager[Any]:
        """Says in its block what the run is busy with, if it takes more than some seconds."""
        return announced(activity) if self.shows else contextlib.nullcontext()

    def watching(self, episodes: int) -> AbstractContextManager[Any]:
        """Gives an ``on_progress`` to its block, which prints from time to time how many episodes have ended."""
        return PlayProgress(episodes) if self.shows else contextlib.nullcontext()


class Part:
    """Something that a run makes beside its results."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def before_training(self) -> None:
        """Called before the first iteration of a run that does not go on. The folder is empty."""

    def on_result(self, result: Mapping[str, Any]) -> None:
        """Called after each iteration, before it is saved."""

    def after_iteration(self, result: Mapping[str, Any]) -> None:
        """Called after each iteration, when it is saved or kept."""

    def at_end(self) -> None:
        """Called when the goal of the run is reached, unless a signal has stopped it."""

    def close(self) -> None:
        """Called at every end of the call, also after an error."""
