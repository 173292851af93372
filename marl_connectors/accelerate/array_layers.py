"""MLPs in numpy, over the memory of their parameters.

They are for small batches without gradients on the CPU, for which torch's calls take longer than the arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _functorch  # type: ignore[attr-defined]
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_module

from marl_connectors.accelerate.numpy_threads import follow_torch
from marl_connectors.accelerate.unchanged import is_unchanged
from marl_connectors.rl_module.layers import MLP, Linear

BLOCK = 2048
"""The number of rows that are computed at a time, so that the values between layers stay in the cache."""

UNSAID: Any = {"over": "ignore", "invalid": "ignore"}
"""Of what numpy does not warn, as torch does not: checks of the outputs name the module and what is not finite."""

_TILES = (4, 6, 8, 12, 14, 16, 24, 32, 48)

Activation = Callable[[np.ndarray, np.ndarray], Any]
"""A function of an array, which writes its result to a second array."""


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
"""The activations that numpy computes in a module's forward pass."""
BOUND_ACTIVATIONS: dict[type[nn.Module], Activation] = {
    **NUMPY_ACTIVATIONS,
    nn.SiLU: _silu,
    nn.ELU: _elu,
    nn.Identity: _identity,
}
"""The activations that can be bound for acting, for which a call of torch would cost more than the arithmetic."""


def is_watched() -> bool:
    """Whether torch must see its operations, so that numpy must not compute instead.

    This is the case if gradients are enabled, and in the cases of ``is_recorded``.
    """
    return is_recorded() or torch.is_grad_enabled()


def is_recorded() -> bool:
    """Whether something other than autograd must see each operation of torch.

    This is the case for gradients in forward mode, for the transforms of ``torch.func`` such as ``vmap``, while
    ``torch.jit.trace``, ``torch.export``, ``torch.compile`` or an ONNX export record operations, under modes such as
    ``FakeTensorMode``, and for hooks on the calls of all modules. The function does not check for subclasses of Tensor;
    callers check the types of their tensors themselves.
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
    """A linear layer, or ``M`` stacked layers of one shape, with an activation.

    Attributes:
        weight: ``[in, out]`` or ``[M, in, out]``.
        bias: ``[out]`` or ``[M, 1, out]``.
        activation: Changes the outputs in place; None for none.
        is_stacked: Whether there are ``M`` layers.
    """

    weight: np.ndarray
    bias: np.ndarray
    activation: Activation | None
    is_stacked: bool

    @classmethod
    def over(cls, weight: np.ndarray, bias: np.ndarray, activation: Activation | None) -> ArrayLayer:
        """Returns a layer that shares the memory of torch's ``[..., out, in]`` weight and ``[..., out]`` bias."""
        is_stacked = weight.ndim == 3
        return cls(weight.swapaxes(-1, -2), bias[:, None] if is_stacked else bias, activation, is_stacked)


def run_layers(x: np.ndarray, layers: Sequence[ArrayLayer]) -> np.ndarray:
    """Returns ``[..., B, out]`` outputs of ``[..., B, in]`` rows, for stacked layers of ``[M, B, in]`` rows.

    Without stacked layers, the output of each of several rows depends only on the row and its position in a tile, to
    the last bit; see ``tile_rows``.
    """
    rows, is_stacked = x.shape[-2], any(layer.is_stacked for layer in layers[:1])
    tile = tile_rows() if x.ndim == 2 and rows > 1 and not is_stacked else 1
    with np.errstate(**UNSAID):
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


