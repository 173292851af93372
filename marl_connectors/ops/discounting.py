"""Discounted sums over concatenated episodes, and GAE, which is computed from them.

Generalised advantage estimation is equation 16 of Schulman et al. (2016), arXiv:1506.02438.
"""

from __future__ import annotations

import numpy as np


def discounted_sums(values: np.ndarray, lengths: np.ndarray, gamma: float | np.ndarray) -> np.ndarray:
    """Returns for each row its value plus ``gamma`` times the sum at the row before it in the same episode.

    It computes all rows at once and doubles the reach in each pass, so that the number of passes is ``log2`` of the
    longest episode. Reversed values and lengths give sums until the end of each episode instead.

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
    """Returns ``[N]``, each row's number within its episode, for episodes of ``[E]`` rows."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def per_row(setting: float | np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Returns ``[N]``, the setting of each row's episode, or ``[]`` if all episodes have the same setting."""
    setting = np.asarray(setting, np.float64)
    return np.repeat(setting, lengths) if setting.ndim else setting


def compute_gae(
    rewards: np.ndarray, values: np.ndarray, *, terminated: bool, gamma: float, lambda_: float
) -> np.ndarray:
    """Advantages of one agent episode, or of a chunk of one, not standardised.

    Args:
        rewards: ``[T]`` in the environment's units, after each action.
        values: ``[T + 1]`` value estimates of the observations; the last one is of the observation after the last
            action. It bootstraps a chunk that was cut or truncated, and is ignored if the chunk was terminated.
        terminated: Whether the state after the last action has no value.
        gamma: Discount per agent step, in [0, 1].
        lambda_: Bias/variance trade-off, in [0, 1].

    Returns:
        ``[T]`` float64.

    Raises:
        ValueError: If ``values`` is not one longer than ``rewards``.

    >>> compute_gae(np.array([1.0, 1.0]), np.array([0.0, 0.5, 2.0]), terminated=False, gamma=0.5, lambda_=0.5)
    array([1.625, 1.5  ])
    """
    if len(values) != len(rewards) + 1:
        raise ValueError(f"compute_gae: {len(rewards)} rewards need {len(rewards) + 1} values, not {len(values)}.")
    padded = np.append(np.asarray(rewards, np.float64), 0.0)
    return compute_gae_of_episodes(
        padded, values, np.array([len(values)]), np.array([terminated]), gamma=gamma, lambda_=lambda_
    )[:-1]


def compute_gae_of_episodes(
    rewards: np.ndarray,
    values: np.ndarray,
    lengths: np.ndarray,
    terminateds: np.ndarray,
    *,
    gamma: float | np.ndarray,
    lambda_: float | np.ndarray,
) -> np.ndarray:
    """Computes GAE for many concatenated episodes.

    It computes all rows at once, in ``log2`` of the longest episode passes.

    Args:
        rewards: ``[N]``; each episode's last row, its last observation, is ignored.
        values: ``[N]``.
        lengths: ``[E]`` rows of each episode, the row of its last observation included; they sum to ``N``.
        terminateds: ``[E]`` bool.
        gamma: Discount per agent step; one number or one per episode, ``[E]``.
        lambda_: Trade-off; one number or one per episode, ``[E]``.

    Returns:
        ``[N]`` float64; 0 in each episode's last row.
    """
    rewards, values = np.asarray(rewards, np.float64), np.asarray(values, np.float64)
    ends = np.cumsum(lengths) - 1
    next_values = np.append(values[1:], 0.0)
    next_values[ends[terminateds & (lengths > 1)] - 1] = 0.0
    deltas = rewards + per_row(gamma, lengths) * next_values - values
    deltas[ends] = 0.0
    decay = np.multiply(gamma, lambda_)
    sums = discounted_sums(deltas[::-1], lengths[::-1], decay[::-1] if decay.ndim else decay)
    return np.ascontiguousarray(sums[::-1])
