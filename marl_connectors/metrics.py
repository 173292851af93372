"""MetricsLogger: collects values that connector pieces and callbacks log, and reduces them for the results."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from marl_connectors.errors import ConfigError, did_you_mean, listed

EMA_COEFF = 0.01
_OF_NUMBERS = {"mean": np.mean, "min": np.min, "max": np.max, "sum": np.sum}
REDUCTIONS = (*_OF_NUMBERS, "ema", "lifetime_sum", "item", "item_series")
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
        self._metrics: dict[tuple[Any, ...], _Metric] = {}

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
            if metric.clears:
                metric.clear()
        return found

    def get_state(self) -> list[dict[str, Any]]:
        """Returns all metrics. They are JSON data if the logged values are."""
        return [{"key": list(path), **metric.get_state()} for path, metric in self._metrics.items()]

    def set_state(self, state: list[dict[str, Any]]) -> None:
        """Restores the metrics that ``get_state`` returned."""
        self._metrics = {tuple(metric["key"]): _Metric.from_state(metric) for metric in state}

    def _add(
        self,
        call: str,
        path: tuple[Any, ...],
        reduce: str | None,
        window: int | None,
        ema_coeff: float | None,
        clear_on_reduce: bool | None,
        unknown: Mapping[str, Any],
    ) -> _Metric:
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
        metric = _Metric(reduce, window, EMA_COEFF if ema_coeff is None else float(ema_coeff), clears)
        self._metrics[path] = metric
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


class _Metric:
    """The metric under one key. It stores values for a window or a list, and otherwise their running reduction."""

    __slots__ = ("clears", "coeff", "count", "kind", "total", "values", "window")

    def __init__(self, kind: str, window: int | None, coeff: float, clears: bool):
        self.kind = kind
        self.window = window
        self.coeff = coeff
        self.clears = clears
        self.clear()

    def clear(self) -> None:
        keeps_values = self.window is not None or self.kind == "item_series"
        self.values: deque[Any] | None = deque(maxlen=self.window) if keeps_values else None
        self.count = 0
        self.total: Any = 0.0

    @property
    def takes_anything(self) -> bool:
        return self.kind in ("item", "item_series")

    def push(self, value: Any) -> None:
        first, kind = self.count == 0, self.kind
        self.count += 1
        if self.values is not None:
            self.values.append(value)
        elif first or kind == "item":
            self.total = value
        elif kind == "ema":
            self.total = (1 - self.coeff) * self.total + self.coeff * value
        elif kind in ("min", "max"):
            self.total = min(self.total, value) if kind == "min" else max(self.total, value)
        else:
            self.total += value

    def result(self) -> Any:
        if self.kind == "item_series":
            return list(self.values or ())
        if not self.count:
            return None if self.kind == "item" else float("nan")
        if self.values is not None:
            return self.values[-1] if self.kind == "item" else float(_OF_NUMBERS[self.kind](self.values))
        return self.total / self.count if self.kind == "mean" else self.total

    def get_state(self) -> dict[str, Any]:
        return {
            "reduce": self.kind,
            "window": self.window,
            "ema_coeff": self.coeff,
            "clear_on_reduce": self.clears,
            "count": self.count,
            "total": self.total,
            "values": None if self.values is None else list(self.values),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> _Metric:
        metric = cls(state["reduce"], state["window"], state["ema_coeff"], state["clear_on_reduce"])
        metric.count, metric.total = state["count"], state["total"]
        if metric.values is not None:
            metric.values.extend(state["values"])
        return metric


def merged_metrics(states: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Merges the metrics of several loggers into the state of one logger.

    Sums, means, extrema and lists are those of all values. A moving average becomes the mean of the moving averages,
    weighted by the numbers of their values, and the newest value is that of the last logger that has one. The first
    logger with a key defines its reduction. Metrics under the same key with another reduction are left out.

    Args:
        states: The states that ``get_state`` returned.

    Returns:
        The state for ``set_state``.
    """
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for state in states:
        for metric in state:
            found.setdefault(tuple(metric["key"]), []).append(metric)
    return [{**own[0], **_merged(own)} if len(own) > 1 else own[0] for own in found.values()]


def _merged(metrics: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kind, window = metrics[0]["reduce"], metrics[0]["window"]
    used = [metric for metric in metrics if metric["count"] and metric["reduce"] == kind] or metrics[:1]
    count, totals = sum(metric["count"] for metric in used), [metric["total"] for metric in used]
    values = metrics[0]["values"]
    if values is not None:
        values = [value for metric in used for value in metric["values"] or ()]
        values = values if window is None else values[-window:]
    if kind in ("min", "max"):
        total = min(totals) if kind == "min" else max(totals)
    elif kind == "ema":
        weighted = [metric["count"] * metric["total"] for metric in used]
        total = sum(weighted) / count if len(used) > 1 else totals[0]
    else:
        total = totals[-1] if kind in ("item", "item_series") else sum(totals)
    return {"count": count, "total": total, "values": values}


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
