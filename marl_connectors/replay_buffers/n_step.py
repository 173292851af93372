"""Numbers of rewards in n-step returns: one number, or a range from which one is drawn for each item of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

NStep: TypeAlias = int | Sequence[int]
"""A number, or the least and the largest number of a range."""


def largest_n_step(n_step: NStep) -> int:
    """Returns the largest number of rewards.

    >>> largest_n_step(3), largest_n_step((2, 5))
    (3, 5)
    """
    return n_step if isinstance(n_step, int) else n_step[1]


def drawn_n_steps(n_step: NStep, number: int, generator: np.random.Generator) -> np.ndarray:
    """Returns ``[number]`` numbers of rewards. Those of a range are equally likely."""
    if isinstance(n_step, int):
        return np.full(number, n_step)
    return generator.integers(n_step[0], n_step[1] + 1, size=number)
