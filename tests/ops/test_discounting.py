"""Discounted sums against the recursion that defines them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.examples import examples
from marl_connectors.ops.discounting import compute_gae_of_episodes, discounted_sums


def one_by_one(values, lengths, gammas):
    """Row after row, in Python."""
    found, begin = [], 0
    for length, gamma in zip(lengths, gammas, strict=True):
        running = 0.0
        for value in values[begin : begin + length]:
            running = value + gamma * running
            found.append(running)
        begin += length
    return found


@examples(40)
@given(st.lists(st.tuples(st.integers(1, 70), st.floats(0, 1)), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_each_row_has_the_discounted_sum_of_its_own_episode(episodes, seed):
    lengths, gammas = (np.array(column) for column in zip(*episodes, strict=True))
    values = np.random.default_rng(seed).normal(size=lengths.sum())
    np.testing.assert_allclose(
        discounted_sums(values, lengths, gammas), one_by_one(values, lengths, gammas), rtol=1e-12, atol=1e-12
    )
    same = discounted_sums(values, lengths, float(gammas[0]))
    np.testing.assert_array_equal(same, discounted_sums(values, lengths, np.full(len(lengths), gammas[0])))


def test_what_is_not_finite_stays_in_its_episode():
    sums = discounted_sums(np.array([np.inf, 1.0, 2.0, 4.0]), np.array([2, 2]), 0.5)
    np.testing.assert_array_equal(sums, [np.inf, np.inf, 2.0, 5.0])


def test_no_episodes_have_no_sums():
    assert discounted_sums(np.zeros(0), np.zeros(0, np.int64), 0.9).shape == (0,)


@pytest.mark.parametrize("lengths", [[100_001], [3, 50_000, 1, 40_000]])
def test_advantages_of_long_episodes_are_as_exact_as_the_recursion(lengths):
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, sum(lengths)))
    terminateds = np.arange(len(lengths)) % 2 == 0
    found = compute_gae_of_episodes(rewards, values, np.array(lengths), terminateds, gamma=0.99, lambda_=0.95)
    begin = 0
    for length, terminated in zip(lengths, terminateds, strict=True):
        own = values[begin : begin + length].copy()
        if terminated:
            own[-1] = 0.0
        deltas = rewards[begin : begin + length - 1] + 0.99 * own[1:] - values[begin : begin + length - 1]
        expected = [*one_by_one(deltas[::-1], [length - 1], [0.99 * 0.95])[::-1], 0.0]
        np.testing.assert_allclose(found[begin : begin + length], expected, rtol=1e-10, atol=1e-12)
        begin += length
    assert found.flags.c_contiguous  # torch.from_numpy takes no negative strides
