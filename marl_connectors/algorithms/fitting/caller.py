"""Caller: who calls ``fit``, and so how its messages speak."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from marl_connectors.algorithms.fitting.figures import success_measure

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm


class Caller:
    """Who calls ``fit``, and so how its messages speak: a program in Python. The command line has another one.

    Attributes:
        facts: What the caller adds to ``config.json``.
    """

    facts: Mapping[str, Any] = {}
    who: ClassVar[str] = "Algorithm.fit"
    keeps_results: ClassVar[bool] = True
    """Whether the results of all iterations are wanted at the end, and not only the newest."""

    def name(self, argument: str) -> str:
        """Returns the first words of a message about an argument."""
        return f"{self.who}: {argument}"

    def setting(self, name: str, value: Any) -> str:
        """Returns how a setting is given a value."""
        return f"{name}={value!r}"

    def resume(self, path: Path) -> str:
        """Returns how the run in a folder is resumed."""
        return f"algo.fit(...), or later with Algorithm.from_checkpoint({str(path)!r}).fit(...)"

    def stopped(self, number: int) -> None:
        """Lets a signal do what it usually does, once the call has ended because of it. Ctrl-C has done its work."""
        if number != signal.SIGINT:
            signal.raise_signal(number)

    def why_no_success(self, algo: Algorithm) -> str:
        """Returns why the success of episodes could not be measured, in a sentence."""
        measure: Any = success_measure(algo.config)
        said = f"Success ({measure.name}) is not measured, because the state of the environments at the end of episodes"
        if algo.config.num_env_workers in (0, "auto"):
            return f"{said} is not available: they are natively batched."
        return f"{said} is in worker processes. To measure it, use {self.setting('num_env_workers', 0)}."
