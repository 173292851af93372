"""Random streams that are named by what they are for.

Nothing here draws from global state. A stream depends on the run's seed and on its name alone, so that the order in
which streams are used, the number of processes, and stopping and resuming do not change what is drawn.
"""

from __future__ import annotations

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
