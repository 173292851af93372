"""MetricsLogger: collects values that connector pieces and callbacks log, and reduces them for the results."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from marl_connectors.errors import ConfigError, did_you_mean, listed
from marl_connectors.names import brief
from marl_connectors.state import ID, Count, State, read_state

EMA_COEFF = 0.01
_OF_NUMBERS = {"mean": np.mean, "min": np.min, "max": np.max, "sum": np.sum}
_Reduction: TypeAlias = Literal["mean", "min", "max", "sum", "ema", "lifetime_sum", "item", "item_series"]
REDUCTIONS = get_args(_Reduction)
_ARGUMENTS = ("reduce", "window", "ema_coeff", "clear_on_reduce")
Key = str | tuple[Any, ...]


class MetricsLogger:
    """Collects values under keys, and reduces all values under a key in an iteration to one metric.

    The first call with a key defines its reduction:

    * ``reduce``: ``"mean"``, ``"min"``, ``"max"``, ``"sum"``, ``"ema"`` (a moving average), ``"lifetime_sum"``,
      ``"item"`` (the newest value) or ``"item_series"`` (a list of all values). None for ``"mean"`` with a window, and
      ``"ema"`` without one.
    * ``window``: the number of newest values that count; None for all.
    * ``ema_coeff``: the weight of a new value in a moving average, 0.01 by default.
    * ``clear_on_reduce``: whether values are removed at the end of an iteration. By default, moving averages and sums
      of a lifetime continue, and all other metrics are cleared.

    Tuples are keys of nested dicts in the results.
    """

    def __init__(self) -> None:
        self._metrics: dict[tuple[Any, ...], Metric] = {}

    def __repr__(self) -> str:
        names = ["/".join(map(str, path)) for path in self._metrics]
        return f"<{type(self).__name__} of {listed(names, 'metric', at_most=8)}>"

    def log_value(
        self,
        key: Key,
        value: Any,
        *,
        reduce: str | None = None,
        window: int | None = None,
        ema_coeff: float | None = None,
        clear_on_reduce: bool | None = None,
        **unknown: Any,
    ) -> None:
        """Logs a value; see the class for the arguments.

        Args:
            key: A name, or a tuple of names.
            value: A number, or an array or tensor with one number; any object for items.
            reduce: The reduction.
            window: The number of newest values that count.
            ema_coeff: The weight of a new value in a moving average.
            clear_on_reduce: Whether values are removed at the end of an iteration.

        Raises:
            ConfigError: If an argument, a value or a key is invalid.
        """
        path = key if isinstance(key, tuple) else (key,)
        metric = self._metrics.get(path)
        if metric is None or unknown:
            metric = self._add("log_value", path, reduce, window, ema_coeff, clear_on_reduce, unknown)
        metric.push(_plain(value) if metric.takes_anything else _number(path, value))

    def log_dict(
        self, value_dict: Mapping[str, Any], *, key: Key | None = None, reduce: str | None = "mean", **settings: Any
    ) -> None:
        """Logs each value of a dict, which may be nested, under its own name.

        Args:
            value_dict: The values.
            key: A key in front of the names.
            reduce: The reduction, as for ``log_value``.
            **settings: Other arguments of ``log_value``.
        """
        self._check_names("log_dict", settings)
        start = () if key is None else key if isinstance(key, tuple) else (key,)
        for name, value in value_dict.items():
            path = (*start, *name) if isinstance(name, tuple) else (*start, name)
            if isinstance(value, Mapping):
                self.log_dict(value, key=path, reduce=reduce, **settings)
            else:
                self.log_value(path, value, reduce=reduce, **settings)

    @contextmanager
    def log_time(self, key: Key, *, reduce: str | None = "ema", **settings: Any) -> Iterator[None]:
        """Logs the duration of a with block in seconds.

        Args:
            key: The key, as for ``log_value``.
            reduce: The reduction, as for ``log_value``.
            **settings: Other arguments of ``log_value``.
        """
        self._check_names("log_time", settings)
        began = time.perf_counter()
        yield
        self.log_value(key, time.perf_counter() - began, reduce=reduce, **settings)

    def peek(self, key: Key | None = None, default: Any = None) -> Any:
        """Returns the current results.

        Args:
            key: The key of a metric or of a dict of metrics; None for all.
            default: The result if nothing was ever logged under the key.

        Raises:
            KeyError: If nothing was ever logged under the key, and there is no default.
        """
        if key is None:
            return self._nested(())
        path = key if isinstance(key, tuple) else (key,)
        if path in self._metrics:
            return self._metrics[path].result()
        if any(known[: len(path)] == path for known in self._metrics):
            return self._nested(path)
        if default is not None:
            return default
        raise KeyError(f"MetricsLogger.peek: nothing was logged as {key!r}. {did_you_mean(key, self._names())}")

    def reduce(self) -> dict[str, Any]:
        """Returns the results of an iteration, without keys that have no values. The algorithm calls it at its end."""
        found = self._nested(())
        for metric in self._metrics.values():
            if metric.clear_on_reduce:
                metric.clear()
        return found

    def get_state(self) -> list[Metric]:
        """Returns copies of all metrics."""
        return [metric.copied() for metric in self._metrics.values()]

    def set_state(self, state: Sequence[Any]) -> None:
        """Restores the metrics that ``get_state`` returned."""
        self._metrics = {metric.key: metric.copied() for metric in read_state(list[Metric], state)}

    def _add(
        self,
        call: str,
        path: tuple[Any, ...],
        reduce: str | None,
        window: int | None,
        ema_coeff: float | None,
        clear_on_reduce: bool | None,
        unknown: Mapping[str, Any],
    ) -> Metric:
        self._check_names(call, unknown)
        who = f"MetricsLogger.{call}: {_text(path)}"
        for known in self._metrics:
            shorter = min(len(known), len(path))
            if known[:shorter] == path[:shorter]:
                raise ConfigError(
                    f"{who} cannot be logged beside {_text(known)}, because one contains the other. Rename one."
                )
        if reduce is not None and reduce not in REDUCTIONS:
            raise ConfigError(f"{who}: there is no reduce={reduce!r}. {did_you_mean(reduce, REDUCTIONS)}")
        if window is not None and (ema_coeff is not None or reduce in ("ema", "lifetime_sum")):
            raise ConfigError(f"{who}: a moving average or a lifetime sum has no window. Leave one of them out.")
        if window is not None and not (isinstance(window, (int, np.integer)) and window > 0):
            raise ConfigError(f"{who}: expected window to be a number of values, 1 or more, but it is {window!r}.")
        if ema_coeff is not None and (reduce not in (None, "mean", "ema") or not 0 < ema_coeff <= 1):
            raise ConfigError(
                f"{who}: ema_coeff must be in (0, 1], and is for reduce='ema' only. Leave ema_coeff or reduce out."
            )
        if ema_coeff is not None or (reduce is None and window is None):
            reduce = "ema"
        reduce = reduce or "mean"
        if reduce == "sum" and clear_on_reduce is False:
            reduce = "lifetime_sum"
        clears = reduce not in ("ema", "lifetime_sum") if clear_on_reduce is None else bool(clear_on_reduce)
        metric = self._metrics[path] = Metric(
            key=path,
            reduce=cast("_Reduction", reduce),
            window=None if window is None else int(window),
            ema_coeff=EMA_COEFF if ema_coeff is None else float(ema_coeff),
            clear_on_reduce=clears,
        )
        return metric

    def _check_names(self, call: str, given: Mapping[str, Any]) -> None:
        for name in given:
            if name not in _ARGUMENTS:
                hint = did_you_mean(name, _ARGUMENTS)
                raise ConfigError(f"MetricsLogger.{call}: there is no argument {name!r}. {hint}")

    def _nested(self, start: tuple[Any, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path, metric in self._metrics.items():
            if path[: len(start)] != start or not metric.count:
                continue
            inner = found
            for name in path[len(start) : -1]:
                inner = inner.setdefault(name, {})
            inner[path[-1]] = metric.result()
        return found

    def _names(self) -> list[str]:
        return [_text(path).strip("'") for path in self._metrics]


class RecordingLogger(MetricsLogger):
    """A MetricsLogger that also keeps all values as they were logged, to log them elsewhere again.

    Attributes:
        calls: The key, the value and the settings of each call of ``log_value``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Key, Any, dict[str, Any]]] = []

    def log_value(self, key: Key, value: Any, **settings: Any) -> None:
        """Logs a value; see ``MetricsLogger``."""
        super().log_value(key, value, **settings)
        self.calls.append((key, _plain(value), settings))


