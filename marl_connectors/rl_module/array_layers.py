"""Linear layers and activations in numpy, over the memory of torch parameters.

For small batches without gradients on the CPU, where the way through torch's calls takes longer than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import nn

BLOCK = 2048
"""So many rows at a time are computed, so that what lies between layers stays in the cache."""

Activation = Callable[[np.ndarray, np.ndarray], Any]
"""Of an array, written to another one."""


def _relu(x: np.ndarray, out: np.ndarray) -> None:
    np.maximum(x, 0, out=out)


NUMPY_ACTIVATIONS: dict[type[nn.Module], Activation] = {nn.Tanh: np.tanh, nn.ReLU: _relu}


class ArrayLayer(NamedTuple):
    """A linear layer, or ``M`` of one shape, and what follows.

    Attributes:
        weight: ``[in, out]`` or ``[M, in, out]``.
        bias: ``[out]`` or ``[M, 1, out]``.
        activation: Of the outputs, in place; None for none.
        is_stacked: Whether there are ``M`` of them.
    """

    weight: np.ndarray
    bias: np.ndarray
    activation: Activation | None
    is_stacked: bool

    @classmethod
    def over(cls, weight: np.ndarray, bias: np.ndarray, activation: Activation | None) -> ArrayLayer:
        """Of weights ``[..., out, in]`` and biases ``[..., out]`` as torch has them; shares their memory."""
        is_stacked = weight.ndim == 3
        return cls(weight.swapaxes(-1, -2), bias[:, None] if is_stacked else bias, activation, is_stacked)


def run_layers(x: np.ndarray, layers: Sequence[ArrayLayer]) -> np.ndarray:
    """``[..., out]`` of ``[..., B, in]``, for stacked layers of ``[M, B, in]``. A hot path."""
    if x.shape[-2] > BLOCK:
        starts = range(0, x.shape[-2], BLOCK)
        return np.concatenate([run_layers(x[..., i : i + BLOCK, :], layers) for i in starts], axis=-2)
    is_matrix = x.ndim == 2
    for weight, bias, activation, is_stacked in layers:
        x = np.dot(x, weight) if is_matrix and not is_stacked else np.matmul(x, weight)
        x += bias
        if activation is not None:
            activation(x, x)
    return x
