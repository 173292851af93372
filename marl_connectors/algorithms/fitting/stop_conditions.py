"""Conditions that end a run before or instead of a number of steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting.figures import number
from marl_connectors.algorithms.fitting.metric_names import EVALUATION, has_own_code, why_missing
from marl_connectors.algorithms.fitting.progress import COUNTS
from marl_connectors.algorithms.fitting.run_files import names_of
from marl_connectors.callbacks.trackers import scalars
from marl_connectors.errors import ConfigError
from marl_connectors.json_data import jsonable
from marl_connectors.validators import number as is_number

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

_LOG = logging.getLogger(__name__)
Stop = Mapping[str, float] | Callable[[dict[str, Any]], Any]
"""What ``Algorithm.fit(stop=...)`` accepts."""


class StopConditions:
    """What ends a run besides a number of steps, as ``Algorithm.fit`` describes it.

    Attributes:
        totals: The conditions on counts of the whole run, by their keys in the results.
    """

    def __init__(self, stop: Stop | None, config: AlgorithmConfig, callbacks: Sequence[Any] = ()):
        """Checks the conditions.

        Args:
            stop: The lowest values of metrics that end the run, or a function of the results; None for no conditions.
            config: The ``AlgorithmConfig`` of the run.
            callbacks: Callbacks that are not in the config.

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
            if name.startswith(f"{EVALUATION}/") and (why := why_missing(name, (), config)):
                raise ConfigError(f"fit: stop[{name!r}] is never reached: {why}")
        self.totals = {name: level for name, level in self._levels.items() if name in COUNTS.values()}
        self._config = config
        self._has_own_code = has_own_code(config, callbacks)
        self._unknown, self._names = set(self._levels), set[str]()

    def __bool__(self) -> bool:
        return self._function is not None or bool(self._levels)

    def met_by(self, result: Any) -> str:
        """Returns the condition that the result of an iteration meets, in words; "" if it meets none.

        Raises:
            ConfigError: If a condition is on something that no result is called. Names the closest result.
        """
        if self._levels:
            row = jsonable(result)
            values = dict(scalars(row))
            self._check_names(row)
            for name, level in self._levels.items():
                if name in values and values[name] >= level:
                    return f"{name} is {number(values[name])}, at least {number(level)}"
        if self._function is not None and self._function(result):
            return f"{getattr(self._function, '__name__', 'the function')} of stop= returned True"
        return ""

    def _check_names(self, row: Mapping[str, Any]) -> None:
        """Refuses names that the results lack. It warns instead, once, if code of the user's may log them later."""
        if not self._unknown:
            return
        self._names.update(names_of(row))
        for name in sorted(self._unknown):
            why = why_missing(name, self._names, self._config, own_code=False)
            if why and not self._has_own_code:
                raise ConfigError(f"fit: stop[{name!r}] is never reached: {why}")
            if why:
                _LOG.warning("fit: stop[%r] is not reached so far: %s", name, why)
            if why or name in self._names:
                self._unknown.remove(name)
