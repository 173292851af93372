"""Moments of a set of numbers, which can be merged with those of other sets."""

from __future__ import annotations

import numpy as np

from marl_connectors.state import State


class Moments(State):
    """The count of some numbers, their mean, and the sum of their squared distances from it.

    If the numbers have weights, the count is the sum of the weights, and the squared distances are weighted too.

    >>> Moments.of(np.array([1.0, 3.0])).merged(Moments.of(np.array([5.0])))
    Moments(count=3.0, mean=3.0, squares=8.0)
    """

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values: np.ndarray) -> Moments:
        """Returns the moments of ``[B]`` numbers, which may be none."""
        if not len(values):
            return cls()
        mean = float(values.mean())
        return cls(float(len(values)), mean, float(np.square(values - mean).sum()))

    def merged(self, other: Moments) -> Moments:
        """Returns the moments of both sets of numbers: Chan, Golub and LeVeque (1979), equation 2.1."""
        if not self.count:
            return other
        count = self.count + other.count
        apart = other.mean - self.mean
        mean = self.mean + apart * other.count / count
        return Moments(count, mean, self.squares + other.squares + apart * apart * self.count * other.count / count)

    def weighted(self, weight: float) -> Moments:
        """Returns the moments of the same numbers, each with ``weight`` times its weight."""
        return Moments(self.count * weight, self.mean, self.squares * weight)

    @property
    def variance(self) -> float:
        """The variance of the numbers; 1 if there are none."""
        return self.squares / self.count if self.count else 1.0
