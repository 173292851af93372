"""RLlib's functions of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree

_HALVED = {np.dtype(np.float64): np.float32, np.dtype(np.int64): np.int32}


def convert_to_numpy(x: Any, reduce_type: bool = True) -> Any:
    """Returns a tree whose tensors are arrays on the CPU, and numbers where they have no axes.

    Args:
        x: A tensor, or a dict, tuple or list of tensors. All other leaves stay as they are.
        reduce_type: Whether float64 becomes float32 and int64 becomes int32, in tensors and arrays.
    """
    import torch

    def convert(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            array = leaf.detach().cpu().numpy()
            leaf = array if array.ndim else array.item()
        if reduce_type and isinstance(leaf, np.ndarray) and leaf.dtype in _HALVED:
            return leaf.astype(_HALVED[leaf.dtype])
        return leaf

    return map_leaves(convert, x)


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Applies a function to the leaves of dicts, tuples and lists. None is a leaf, as in RLlib."""
    return optree.tree_map(function, tree, *others, none_is_leaf=True)


def one_hot(
    x: Any, depth: int = 0, on_value: float = 1.0, off_value: float = 0.0, dtype: type[np.generic] = np.float32
) -> np.ndarray:
    """Returns ``[..., depth]`` one-hot vectors of ``[...]`` integers.

    Args:
        x: An integer, or an array or a list of integers, from 0 to ``depth - 1``.
        depth: The length of the vectors; 0 for the greatest integer plus 1.
        on_value: What stands for the integer.
        off_value: What stands for all others.
        dtype: The dtype of the vectors.
    """
    integers = np.asarray(x, np.int64)
    is_on = integers[..., np.newaxis] == np.arange(depth or int(integers.max()) + 1)
    return np.where(is_on, on_value, off_value).astype(dtype)


def softmax(x: Any, axis: int = -1) -> np.ndarray:
    """Returns numbers that are proportional to ``exp(x)`` and sum to 1 along an axis."""
    powers = np.exp(x - np.max(x, axis, keepdims=True))
    return powers / np.sum(powers, axis, keepdims=True)
