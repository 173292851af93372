"""Moments of numbers, against numpy's on all numbers at once."""

import numpy as np
import pytest
from msgspec.structs import astuple

from marl_connectors.ops.moments import Moments


def test_moments_of_parts_are_merged_into_those_of_the_whole():
    values = np.random.default_rng(0).normal(1e3, 2.0, 50)
    merged = Moments()
    for part in np.split(values, [0, 1, 7, 7, 30]):
        merged = merged.merged(Moments.of(part))
    assert astuple(merged) == pytest.approx((50, values.mean(), values.var() * 50))
    assert merged.variance == pytest.approx(values.var())


def test_weights_count_as_repetitions_do():
    few, others = np.array([1.0, 4.0]), np.array([0.0, 2.0, 7.0])
    repeated = Moments.of(np.concatenate([np.tile(few, 3), others]))
    found = Moments.of(few).weighted(3.0).merged(Moments.of(others))
    assert astuple(found) == pytest.approx(astuple(repeated))


def test_no_numbers_have_variance_1_and_change_nothing():
    one = Moments.of(np.array([5.0]))
    assert (Moments().variance, one.variance) == (1.0, 0.0)
    assert one.merged(Moments.of(np.zeros(0))) == one == Moments().merged(one)
