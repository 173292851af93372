"""Generalised advantage estimates against numbers worked out by hand, and against the sum that defines them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_connectors.ops.discounting import compute_gae, compute_gae_of_episodes

# gamma = lambda = 1/2, rewards 1, 2, 4, values 2, 4, 8 and then 16. The temporal differences are
#   1 + 4/2 - 2 = 1,   2 + 8/2 - 4 = 2,   4 + 16/2 - 8 = 4   (and 4 + 0 - 8 = -4 where the next state has no value),
# and an advantage is a difference plus a quarter of the advantage that follows.
REWARDS, VALUES = np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 8.0, 16.0])
GOES_ON = [1 + 3 / 4, 3.0, 4.0]
TERMINATED = [1 + 1 / 4, 1.0, -4.0]
HALF = {"gamma": 0.5, "lambda_": 0.5}


def test_a_truncated_or_cut_episode_is_bootstrapped_from_its_last_observation():
    np.testing.assert_array_equal(compute_gae(REWARDS, VALUES, terminated=False, **HALF), GOES_ON)


def test_a_terminated_episode_is_worth_nothing_afterwards():
    np.testing.assert_array_equal(compute_gae(REWARDS, VALUES, terminated=True, **HALF), TERMINATED)
    other = np.array([2.0, 4.0, 8.0, np.pi])
    np.testing.assert_array_equal(compute_gae(REWARDS, other, terminated=True, **HALF), TERMINATED)


def test_a_cut_in_the_middle_bootstraps_from_the_value_at_the_cut():
    # The first two steps only: the second difference is as before, but nothing follows it.
    np.testing.assert_array_equal(compute_gae(REWARDS[:2], VALUES[:3], terminated=False, **HALF), [1 + 2 / 4, 2.0])
    np.testing.assert_array_equal(compute_gae(REWARDS[2:], VALUES[2:], terminated=True, **HALF), [-4.0])


def test_lambda_one_gives_discounted_returns_less_the_value():
    # From the end: 4 + 16/2 = 12, 2 + 12/2 = 8, 1 + 8/2 = 5.
    np.testing.assert_array_equal(
        compute_gae(REWARDS, VALUES, terminated=False, gamma=0.5, lambda_=1.0), [3.0, 4.0, 4.0]
    )


def test_lambda_zero_gives_temporal_differences():
    np.testing.assert_array_equal(
        compute_gae(REWARDS, VALUES, terminated=False, gamma=0.5, lambda_=0.0), [1.0, 2.0, 4.0]
    )


def test_episodes_that_stand_one_after_another_do_not_touch():
    # Truncated, terminated, one step long, and one that has only just begun (its last observation alone).
    rewards = np.concatenate([REWARDS, [99], REWARDS, [99], [7.0, 99], [99]])
    values = np.concatenate([VALUES, VALUES, [3.0, 5.0], [50.0]])
    advantages = compute_gae_of_episodes(
        rewards, values, np.array([4, 4, 2, 1]), np.array([False, True, True, False]), **HALF
    )
    np.testing.assert_array_equal(advantages, [*GOES_ON, 0, *TERMINATED, 0, 4.0, 0, 0])


def test_each_episode_has_its_own_gamma_and_lambda():
    values = np.concatenate([VALUES, VALUES])
    advantages = compute_gae_of_episodes(
        np.concatenate([REWARDS, [0], REWARDS, [0]]),
        values,
        np.array([4, 4]),
        np.array([False, False]),
        gamma=np.array([0.5, 0.5]),
        lambda_=np.array([1.0, 0.0]),
    )
    np.testing.assert_array_equal(advantages, [3.0, 4.0, 4.0, 0, 1.0, 2.0, 4.0, 0])


def test_a_value_too_few_is_refused():
    with pytest.raises(ValueError, match=r"(?s)\b3\b.*\b4\b.*\b3\b"):
        compute_gae(REWARDS, VALUES[:3], terminated=True, **HALF)


@given(st.data())
def test_advantages_are_the_weighted_sums_of_equation_16(data):
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    flags = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    rng = np.random.default_rng(data.draw(st.integers(0, 100)))
    rewards, values = rng.normal(size=sum(lengths)), rng.normal(size=sum(lengths))
    gamma, lambda_ = rng.random(2)
    found = compute_gae_of_episodes(rewards, values, np.array(lengths), np.array(flags), gamma=gamma, lambda_=lambda_)
    begin = 0
    for length, terminated in zip(lengths, flags, strict=True):
        r, v = rewards[begin : begin + length - 1], values[begin : begin + length].copy()
        if terminated and length > 1:
            v[-1] = 0.0
        deltas = [r[t] + gamma * v[t + 1] - v[t] for t in range(length - 1)]
        for t in range(length - 1):
            expected = sum((gamma * lambda_) ** k * deltas[t + k] for k in range(length - 1 - t))
            assert found[begin + t] == pytest.approx(expected, abs=1e-12)
        assert found[begin + length - 1] == 0.0
        begin += length
