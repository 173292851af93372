"""Schedules are linear between their points and constant outside."""

from __future__ import annotations

import pytest

from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import check_schedule, value_at

POINTS = [[0, 1.0], [100, 0.5], [200, 0.5], [400, 0.1]]


@pytest.mark.parametrize(
    ("t", "value"), [(0, 1.0), (50, 0.75), (100, 0.5), (150, 0.5), (300, 0.3), (400, 0.1), (9999, 0.1)]
)
def test_the_value_at_a_time(t, value):
    assert value_at(POINTS, t) == pytest.approx(value)


def test_a_number_is_constant():
    assert value_at(3, 10) == 3.0


@pytest.mark.parametrize("good", [0.1, 3, POINTS, [(0, 1)]])
def test_numbers_and_points_pass(good):
    check_schedule("lr", good)


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
    ],
)
def test_anything_else_is_refused_with_its_value(bad):
    with pytest.raises(ConfigError, match=r"lr: expected a number or a schedule .* got "):
        check_schedule("lr", bad)
