"""Discounted sums over many episodes that stand one after another."""

from __future__ import annotations

import numpy as np


def discounted_sums(values: np.ndarray, lengths: np.ndarray, gamma: float | np.ndarray) -> np.ndarray:
    """At each row, its value plus ``gamma`` times the sum at the row before it in the same episode.

    Works on all rows at once and doubles the reach in each round, so the cost is that of ``log2`` of the longest
    episode passes. Reversed values and lengths give sums until the end instead.

    Args:
        values: ``[N]``, such as rewards.
        lengths: ``[E]`` rows of each episode; they sum to ``N``.
        gamma: Discount per row, in [0, 1]; one number or one per episode, ``[E]``.

    Returns:
        ``[N]`` float64.

    >>> discounted_sums(np.array([1.0, 1.0, 1.0, 5.0]), np.array([3, 1]), 0.5)
    array([1.  , 1.5 , 1.75, 5.  ])
    """
    sums = np.array(values, np.float64)
    within = rows_within(lengths) if len(lengths) > 1 else None
    factor = per_row(gamma, lengths)
    longest, reach = max(lengths, default=0), 1
    while reach < longest:
        added = sums[:-reach] * (factor[reach:] if factor.ndim else factor)
        if within is not None:
            added[within[reach:] < reach] = 0.0
        sums[reach:] += added
        reach, factor = 2 * reach, factor * factor
    return sums


def rows_within(lengths: np.ndarray) -> np.ndarray:
    """``[N]`` each row's number within its episode, for episodes of ``[E]`` rows."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def per_row(setting: float | np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """``[N]`` the setting of each row's episode; ``[]`` where all episodes have the same."""
    setting = np.asarray(setting, np.float64)
    return np.repeat(setting, lengths) if setting.ndim else setting
