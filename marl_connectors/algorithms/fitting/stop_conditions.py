"""Conditions that end a run before or instead of a number of steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from marl_connectors.algorithms.fitting.figures import number
from marl_connectors.algorithms.fitting.progress import COUNTS
from marl_connectors.callbacks.trackers import scalars
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.json_data import jsonable
from marl_connectors.validators import number as is_number

_LOG = logging.getLogger(__name__)
Stop = Mapping[str, float] | Callable[[dict[str, Any]], Any]
"""What ``Algorithm.fit(stop=...)`` accepts."""


class StopConditions:
    """What ends a run besides a number of steps, as ``Algorithm.fit`` describes it.

    Attributes:
        totals: The conditions on counts of the whole run, by their keys in the results.
    """

    def __init__(self, stop: Stop | None, *, has_evaluations: bool = True):
        """Checks the conditions.

        Args:
            stop: The lowest values of metrics that end the run, or a function of the results; None for no conditions.
            has_evaluations: Whether the results have evaluations.

        Raises:
            ConfigError: If they are neither, or can never be met.
        """
        if not (stop is None or callable(stop) or isinstance(stop, Mapping)):
            raise ConfigError(
                f"fit: expected stop to be a dict such as {{'env_runners/episode_return_mean': 450}}, or a function of "
                f"the result that returns a bool, but got {stop!r}."
            )
        self._function = stop if callable(stop) else None
        levels: Mapping[str, float] = stop if isinstance(stop, Mapping) else {}
        self._levels = {str(name): is_number().check(level, "fit", f"stop[{name!r}]") for name, level in levels.items()}
        for name in self._levels:
            if name.startswith("evaluation/") and not has_evaluations:
                of_training = f"env_runners/{name.removeprefix('evaluation/')}"
                raise ConfigError(
                    f"fit: stop[{name!r}] is never reached, because this run has no evaluations. Set "
                    f"config.evaluation(evaluation_interval=1), or use {of_training!r}."
                )
        self.totals = {name: level for name, level in self._levels.items() if name in COUNTS.values()}
        self._unknown = set(self._levels)

    def __bool__(self) -> bool:
        return self._function is not None or bool(self._levels)

    def met_by(self, result: dict[str, Any]) -> str:
        """Returns the condition that the result of an iteration meets, in words; "" if it meets none."""
        if self._levels:
            values = dict(scalars(jsonable(result)))
            self._warn_of_unknown(result, values)
            for name, level in self._levels.items():
                if name in values and values[name] >= level:
                    return f"{name} is {number(values[name])}, at least {number(level)}"
        if self._function is not None and self._function(result):
            return f"{getattr(self._function, '__name__', 'the function')} of stop= returned True"
        return ""

    def _warn_of_unknown(self, result: Mapping[str, Any], values: Mapping[str, float]) -> None:
        """Logs a warning, once, for names that the first result and the first evaluation do not have.

        It is no error, because callbacks may log a metric later.
        """
        for name in sorted(self._unknown):
            if name.startswith("evaluation/") and "evaluation" not in result:
                continue
            self._unknown.remove(name)
            if not _has(result, name):
                _LOG.warning("fit: stop: no result is called %r so far. %s", name, did_you_mean(name, sorted(values)))


def _has(result: Any, name: str) -> bool:
    """Whether there is such a result, even if it is not a number yet, as a return before an episode has ended."""
    for part in name.split("/"):
        if not isinstance(result, Mapping) or part not in result:
            return False
        result = result[part]
    return True
