"""Discounted sums of the rewards of many episodes that stand one after another."""

from __future__ import annotations

import numpy as np


def discounted_sums(rewards: np.ndarray, lengths: np.ndarray, gamma: float) -> np.ndarray:
    """At each row, its reward plus ``gamma`` times the sum at the row before it in the same episode.

    Works on all rows at once and doubles the reach in each round, so the cost is that of ``log2`` of the longest
    episode passes. Reversed rewards and lengths give sums until the end instead.

    Args:
        rewards: ``[N]``.
        lengths: ``[E]`` rows of each episode; they sum to ``N``.
        gamma: Discount per row, in [0, 1].

    Returns:
        ``[N]`` float64.

    >>> discounted_sums(np.array([1.0, 1.0, 1.0, 5.0]), np.array([3, 1]), 0.5)
    array([1.  , 1.5 , 1.75, 5.  ])
    """
    sums = np.array(rewards, np.float64)
    within = rows_within(lengths)
    reach, factor = 1, float(gamma)
    while reach < max(lengths, default=0):
        added = sums[:-reach] * factor
        added[within[reach:] < reach] = 0.0
        sums[reach:] += added
        reach, factor = 2 * reach, factor * factor
    return sums


def rows_within(lengths: np.ndarray) -> np.ndarray:
    """``[N]`` each row's number within its episode, for episodes of ``[E]`` rows."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
