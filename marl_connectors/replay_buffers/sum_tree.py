"""SumTree: draws numbers with probabilities that change often."""

from __future__ import annotations

import numpy as np

_CHILDREN = 16
"""The number of children of a node. Wide nodes make few levels, each of which costs a few calls of numpy."""


class SumTree:
    """A tree over the weights of ``size`` items, whose inner nodes are sums.

    Drawing and changing ``n`` items take a few operations of numpy for each level, without a Python loop over items.

    Attributes:
        size: The number of items.
    """

    def __init__(self, size: int):
        self.size = size
        self._levels = []
        while size > 1 or not self._levels:
            size = -(-size // _CHILDREN)
            self._levels.append(np.zeros((size, _CHILDREN)))

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._levels[-1].sum(1)[0])

    @property
    def weights(self) -> np.ndarray:
        """``[size]`` float64, the weights; to be read only."""
        return self._levels[0].reshape(-1)[: self.size]

    @property
    def nbytes(self) -> int:
        """The memory of the tree, in bytes."""
        return sum(level.nbytes for level in self._levels)

    def set(self, items: np.ndarray, weights: np.ndarray | float) -> None:
        """Sets the weights of some items.

        Args:
            items: ``[N]`` their numbers. If a number is repeated, its last weight counts.
            weights: ``[N]`` weights that are not negative, or one for all.
        """
        self._levels[0].reshape(-1)[items] = weights
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            items = items // _CHILDREN
            if len(items) > len(level):
                items = np.arange(len(level))
            above.reshape(-1)[items] = level.take(items, 0).sum(1)

    def draw(self, at: np.ndarray) -> np.ndarray:
        """Returns ``[N]`` items, each where the running sum of the weights exceeds a number.

        Args:
            at: ``[N]`` numbers in ``[0, total)``.
        """
        rest = np.asarray(at, np.float64)
        nodes = np.zeros(len(rest), np.int64)
        rows = np.arange(len(rest))
        for level in reversed(self._levels):
            weights = level.take(nodes, 0)
            sums = weights.cumsum(1)
            child = (sums <= rest[:, None]).sum(1)
            if (child == _CHILDREN).any():  # by rounding, the rest is not less than the sum of all children
                last = _CHILDREN - 1 - (weights[:, ::-1] > 0).argmax(1)
                child = np.minimum(child, last)
            rest = rest - np.where(child > 0, sums[rows, child - 1], 0.0)
            nodes = nodes * _CHILDREN + child
        return nodes
