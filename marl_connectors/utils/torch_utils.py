"""RLlib's functions of tensors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.learner.gradients import global_norm as global_norm
from marl_connectors.utils.numpy import map_leaves

FLOAT_MIN: Final = -3.4e38
FLOAT_MAX: Final = 3.4e38
"""Almost the least and the greatest float32: adding a logit to them gives no infinity."""


def convert_to_torch_tensor(x: Any, device: str | torch.device | None = None, pin_memory: bool = False) -> Any:
    """Returns a tree whose leaves are tensors. None, texts and arrays of objects stay as they are.

    Args:
        x: Numbers, arrays or tensors, or dicts, tuples and lists of them. Float64 becomes float32.
        device: The device of the tensors; None to keep tensors where they are.
        pin_memory: Whether the tensors are in pinned memory, if torch sees a GPU.
    """

    def convert(leaf: Any) -> Any:
        if leaf is None:
            return None
        if not isinstance(leaf, Tensor):
            array = np.asarray(leaf)
            if array.dtype.kind not in "biufc":
                return leaf
            leaf = torch.from_numpy(array if array.flags.writeable else array.copy())
        if leaf.dtype is torch.float64:
            leaf = leaf.float()
        if pin_memory and torch.cuda.is_available():
            leaf = leaf.pin_memory()
        return leaf if device is None else leaf.to(device)

    return map_leaves(convert, x)


def explained_variance(y: Tensor, pred: Tensor) -> Tensor:
    """Returns the fraction of the variance of ``y`` that a prediction explains, at least -1: 1 if it is perfect."""
    unexplained = torch.var(y - pred, dim=0) / (torch.var(y, dim=0) + 1e-6)
    return (1.0 - unexplained).clamp(min=-1.0)


def one_hot(x: Tensor, space: spaces.Discrete | spaces.MultiDiscrete) -> Tensor:
    """Returns ``[..., n]`` one-hot vectors of values of a space, which count from 0.

    Args:
        x: ``[...]`` values of a Discrete space, or ``[..., k]`` of a MultiDiscrete space with ``k`` components, whose
            one-hot vectors are concatenated.
        space: The space.

    Raises:
        ValueError: If the space is of another kind.
    """
    if isinstance(space, spaces.Discrete):
        return F.one_hot(x.long(), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1).tolist()
        return torch.cat([F.one_hot(x[..., i].long(), n) for i, n in enumerate(sizes)], -1)
    raise ValueError(f"one_hot: expected a Discrete or MultiDiscrete space, but got {space!r}.")
