"""SumTree: draws numbers with probabilities that change often."""

from __future__ import annotations

import numpy as np

_CHILDREN = 16
"""The number of children of a node. Wide nodes make few levels, each of which costs a few calls of numpy."""
_ROOTS = 8192
"""The greatest number of nodes without a parent. Adding up all of them costs less than two levels more."""


class SumTree:
    """A tree over the weights of ``size`` items, whose inner nodes are sums. It has many roots.

    Drawing and changing ``n`` items take a few operations of numpy for each level, without a Python loop over items.

    Attributes:
        size: The number of items.
    """

    def __init__(self, size: int):
        self.size = size
        self._levels: list[np.ndarray] = []  # [nodes, children], the items first
        while size > _ROOTS or not self._levels:
            size = -(-size // _CHILDREN)
            self._levels.append(np.zeros((size, _CHILDREN)))
        self._roots = np.zeros(size)

    @classmethod
    def of(cls, weights: np.ndarray) -> SumTree:
        """Returns a tree over ``[size]`` weights."""
        tree = cls(len(weights))
        tree.set(np.arange(len(weights)), weights)
        return tree

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._roots.sum())

    @property
    def weights(self) -> np.ndarray:
        """``[size]`` float64, the weights; to be read only."""
        return self._levels[0].reshape(-1)[: self.size]

    @property
    def nbytes(self) -> int:
        """The memory of the tree, in bytes."""
        return self._roots.nbytes + sum(level.nbytes for level in self._levels)

    def set(self, items: np.ndarray, weights: np.ndarray | float) -> None:
        """Sets the weights of some items.

        Args:
            items: ``[N]`` their numbers. If a number is repeated, its last weight counts.
            weights: ``[N]`` weights that are not negative, or one for all.
        """
        self._levels[0].reshape(-1)[items] = weights
        for level, above in zip(self._levels, [*self._levels[1:], self._roots], strict=True):
            items = items // _CHILDREN
            if len(items) > len(level):
                items = np.arange(len(level))
            above.reshape(-1)[items] = level.take(items, 0).sum(1)

    def draw(self, at: np.ndarray) -> np.ndarray:
        """Returns ``[N]`` items, each where the running sum of the weights exceeds a number.

        Args:
            at: ``[N]`` numbers in ``[0, total)``.
        """
        before = np.zeros(len(self._roots) + 1)  # the sums of the roots before each of them, and of all
        self._roots.cumsum(out=before[1:])
        nodes = before[1:].searchsorted(at, side="right")
        if (nodes == len(self._roots)).any():  # by rounding, a number is not less than the sum of all roots
            nodes = np.minimum(nodes, np.flatnonzero(self._roots)[-1])
        rest = at - before[nodes]
        rows, before = np.arange(len(nodes)), np.zeros((len(nodes), _CHILDREN + 1))
        for level in reversed(self._levels):
            weights = level.take(nodes, 0)
            weights.cumsum(1, out=before[:, 1:])
            exceeds = before[:, 1:] > rest[:, None]
            child = exceeds.argmax(1)
            if not exceeds[:, -1].all():  # by rounding, the rest is not less than the sum of all children
                last = _CHILDREN - 1 - (weights[:, ::-1] > 0).argmax(1)
                child = np.where(exceeds[:, -1], child, last)
            rest = rest - before[rows, child]
            nodes = nodes * _CHILDREN + child
        return nodes
