"""Settings that change with the number of sampled steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from marl_connectors.errors import ConfigError

Schedule: TypeAlias = float | Sequence[Sequence[float]]
"""A number, or ``[[t, value], ...]``: linear between the points and constant outside, ``t`` in sampled steps."""


def value_at(schedule: Schedule, t: float) -> float:
    """A schedule's value after ``t`` sampled steps.

    >>> value_at([[0, 1.0], [100, 0.0]], 25)
    0.75
    """
    if isinstance(schedule, (int, float)):
        return float(schedule)
    times, values = zip(*schedule, strict=True)
    return float(np.interp(t, times, values))


def check_schedule(name: str, schedule: object, *, low: float = -np.inf) -> None:
    """Raises ConfigError unless ``schedule`` is a finite number or a list of at least one ``[t, value]`` pair.

    The times must start at 0 and increase, and no value may be below ``low``.
    """
    is_number = isinstance(schedule, (int, float)) and not isinstance(schedule, bool)
    if is_number and np.isfinite(float(schedule)) and float(schedule) >= low:  # type: ignore[arg-type]
        return
    try:
        points = np.array(schedule, np.float64)
    except (TypeError, ValueError):
        points = np.zeros(0)
    if (
        points.ndim != 2
        or points.shape[-1] != 2
        or not np.isfinite(points).all()
        or points[0, 0] != 0
        or (np.diff(points[:, 0]) <= 0).any()
        or (points[:, 1] < low).any()
    ):
        bound = "" if low == -np.inf else f" and values from {low:g}"
        raise ConfigError(
            f"{name}: expected a number or a schedule [[0, value], [t, value], ...] with increasing times{bound}, "
            f"got {schedule!r}."
        )