class Metric(State):
    """The metric under one key. It stores values for a window or a series, and otherwise their running reduction.

    Attributes:
        key: The path of names.
        reduce: The reduction.
        window: The number of newest values that count; None for all.
        ema_coeff: The weight of a new value in a moving average.
        clear_on_reduce: Whether values are removed at the end of an iteration.
        count: The number of values.
        total: The running reduction, or the newest item.
        values: The values of a window or a series. The newest of them count.
    """

    key: Annotated[tuple[ID, ...], Meta(min_length=1)]
    reduce: _Reduction
    window: Annotated[int, Meta(ge=1, lt=2**31)] | None
    ema_coeff: float
    clear_on_reduce: bool
    count: Count = 0
    total: Any = 0.0
    values: list[Any] = []

    def __post_init__(self) -> None:
        if bool(self.values) != (self.keeps_values and self.count > 0):
            raise ValueError(f"Expected as many values as were counted, {self.count}, got {len(self.values)}")
        for value in () if self.takes_anything else (self.total, *self.values):
            if type(value) not in (int, float):
                raise ValueError(f"Expected numbers, got {brief(value)}")

    @property
    def takes_anything(self) -> bool:
        return self.reduce in ("item", "item_series")

    @property
    def keeps_values(self) -> bool:
        return self.window is not None or self.reduce == "item_series"

    def copied(self) -> Metric:
        found = copy.copy(self)
        found.values = self.newest()
        return found

    def newest(self) -> list[Any]:
        return list(self.values) if self.window is None else self.values[-self.window :]

    def clear(self) -> None:
        self.count, self.total, self.values = 0, 0.0, []

    def push(self, value: Any) -> None:
        first, kind = self.count == 0, self.reduce
        self.count += 1
        if self.keeps_values:
            self.values.append(value)
            if self.window is not None and len(self.values) > 2 * self.window:
                del self.values[: -self.window]
        elif first or kind == "item":
            self.total = value
        elif kind == "ema":
            self.total = (1 - self.ema_coeff) * self.total + self.ema_coeff * value
        elif kind in ("min", "max"):
            self.total = min(self.total, value) if kind == "min" else max(self.total, value)
        else:
            self.total += value

    def result(self) -> Any:
        if self.reduce == "item_series":
            return self.newest()
        if not self.count:
            return None if self.reduce == "item" else float("nan")
        if self.keeps_values:
            return self.values[-1] if self.reduce == "item" else float(_OF_NUMBERS[self.reduce](self.newest()))
        return self.total / self.count if self.reduce == "mean" else self.total


