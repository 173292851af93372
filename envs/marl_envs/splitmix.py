"""Random numbers for many seeds at once: SplitMix64 of Steele, Lea and Flood (2014), one stream for each key."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import numpy as np

__all__ = ["first_keys", "following_keys", "keys_of_seeds", "uniform"]

_GOLDEN = 0x9E3779B97F4A7C15


def _mixed(values: np.ndarray) -> np.ndarray:
    """Applies the generator's output function to uint64 ``values``, which are changed in place."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def first_keys(count: int) -> np.ndarray:
    """Returns ``[count]`` uint64 keys from the system's entropy, for resets without a seed."""
    return np.random.SeedSequence().generate_state(count, np.uint64)


def following_keys(keys: np.ndarray) -> np.ndarray:
    """Returns ``[n]`` uint64: the keys of the episodes that follow those of ``keys``."""
    return _mixed(keys ^ np.uint64(_GOLDEN))


def keys_of_seeds(seeds: Sequence[int | None], otherwise: np.ndarray, who: str) -> np.ndarray:
    """Returns the keys of seeds.

    Args:
        seeds: ``n`` non-negative integers below 2**64, or None.
        otherwise: ``[n]`` uint64, the keys for seeds that are None.
        who: The first word of the error message.

    Returns:
        ``[n]`` uint64.

    Raises:
        ValueError: For any other seed.
    """
    given = {i: seed for i, seed in enumerate(seeds) if seed is not None}
    try:
        values = np.array([index(seed) for seed in given.values()], np.uint64)
    except (OverflowError, TypeError):
        wrong = next(seed for seed in given.values() if not _is_seed(seed))
        raise ValueError(f"{who}: a seed must be None or an integer in [0, 2**64), but is {wrong!r}.") from None
    keys = otherwise.copy()
    keys[list(given)] = _mixed(values + np.uint64(_GOLDEN))
    return keys


def _is_seed(seed: object) -> bool:
    return isinstance(seed, (int, np.integer)) and 0 <= int(seed) < 2**64


def uniform(keys: np.ndarray, count: int) -> np.ndarray:
    """Returns ``[n, count]`` float32, uniform in [0, 1): the first ``count`` numbers of each key's stream."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    drawn = _mixed(keys[:, None] + steps)
    return (drawn >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
