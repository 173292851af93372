"""Random streams that are named by what they are for.

Nothing here draws from global state. A stream depends on the run's seed and on its name alone, so that the order in
which streams are used, the number of processes, and stopping and resuming do not change what is drawn.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def _sequence(seed: int, name: tuple[str | int, ...]) -> np.random.SeedSequence:
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in name]
    return np.random.SeedSequence(seed, spawn_key=tuple(words))


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """A generator for the stream called ``name``, for example ``stream(7, "actions", env_index, block)``.

    Args:
        seed: The run's seed, a non-negative integer.
        *name: Strings and non-negative integers that say what the numbers are for.
    """
    return np.random.Generator(np.random.SFC64(_sequence(seed, name)))


def derived_seed(seed: int, *name: str | int) -> int:
    """A seed in ``[0, 2**31)`` for code that takes only an integer, such as ``env.reset(seed=...)``."""
    return int(_sequence(seed, name).generate_state(1)[0] >> 1)


# Of numpy's SeedSequence, O'Neill's "seed_seq alternative" (2015), whose results numpy promises not to change.
_INIT_A, _MULT_A, _INIT_B, _MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)
_POOL_WORDS, _WORD = 4, 2**32


def derived_seeds(seed: int, name: str, *numbers: np.ndarray) -> np.ndarray:
    """What ``derived_seed`` gives for many names, in a few array operations for all of them.

    >>> derived_seeds(7, "env", np.array([3, 4]), np.array([0, 1])).tolist()
    [491461266, 1291288661]
    >>> [derived_seed(7, "env", 3, 0), derived_seed(7, "env", 4, 1)]
    [491461266, 1291288661]

    Args:
        seed: The run's seed.
        name: The first part of all names.
        *numbers: ``[N]`` integers in ``[0, 2**32)``: the second part of each name, the third, and so on.

    Returns:
        ``[N]`` uint32.
    """
    pool = [np.full(len(numbers[0]), word, np.uint32) for word in _sequence(seed, (name,)).pool]
    words_of_seed = -(-seed.bit_length() // 32)
    hashed = _POOL_WORDS**2 + _POOL_WORDS * (max(words_of_seed - _POOL_WORDS, 0) + 1)  # words that made this pool
    factor = _INIT_A * pow(_MULT_A, hashed, _WORD) % _WORD
    for part in numbers:
        for i in range(_POOL_WORDS):
            word = part.astype(np.uint32) ^ np.uint32(factor)
            factor = factor * _MULT_A % _WORD
            pool[i] = _folded(_MIX_LEFT * pool[i] - _MIX_RIGHT * _folded(word * np.uint32(factor)))
    return _folded((pool[0] ^ np.uint32(_INIT_B)) * np.uint32(_INIT_B * _MULT_B % _WORD)) >> np.uint32(1)


def _folded(words: np.ndarray) -> np.ndarray:
    return words ^ words >> np.uint32(16)


@contextmanager
def torch_stream(seed: int, *name: str | int) -> Iterator[None]:
    """Makes torch's global generator the stream called ``name`` while the block runs, and restores it afterwards.

    For code that cannot be given a generator: the initialisation of a user's ``torch.nn.Module`` and the ``sample()``
    of a user's distribution.
    """
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, *name))
        yield


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Puts Python's, numpy's and torch's global generators back to where they were before the block.

    For code that may draw from them, as environments do that know no better.
    """
    import torch

    python, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