def merged_metrics(states: Sequence[Sequence[Metric]]) -> list[Metric]:
    """Merges the metrics of several loggers into the state of one logger.

    Sums, means, extrema and lists are those of all values. A moving average becomes the mean of the moving averages,
    weighted by the numbers of their values, and the newest value is that of the last logger that has one. The first
    logger with a key defines its reduction. Metrics under the same key with another reduction are left out.

    Args:
        states: The states that ``get_state`` returned.

    Returns:
        The state for ``set_state``.
    """
    found: dict[tuple[Any, ...], list[Metric]] = {}
    for metric in chain.from_iterable(states):
        found.setdefault(metric.key, []).append(metric)
    return [_merged(own) if len(own) > 1 else own[0] for own in found.values()]


def _merged(metrics: Sequence[Metric]) -> Metric:
    first = metrics[0]
    kind = first.reduce, first.keeps_values
    used = [m for m in metrics if m.count and (m.reduce, m.keeps_values) == kind] or metrics[:1]
    count, totals = sum(metric.count for metric in used), [metric.total for metric in used]
    values = [value for metric in used for value in metric.values] if first.keeps_values else []
    if first.window is not None:
        values = values[-first.window :]
    if first.reduce in ("min", "max"):
        total = min(totals) if first.reduce == "min" else max(totals)
    elif first.reduce == "ema":
        weighted = [metric.count * metric.total for metric in used]
        total = sum(weighted) / count if len(used) > 1 else totals[0]
    else:
        total = totals[-1] if first.takes_anything else sum(totals)
    return replace(first, count=count, total=total, values=values)


def reduced(loggers: Mapping[str, MetricsLogger]) -> dict[str, dict[str, Any]]:
    """Returns the metrics of several loggers by their names."""
    return {name: logger.reduce() for name, logger in loggers.items()}


def by_pipeline(logged: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns ``{"connectors": {pipeline: metrics}}`` for pipelines whose pieces have logged values, else ``{}``."""
    found = {name: metrics for name, metrics in logged.items() if metrics}
    return {"connectors": found} if found else {}


def with_logged(results: dict[str, Any], logger: MetricsLogger) -> dict[str, Any]:
    """Returns the results together with the values that callbacks have logged.

    Raises:
        ConfigError: If something was logged under a name that the results have.
    """
    logged = logger.reduce()
    for name in logged:
        if name in results:
            raise ConfigError(
                f"metrics_logger: {name!r} was logged, but the results have a {name!r}. Use another name."
            )
    return results | logged


def _plain(value: Any) -> Any:
    """Converts tensors and numpy scalars with one number to a Python number."""
    if hasattr(value, "item") and (getattr(value, "ndim", 0) == 0):
        return value.item()
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _number(path: tuple[Any, ...], value: Any) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return float(value.item())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"MetricsLogger: expected one number as {_text(path)}, but got {type(value).__name__} "
            f"{np.shape(value) if hasattr(value, 'shape') else repr(value)[:40]}. Log its mean, or reduce='item'."
        ) from None


def _text(path: tuple[Any, ...]) -> str:
    return repr("/".join(map(str, path)))
