"""Settings that change with the number of sampled steps."""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

from marl_connectors.validators import Unfit, Validator, any_of, imported, number

Schedule: TypeAlias = float | Sequence[Sequence[float]]
"""A number, or ``[[t, value], ...]``: linear between the points and constant outside, ``t`` in sampled steps."""


def value_at(schedule: Schedule, t: float) -> float:
    """A schedule's value after ``t`` sampled steps.

    >>> value_at([[0, 1.0], [100, 0.0]], 25)
    0.75
    """
    if isinstance(schedule, (int, float)):
        return float(schedule)
    after = bisect.bisect_right(schedule, t, key=operator.itemgetter(0))
    if after in (0, len(schedule)):
        return float(schedule[max(after - 1, 0)][1])
    (start, first), (end, last) = schedule[after - 1 : after + 1]
    return float((last - first) / (end - start) * (t - start) + first)


def schedule(min: float | None = None, max: float | None = None) -> Validator:
    """A number, or a list of ``[t, value]`` pairs whose times start at 0 and increase.

    Args:
        min: The least value.
        max: The largest value, which needs a ``min``.
    """
    time, value = number(min=0), number(min) if max is None else number(min, max=max)

    def keep(given: Any) -> Schedule:
        if isinstance(given, imported("numpy:ndarray")):
            given = given.tolist()
        if not isinstance(given, (list, tuple)):
            return value.keep(given)
        points = []
        for pair in given:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise Unfit
            points.append([time.keep(pair[0]), value.keep(pair[1])])
        times = [t for t, _ in points]
        if not points or times[0] != 0 or any(later <= t for t, later in itertools.pairwise(times)):
            raise Unfit
        return points

    bound = "" if min is None else f" and values from {min:g}{'' if max is None else f' to {max:g}'}"
    expected = f"a schedule [[0, value], [t, value], ...] with increasing times{bound}"
    point = {"type": "array", "prefixItems": [time.schema, value.schema], "minItems": 2, "maxItems": 2}
    schema = any_of(value.schema, {"type": "array", "items": point, "minItems": 1})
    return Validator(f"{value.expected}, or {expected}", keep, schema)
