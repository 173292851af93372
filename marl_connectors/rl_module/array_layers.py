"""Linear layers and activations in numpy, over the memory of torch parameters.

For small batches without gradients on the CPU, where the way through torch's calls takes longer than the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module

BLOCK = 2048
"""So many rows at a time are computed, so that what lies between layers stays in the cache."""

_TILES = (4, 6, 8, 12, 14, 16, 24, 32, 48)

Activation = Callable[[np.ndarray, np.ndarray], Any]
"""Of an array, written to another one."""


def _relu(x: np.ndarray, out: np.ndarray) -> None:
    np.maximum(x, 0, out=out)


def _silu(x: np.ndarray, out: np.ndarray) -> None:
    gate = np.tanh(x * np.float32(0.5))  # the logistic function, by way of numpy's fast tanh
    gate *= np.float32(0.5)
    gate += np.float32(0.5)
    np.multiply(x, gate, out=out)


def _elu(x: np.ndarray, out: np.ndarray) -> None:
    below = np.expm1(np.minimum(x, 0))
    np.maximum(x, 0, out=out)
    out += below


def _identity(x: np.ndarray, out: np.ndarray) -> None:
    if out is not x:
        out[...] = x


NUMPY_ACTIVATIONS: dict[type[nn.Module], Activation] = {nn.Tanh: np.tanh, nn.ReLU: _relu}
"""Those that numpy computes in a module's own forward pass."""
BOUND_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    **NUMPY_ACTIVATIONS,
    nn.SiLU: _silu,
    nn.ELU: _elu,
    nn.Identity: _identity,
}
"""Those that can be bound for acting, where a call of torch would cost more than the arithmetic."""


def is_watched() -> bool:
    """Whether somebody has to see what torch is called with, so that numpy must not compute in its place. A hot path.

    That is so for gradients, and for whatever ``is_recorded`` looks for.
    """
    return is_recorded() or torch.is_grad_enabled()


def is_recorded() -> bool:
    """Whether somebody but autograd has to see each operation of torch. A hot path.

    That is so for gradients in forward mode, for the transforms of ``torch.func`` such as ``vmap``, while
    ``torch.jit.trace``, ``torch.export``, ``torch.compile`` or an ONNX export record what is computed, under modes such
    as ``FakeTensorMode``, and for hooks on the calls of all modules. Tensors of subclasses are another matter: whoever
    asks looks at the types of the tensors, too.
    """
    if torch.compiler.is_compiling():
        return True
    return bool(
        torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or _functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


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
    """``[..., out]`` of ``[..., B, in]``, for stacked layers of ``[M, B, in]``. A hot path.

    Without stacked layers, what comes of one of several rows depends on nothing but the row and its place within a
    tile, to the last bit; see ``tile_rows``.
    """
    rows, is_stacked = x.shape[-2], any(layer.is_stacked for layer in layers[:1])
    tile = tile_rows() if x.ndim == 2 and rows > 1 and not is_stacked else 1
    if rows > BLOCK:
        size = max(BLOCK // tile, 1) * tile
        starts = range(0, rows, size)
        return np.concatenate([_run_layers(x[..., i : i + size, :], layers, tile) for i in starts], axis=-2)
    return _run_layers(x, layers, tile)


def _run_layers(x: np.ndarray, layers: Sequence[ArrayLayer], tile: int) -> np.ndarray:
    is_matrix, rows = x.ndim == 2, len(x)
    if rows % tile:
        tiles = np.zeros((rows + -rows % tile, x.shape[1]), x.dtype)
        tiles[:rows] = x
        x = tiles
    for weight, bias, activation, is_stacked in layers:
        x = np.dot(x, weight) if is_matrix and not is_stacked else np.matmul(x, weight)
        x += bias
        if activation is not None:
            activation(x, x)
    return x[:rows] if tile > 1 else x


@cache
def row_tile() -> int:
    """As ``tile_rows``, for weights that lie as they are multiplied, with multiples of 16 outputs: at least 4."""
    rng = np.random.default_rng(0)
    shapes = [(3, 64), (8, 64), (64, 64), (64, 16), (200, 256), (100, 112)]
    for tile in (4, *_TILES[1:]):
        rows = (rng.standard_normal((6 * tile, num_in), np.float32) for num_in, _ in shapes)
        weights = (rng.standard_normal(shape, np.float32) for shape in shapes)
        if all(_is_tile(tile, x, weight) for x, weight in zip(rows, weights, strict=True)):
            return tile
    return 4


@cache
def tile_rows() -> int:
    """How many rows a matrix product deals with at a time.

    A product goes through its rows in tiles, of a size that depends on the processor and the library. Rows in a tile
    come out the same, bit for bit, whatever other tiles there are; those that are left over take another path, which
    rounds otherwise. The size is found by trying; 1 if it is none of the usual ones.
    """
    rng = np.random.default_rng(0)
    for tile in _TILES:
        shapes = [(8, 64), (64, 64), (64, 5), (64, 1), (200, 256)]
        rows = (rng.standard_normal((6 * tile, num_in), np.float32) for num_in, _ in shapes)
        weights = (rng.standard_normal((num_out, num_in), np.float32).T for num_in, num_out in shapes)
        if all(_is_tile(tile, x, weight) for x, weight in zip(rows, weights, strict=True)):
            return tile
    return 1


def _is_tile(tile: int, x: np.ndarray, weight: np.ndarray) -> bool:
    whole = np.dot(x, weight)
    parts = ((begin, end) for end in range(tile, len(x) + 1, tile) for begin in range(0, end, tile))
    return all(np.array_equal(np.dot(x[begin:end], weight), whole[begin:end]) for begin, end in parts)
