"""The array namespace of tensors: torch's functions, and a few of numpy's that torch has under another name.

Computations that serve arrays and tensors get a namespace ``xp``: this module, or that of ``array_namespace``. They use
functions of the array API standard, such as ``xp.concat`` and ``xp.where``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def astype(values: Tensor, dtype: Any, *, copy: bool = True) -> Tensor:
    """Converts a tensor to a dtype, which may be numpy's."""
    return values.to(dtype if isinstance(dtype, torch.dtype) else getattr(torch, np.dtype(dtype).name))


def asarray(values: Any, dtype: Any = None) -> Tensor:
    """Returns a tensor of an array or a number."""
    tensor = torch.as_tensor(values)
    return tensor if dtype is None else astype(tensor, dtype)


def minimum(values: Tensor, other: Any) -> Tensor:
    """Returns the smaller ones of two tensors' numbers, or of a tensor's numbers and a number."""
    return torch.minimum(values, other) if isinstance(other, Tensor) else values.clamp(max=other)


def maximum(values: Tensor, other: Any) -> Tensor:
    """Returns the larger ones of two tensors' numbers, or of a tensor's numbers and a number."""
    return torch.maximum(values, other) if isinstance(other, Tensor) else values.clamp(min=other)


def ascontiguousarray(values: Tensor) -> Tensor:
    """Returns a tensor whose numbers stand in memory in the order of its axes."""
    return values.contiguous()


def __getattr__(name: str) -> Any:
    return getattr(torch, name)
