"""Which rows of a minibatch a loss is computed of, and the means over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.rl_module.bucket import each_leaf
from marl_connectors.transfers import all_moved, all_on_host


class CountedRows:
    """The rows that count: ``R`` of one module, or ``[M, R]`` of ``M`` stacked ones that may have different numbers.

    Where a module has fewer than ``R``, copies of its own rows stand in for what is missing, with the weight 0. So
    whatever stands in padding, be it NaN, reaches neither a loss nor a gradient.

    Attributes:
        weights: ``[M, R]``, what a row counts for in its module's mean; None where all rows count alike.
    """

    __slots__ = ("_index", "_num_axes", "_shape", "weights")

    def __init__(self, weights: Tensor | None = None, index: Tensor | None = None, num_axes: int = 1, stacked: int = 0):
        """Says which rows count.

        Args:
            weights: As above.
            index: Where the rows are once the first ``num_axes`` axes are one, module by module; None where columns
                hold these rows and no others.
            num_axes: How many axes of a column stand before a row's own.
            stacked: The number of modules if the first axis is theirs, else 0.
        """
        self.weights = weights
        self._index = index
        self._num_axes = num_axes
        self._shape = (stacked, -1) if stacked else None

    @classmethod
    def of_mask(cls, mask: np.ndarray, *, stacked: int = 0, device: torch.device | str = "cpu") -> CountedRows:
        """The rows of which a mask is True, at least one of each module.

        Args:
            mask: ``[B]`` or ``[S, T]`` bool; with ``stacked`` modules, ``[M, B]`` or ``[M, S, T]``.
            stacked: The number of modules if the first axis is theirs, else 0.
            device: Where the columns are.
        """
        flat = mask.reshape(max(stacked, 1), -1)
        counts = flat.sum(1)
        longest = int(counts.max())
        places = np.argsort(~flat, axis=1, kind="stable")[:, :longest]
        real = np.arange(longest) < counts[:, None]
        places = np.where(real, places, places[:, :1]) + np.arange(len(flat))[:, None] * flat.shape[1]
        weights = [] if real.all() else [(real / counts[:, None]).astype(np.float32)]
        index, *found = all_moved([places.reshape(-1), *weights], torch.device(device))
        return cls(found[0] if found else None, index, mask.ndim, stacked)

    @classmethod
    def of(cls, batch: Mapping[str, Any], *, stacked: int = 0) -> CountedRows:
        """Those of a batch: of a minibatch what it knows of itself, else what ``loss_mask`` says, else all."""
        known = getattr(batch, "counted_rows", None)
        if known is not None:
            return known
        if Columns.LOSS_MASK not in batch:
            return cls()
        mask = batch[Columns.LOSS_MASK]
        return cls.of_mask(all_on_host([mask])[0].numpy().astype(bool), stacked=stacked, device=mask.device)

    def pick(self, column: Any) -> Any:
        """The rows of a column (or a tree of them) that count, ``[R, ...]`` or ``[M, R, ...]``."""
        return column if self._index is None else each_leaf(column, self._pick)

    def _pick(self, leaf: Tensor) -> Tensor:
        assert self._index is not None
        picked = leaf.flatten(0, self._num_axes - 1).index_select(0, self._index)
        return picked if self._shape is None else picked.unflatten(0, self._shape)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of ``pick``-ed values: a scalar, or ``[M]``."""
        return values.mean(-1) if self.weights is None else (values * self.weights).sum(-1)
