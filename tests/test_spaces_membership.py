"""A quick look at many values at once finds whatever is out of bounds."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from marl_connectors.spaces import all_within, beyond_bounds, outside

SPACE = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 3.0], np.float32))


@pytest.mark.parametrize("row", [0, 40_000, 99_999])
@pytest.mark.parametrize("value", [1.5, -1.5, np.nan, np.inf])
def test_one_value_of_many_is_found(row, value):
    values = np.full((100_000, 2), 0.5, np.float32)
    assert all_within(SPACE, values)
    values[row, 0] = value
    assert not all_within(SPACE, values)
    bad, why = outside(SPACE, values)
    assert np.flatnonzero(bad).tolist() == [row] and str(np.float32(value)) in why


def test_bounds_of_a_component_are_looked_at_closer():
    values = np.array([[-0.5, 2.5]], np.float32)
    assert not all_within(SPACE, values) and not outside(SPACE, values)[0].any()
    assert not all_within(SPACE, values[:0]) and not all_within(spaces.Discrete(3), np.zeros(4, int))


def test_rows_and_components_beyond_bounds_are_those_of_the_plainest_loop():
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = tuple(rng.integers(1, 5, int(rng.integers(0, 3))).tolist())
        low = rng.integers(-5, 0, shape).astype(np.float32)
        space = spaces.Box(low, low + rng.integers(1, 9, shape).astype(np.float32), shape, np.float32)
        values = rng.integers(-6, 9, (int(rng.integers(0, 300)), *shape)).astype(np.float32)
        if rng.random() < 0.5:
            values = np.clip(values, space.low, space.high)
        rows = rng.random(len(values)) < 0.8
        found, components = beyond_bounds(space, values, rows)
        expected: dict[int, int] = {}
        for row, item in enumerate(values.reshape(len(values), int(np.prod(shape)))):
            bad = [i for i, x in enumerate(item) if not space.low.flat[i] <= x <= space.high.flat[i] and rows[row]]
            assert found[row] == bool(bad)
            for i in bad:
                expected.setdefault(i, row)
        assert components == expected


@pytest.mark.parametrize(
    "space",
    [SPACE, spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.Dict({"a": spaces.Discrete(2), "b": SPACE})],
)
def test_no_rows_are_all_inside(space):
    def none_of(own):
        if isinstance(own, spaces.Dict):
            return {key: none_of(part) for key, part in own.items()}
        return np.zeros((0, *own.shape), own.dtype)

    bad, why = outside(space, none_of(space))
    assert bad.shape == (0,) and why == ""


def test_the_first_and_the_last_number_of_a_discrete_space_are_members_and_their_neighbours_are_not():
    bad, why = outside(spaces.Discrete(3, start=5), np.array([4, 5, 6, 7, 8]))
    assert bad.tolist() == [True, False, False, False, True] and "4" in why
    bad, _ = outside(spaces.MultiDiscrete([2, 3], start=[1, -1]), np.array([[1, -1], [2, 1], [3, 0], [1, 2], [0, 0]]))
    assert bad.tolist() == [False, False, True, True, True]
