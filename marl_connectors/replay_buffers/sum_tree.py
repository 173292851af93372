"""SumTree: draws numbers with probabilities that change often."""

from __future__ import annotations

import numpy as np


class SumTree:
    """A binary tree over the weights of ``size`` items, whose inner nodes are sums.

    Drawing and changing ``n`` items take ``n * log2(size)`` operations in numpy, without a Python loop over items.

    Attributes:
        size: The number of items.
    """

    def __init__(self, size: int):
        self.size = size
        self._depth = max(size - 1, 1).bit_length()
        self._first_leaf = 2**self._depth
        self._sums = np.zeros(2 * self._first_leaf)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._sums[1])

    @property
    def weights(self) -> np.ndarray:
        """``[size]`` float64, the weights; to be read only."""
        return self._sums[self._first_leaf : self._first_leaf + self.size]

    @property
    def nbytes(self) -> int:
        """The memory of the tree, in bytes."""
        return self._sums.nbytes

    def set(self, items: np.ndarray, weights: np.ndarray | float) -> None:
        """Sets the weights of some items.

        Args:
            items: ``[N]`` their numbers. If a number is repeated, its last weight counts.
            weights: ``[N]`` weights that are not negative, or one for all.
        """
        nodes = items + self._first_leaf
        self._sums[nodes] = weights
        for _ in range(self._depth):
            nodes = np.unique(nodes >> 1)
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def draw(self, at: np.ndarray) -> np.ndarray:
        """Returns ``[N]`` items, each where the running sum of the weights exceeds a number.

        Args:
            at: ``[N]`` numbers in ``[0, total)``.
        """
        rest = np.asarray(at, np.float64).copy()
        nodes = np.ones(len(rest), np.int64)
        for _ in range(self._depth):
            nodes *= 2
            left = self._sums[nodes]
            # Rounding may leave a rest that is not less than the sum of both children: items of weight 0 are no choice.
            is_right = (rest >= left) & (self._sums[nodes + 1] > 0)
            rest -= np.where(is_right, left, 0.0)
            nodes += is_right
        return nodes - self._first_leaf
