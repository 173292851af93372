"""Schedules are linear between their points and constant outside."""

from __future__ import annotations

import numpy as np
import pytest

from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import schedule, value_at

POINTS = [[0, 1.0], [100, 0.5], [200, 0.5], [400, 0.1]]


@pytest.mark.parametrize(
    ("t", "value"), [(0, 1.0), (50, 0.75), (100, 0.5), (150, 0.5), (300, 0.3), (400, 0.1), (9999, 0.1)]
)
def test_the_value_at_a_time(t, value):
    assert value_at(POINTS, t) == pytest.approx(value)


@pytest.mark.parametrize("seed", range(5))
def test_values_are_those_of_numpy(seed):
    rng = np.random.default_rng(seed)
    times = [0.0, *np.cumsum(rng.integers(1, 1000, rng.integers(0, 6))).tolist()]
    points = [[t, float(rng.normal())] for t in times]
    for t in [*times, *rng.uniform(0, times[-1] + 100, 20), int(rng.integers(2000))]:
        assert value_at(points, t) == pytest.approx(np.interp(t, times, [value for _, value in points]), rel=1e-15)


def test_a_number_is_constant():
    assert value_at(3, 10) == 3.0


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (0.1, 0.1),
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (POINTS, POINTS),
        ([(0, 1)], [[0.0, 1.0]]),
        (np.array([[0, 1], [9, 2]]), [[0.0, 1.0], [9.0, 2.0]]),
    ],
)
def test_numbers_and_points_pass_as_numbers_of_python(given, kept):
    assert schedule().check(given, "Learner", "lr") == kept


@pytest.mark.parametrize(
    "bad",
    [
        "fast",
        None,
        True,
        [],
        [1.0],
        [[0, 1.0], [0, 2.0]],
        [[5, 1.0]],
        [[0, 1.0], [20, 2.0], [10, 1.0]],
        float("nan"),
        [[0, float("inf")]],
        [[0, 1, 2]],
        [["0", "1"]],
        np.array(["a", "b"]),
    ],
)
def test_anything_else_is_refused_with_its_value(bad):
    with pytest.raises(ConfigError, match=r"(?s)^Learner.*\blr\b"):
        schedule().check(bad, "Learner", "lr")


def test_no_value_may_be_below_the_least_one():
    for bad in (-1, [[0, 0.1], [10, -0.1]]):
        with pytest.raises(ConfigError, match=r"from 0\b"):
            schedule(min=0).check(bad, "Learner", "lr")