class RowTile(NamedTuple):
    """How matrix products compute a row in the same way wherever it stands and whatever the others are.

    Attributes:
        rows: Products have a multiple of this number of rows.
        is_alone: Whether each ``rows`` rows need a product of their own. OpenBLAS's kernels for Haswell and Zen compute
            the first six rows of twelve in another order than the last six.
    """

    rows: int
    is_alone: bool

    def tiled(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of ``[..., P, n]`` rows in products, ``[..., P / rows, rows, n]`` if tiles are alone."""
        return (*shape[:-2], shape[-2] // self.rows, self.rows, shape[-1]) if self.is_alone else shape

    def weights(self, weight: np.ndarray) -> np.ndarray:
        """Returns a view of ``[..., k, n]`` weights for the product with such rows."""
        return weight[..., None, :, :] if self.is_alone else weight


@cache
def row_tile() -> RowTile:
    """Returns the tile for contiguous ``[in, out]`` weights with multiples of 16 outputs.

    It is found by experiment: the results for a row are the same to the last bit.
    """
    rng = np.random.default_rng(0)
    shapes = [(3, 64), (8, 64), (64, 64), (64, 16), (200, 256), (100, 112)]
    weights = [rng.standard_normal(shape, np.float32) for shape in shapes]

    def holds(is_tile: Callable[[int, np.ndarray, np.ndarray], bool], tile: int) -> bool:
        rows = [rng.standard_normal((6 * tile, num_in), np.float32) for num_in, _ in shapes]
        return all(is_tile(tile, x, weight) for x, weight in zip(rows, weights, strict=True))

    joint = next((tile for tile in _TILES if holds(_is_tile, tile)), None)
    if joint is not None:
        return RowTile(joint, is_alone=False)
    return RowTile(next((tile for tile in (8, 4, 2) if holds(_is_alone, tile)), 1), is_alone=True)


@cache
def tile_rows() -> int:
    """Returns the number of rows that a matrix product computes at a time.

    A product computes its rows in tiles, whose size depends on the processor and the library. The results of a full
    tile do not depend on the other tiles, to the last bit, nor on the order of the rows. The rows that are left over
    are computed in another way, which rounds differently. The size is found by experiment; it is 1 if there is none, as
    with OpenBLAS's kernels for Haswell and Zen, which compute rows in the second half of a tile differently.
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
    """Whether results are the same whatever the other tiles are, and whatever the place in a tile is."""
    whole = np.dot(x, weight)
    parts = ((begin, end) for end in range(tile, len(x) + 1, tile) for begin in range(0, end, tile))
    is_apart = all(np.array_equal(np.dot(x[begin:end], weight), whole[begin:end]) for begin, end in parts)
    return is_apart and all(_is_alone(tile, x[begin:], weight) for begin in range(0, len(x), tile))


def _is_alone(tile: int, x: np.ndarray, weight: np.ndarray) -> bool:
    """Whether the results of the first tile are the same in any order of its rows."""
    rows = x[:tile]
    first = np.dot(rows, weight)
    turned = (np.roll(np.dot(np.roll(rows, by, 0), weight), -by, 0) for by in range(1, tile))
    return all(np.array_equal(own, first) for own in turned)


NUMPY_ROWS = {nn.Tanh: math.inf, nn.ReLU: 2048}
"""The largest number of rows for which a forward pass without gradients is faster in numpy than in torch. Numpy's calls
cost less, and its tanh takes a tenth of the time."""
_PLAIN = (nn.Parameter, Tensor)


class _Arrays(NamedTuple):
    """An MLP's layers in numpy, and the parameters whose memory they share.

    Attributes:
        layers: The layers in order.
        activation: The class of the activation.
        parameters: The weight and bias of each layer.
        addresses: The memory address of each parameter.
    """

    layers: Sequence[ArrayLayer]
    activation: type[nn.Module]
    parameters: Sequence[Tensor]
    addresses: Sequence[int]

    @classmethod
    def over(cls, mlp: MLP, activation: type[nn.Module], parameters: Sequence[Tensor]) -> _Arrays:
        """Returns the layers over the current memory of the parameters."""
        follow_torch()
        fixed = [parameter.detach() for parameter in parameters]  # keep their memory if the parameters change
        count = len(fixed) // 2
        layers = []
        for i, (weight, bias) in enumerate(zip(fixed[::2], fixed[1::2], strict=True)):
            own = NUMPY_ACTIVATIONS[activation] if mlp.activate_last or i + 1 < count else None
            layers.append(ArrayLayer.over(weight.numpy(), bias.numpy(), own))
        return cls(layers, activation, list(parameters), [tensor.data_ptr() for tensor in fixed])

    def are_over(self, activation: type[nn.Module], parameters: Sequence[Any]) -> bool:
        """Whether these are the same parameters at the same addresses."""
        if activation is not self.activation or len(parameters) != len(self.parameters):
            return False
        for own, known, address in zip(parameters, self.parameters, self.addresses, strict=True):
            if own is not known or own.data_ptr() != address:
                return False
        return True


_KNOWN: WeakKeyDictionary[MLP, _Arrays] = WeakKeyDictionary()


def outputs_of(mlp: MLP, rows: Any) -> Tensor | None:
    """Returns the outputs of an MLP; None if torch is faster, or must compute them.

    Args:
        mlp: The MLP.
        rows: The inputs of its first layer.
    """
    if type(rows) is not Tensor or not rows.is_cpu or rows.dtype is not torch.float32 or is_watched():
        return None
    layers = array_layers(mlp, rows.shape[-2])
    if layers is None:
        return None
    if rows.dim() <= 3:
        return torch.from_numpy(run_layers(rows.numpy(), layers))
    return torch.from_numpy(run_layers(rows.flatten(1, -2).numpy(), layers)).unflatten(1, rows.shape[1:-1])


def array_layers(mlp: MLP, rows: int) -> Sequence[ArrayLayer] | None:
    """Returns array layers over the current parameters; None if torch must compute this number of rows.

    Several threads may call this at the same time.
    """
    parts: Any = mlp._modules
    activation, linear = type(parts["activation"]), parts["layers"]._modules
    if activation not in NUMPY_ROWS or parts["norms"]._modules:
        return None
    if rows > NUMPY_ROWS[activation] and len(linear) > (not mlp.activate_last):
        return None
    parameters = parameters_as_built(mlp)
    if parameters is None:
        return None
    known = _KNOWN.get(mlp)
    if known is not None and known.are_over(activation, parameters):
        return known.layers
    if not all(type(p) in _PLAIN and p.is_cpu and p.dtype is torch.float32 for p in parameters):
        return None
    found = _KNOWN[mlp] = _Arrays.over(mlp, activation, parameters)
    return found.layers


def parameters_as_built(mlp: MLP) -> list[Any] | None:
    """Returns the weight and bias of each layer; None if layers were replaced, or have hooks."""
    parts: Any = mlp._modules
    activation, layers = parts["activation"], parts["layers"]._modules.values()
    if not is_unchanged(activation, type(activation)):
        return None
    parameters: list[Any] = []
    for layer in layers:
        if type(layer) is not Linear or not is_unchanged(layer, Linear):
            return None
        own = layer._parameters
        parameters += (own.get("weight"), own.get("bias"))
    return parameters
