"""Random streams that are named by their purpose.

Nothing in this module draws from global state. A stream depends on the run's seed and on its name alone, so that the
order in which streams are used, the number of processes, and stopping and resuming do not change what is drawn.
"""

from __future__ import annotations

import hashlib
import random
import threading
import zlib
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np


def _sequence(seed: int, name: tuple[str | int, ...]) -> np.random.SeedSequence:
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in name]
    return np.random.SeedSequence(seed, spawn_key=tuple(words))


def stream(seed: int, *name: str | int) -> np.random.Generator:
    """Returns a generator for the stream called ``name``, for example ``stream(7, "actions", env_index, block)``.

    Args:
        seed: The run's seed, a non-negative integer.
        *name: Strings and non-negative integers that name the purpose of the numbers.
    """
    return np.random.Generator(np.random.SFC64(_sequence(seed, name)))


# Of numpy's SeedSequence, O'Neill's "seed_seq alternative" (2015), whose results numpy promises not to change.
_INIT_A, _MULT_A, _INIT_B, _MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT = 0xCA01F9DD, 0x4973F715
_POOL_WORDS, _WORD, _LOW = 4, 2**32, 2**32 - 1


@lru_cache(maxsize=2**15)
def _pool(seed: int, *name: str | int) -> tuple[Sequence[int], int]:
    """Returns a sequence's pool, and the factor that its next word is hashed with."""
    if len(name) > 1 and _is_word(name[-1]):
        return _with_word(*_pool(seed, *name[:-1]), name[-1])
    sequence = _sequence(seed, name)
    words_of_seed = -(-seed.bit_length() // 32)
    extra = max(words_of_seed - _POOL_WORDS, 0) + sum(max(1, -(-w.bit_length() // 32)) for w in sequence.spawn_key)
    factor = _INIT_A * pow(_MULT_A, _POOL_WORDS**2 + _POOL_WORDS * extra, _WORD) % _WORD
    return tuple(map(int, sequence.pool)), factor


def _with_word(pool: Sequence[Any], factor: int, word: Any) -> tuple[list[Any], int]:
    """Returns a pool, or its first words, after another word of the name: an integer, or ``[N]`` uint64."""
    mixed = []
    for own in pool:
        hashed = word ^ factor
        factor = factor * _MULT_A & _LOW
        own = _MIX_LEFT * own - _MIX_RIGHT * _folded(hashed * factor & _LOW) & _LOW
        mixed.append(_folded(own))
    return mixed, factor


def _is_word(part: Any) -> bool:
    return type(part) is int and 0 <= part < _WORD


def _folded(word: Any) -> Any:
    return word ^ word >> 16


def _seed_of(first: Any) -> Any:
    """Returns the seed in ``[0, 2**31)`` of the first word of a pool."""
    return _folded((first ^ _INIT_B) * (_INIT_B * _MULT_B & _LOW) & _LOW) >> 1


def derived_seed(seed: int, *name: str | int) -> int:
    """Returns a seed in ``[0, 2**31)`` for code that only accepts an integer, such as ``env.reset(seed=...)``.

    Names that only differ in a number at the end are fast: each needs only a few operations.
    """
    if name and _is_word(name[-1]):
        pool, factor = _pool(seed, *name[:-1])
        return _seed_of(_with_word(pool[:1], factor, name[-1])[0][0])
    return int(_sequence(seed, name).generate_state(1)[0] >> 1)


def derived_seeds(seed: int, name: str, *numbers: np.ndarray) -> np.ndarray:
    """Returns the results of ``derived_seed`` for many names, computed in a few array operations.

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
    pool, factor = _pool(seed, name)
    mixed: Any = [np.full(len(numbers[0]), word, np.uint64) for word in pool]
    for part in numbers:
        mixed, factor = _with_word(mixed, factor, part.astype(np.uint64))
    return _seed_of(mixed[0]).astype(np.uint32)


def episode_seed(seed: int, env_number: int, episode_number: int) -> int:
    """Returns the seed of an episode's ``env.reset``.

    Args:
        seed: The run's seed.
        env_number: The number of the sub-environment in the run.
        episode_number: The index of the episode in the sub-environment.
    """
    return derived_seed(seed, "env", env_number, episode_number)


def episode_seeds(seed: int, env_numbers: np.ndarray, episode_numbers: np.ndarray) -> np.ndarray:
    """Returns ``[N]`` uint32, the results of ``episode_seed`` for many episodes.

    Args:
        seed: The run's seed.
        env_numbers: ``[N]``, the numbers of the sub-environments in the run.
        episode_numbers: ``[N]``, the indices of the episodes in their sub-environments.
    """
    return derived_seeds(seed, "env", env_numbers, episode_numbers)


# Many streams at once: SplitMix64 (Steele, Lea and Flood (2014), OOPSLA), whose n-th number can be computed alone.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mixed(words: np.ndarray) -> np.ndarray:
    """Scrambles ``uint64`` words in place: SplitMix64's output function."""
    words ^= words >> _SHIFTS[0]
    words *= _FACTORS[0]
    words ^= words >> _SHIFTS[1]
    words *= _FACTORS[1]
    words ^= words >> _SHIFTS[2]
    return words


@lru_cache(4096)
def name_word(name: Hashable) -> int:
    """Returns a 64-bit word for a name of any type, for ``stream_words``. Different names have different words."""
    text = f"{type(name).__name__}:{name!r}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def stream_words(seed: int, name: str) -> np.ndarray:
    """Returns the word of the stream called ``name`` in a run with this seed, as ``[1]`` uint64."""
    return _sequence(seed, (name,)).generate_state(1, np.uint64)


def substream_words(words: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Returns the words of streams within streams.

    Args:
        words: ``[...]`` uint64, the words of the outer streams.
        parts: ``[...]`` uint64, the number of the inner stream within each outer stream.

    Returns:
        ``[...]`` uint64, in the shape that both arguments broadcast to.
    """
    return _mixed(words + (parts + np.uint64(1)) * _GOLDEN)


class StreamGenerator:
    """Draws from many streams at once: the numbers of each depend on its own word alone.

    It has the methods of numpy's ``Generator`` that distributions use for their noise. ``size`` is the shape of
    ``words``, followed by the shape of the numbers to draw from each stream.

    >>> words = substream_words(stream_words(7, "actions"), np.arange(3, dtype=np.uint64))
    >>> both, alone = StreamGenerator(words), StreamGenerator(words[1:2])
    >>> bool((both.random((3, 5))[1] == alone.random((1, 5))[0]).all())
    True

    Args:
        words: ``[...]`` uint64, a word for each stream.
    """

    def __init__(self, words: np.ndarray):
        self._words = words
        self._num_drawn = 0

    def _draw(self, size: tuple[int, ...]) -> np.ndarray:
        """Returns the next uint64 of each stream, ``size`` of them."""
        *streams, number = size
        if tuple(streams) != self._words.shape:
            raise ValueError(
                f"StreamGenerator: the size is {size}, but must begin with {self._words.shape}, one entry for each "
                f"stream, followed by how many numbers each of them gives."
            )
        counts = np.arange(self._num_drawn + 1, self._num_drawn + number + 1, dtype=np.uint64)
        self._num_drawn += number
        return _mixed(self._words[..., None] + counts * _GOLDEN)

    def random(self, size: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """Draws uniformly distributed numbers in (0, 1), without the ends."""
        if np.dtype(dtype) == np.float64:
            return ((self._draw(size) >> np.uint64(12)) + 0.5) * 2.0**-52
        halves = self._draw((*size[:-1], (size[-1] + 1) // 2)).view(np.uint32)[..., : size[-1]]
        numbers = (halves >> np.uint32(9)).astype(np.float32)
        numbers += np.float32(0.5)
        numbers *= np.float32(2.0**-23)
        return numbers

    def standard_exponential(self, size: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """Draws exponentially distributed numbers with the mean 1; always positive."""
        numbers = self.random(size, dtype)
        np.log(numbers, out=numbers)
        return np.negative(numbers, out=numbers)

    def standard_normal(self, size: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """Draws normally distributed numbers with mean 0 and standard deviation 1, by the Box-Muller method."""
        half = (*size[:-1], (size[-1] + 1) // 2)
        radius = np.sqrt(2.0 * self.standard_exponential(half, dtype))
        angle = self.random(half, dtype)
        angle *= angle.dtype.type(2.0 * np.pi)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)[..., : size[-1]]

    def logistic(self, *, size: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        """Draws logistically distributed numbers: the log-odds of a uniform number."""
        numbers = self.random(size, dtype)
        return np.log(numbers) - np.log1p(-numbers)


_TORCH_GENERATOR = threading.RLock()


@contextmanager
def torch_stream(seed: int, *name: str | int) -> Iterator[None]:
    """Makes torch's global generator the stream called ``name`` while the block runs, and restores it afterwards.

    This is for code that takes no generator: the initialisation of a user's ``torch.nn.Module`` and the ``sample()``
    of a user's distribution. Other threads that call this function wait meanwhile, because all threads share one
    generator.
    """
    import torch

    generator = torch.default_generator
    with _TORCH_GENERATOR:
        before = generator.get_state()
        try:
            number = derived_seed(seed, *name)
            # Without a GPU in use, torch.manual_seed formats a traceback, in case that one is used later.
            (torch.manual_seed if torch.cuda.is_initialized() else generator.manual_seed)(number)
            yield
        finally:
            generator.set_state(before)


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Restores Python's, numpy's and torch's global generators after the block.

    This is for code that may draw from them, as some environments do.
    """
    import torch

    python, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
