"""Forward passes for acting on images, whole numbers, Dicts and Tuples, bound to a number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.accelerate.array_layers import ArrayLayer, array_layers, run_layers
from marl_connectors.rl_module.encoders import CNN, Conv2d, Encoder, FlatPart, ImagePart, OneHotPart
from marl_connectors.rl_module.layers import MLP
from marl_connectors.rl_module.rl_module import RLModule


class _Part(NamedTuple):
    """A part of the observations.

    Attributes:
        path: The keys that lead to it.
        shape: The shape of its ``[B, ...]`` values.
        dtype: Their dtype.
        layer: The layer that turns them into vectors.
        out: The place for these, ``[B, n]``.
    """

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    layer: FlatPart | OneHotPart | ImagePart
    out: np.ndarray


class EncoderForward:
    """Computes the ``action_dist_inputs`` of a module whose first layer is an encoder, without calling the module.

    It does the operations of the module's own forward pass in the same order, so the results are the same to the last
    bit. Convolutions run in torch; the other parts of an encoder, and the linear layers, run in numpy, over the memory
    of the parameters.

    Attributes:
        num_inputs: The number of ``action_dist_inputs`` of each row.
        is_stateful: Always False.
    """

    is_stateful = False

    def __init__(self, module: RLModule, chain: Sequence[MLP], rows: int):
        """Binds layers for which ``can_run`` is True.

        Args:
            module: The module.
            chain: Its ``acting_layers``.
            rows: The number of rows.
        """
        encoder: Any = chain[0]
        self._module, self._chain, self._rows = module, chain, rows
        self._flat = np.zeros((rows, encoder.input_dim), np.float32)
        self._parts: list[_Part] = []
        end = 0
        for path, part in zip(encoder.paths, encoder.parts, strict=True):
            begin, end = end, end + part.output_dim
            space = _at(encoder.space, path)
            self._parts.append(_Part(path, (rows, *space.shape), space.dtype, part, self._flat[:, begin:end]))
        self._parameters = [parameter for parameter in module._parameters.values() if parameter is not None]
        self.load()
        outputs = np.zeros((rows, chain[-1].output_dim), np.float32)
        self.num_inputs = (outputs if self._finish is None else self._finish(outputs)).shape[-1]

    @staticmethod
    def can_run(chain: Sequence[Any], rows: int) -> bool:
        """Whether layers are an encoder and MLPs, of which the module computes this number of rows in numpy."""
        classes = [type(layer) for layer in chain]
        if classes != [Encoder, *[MLP] * (len(chain) - 1)]:
            return False
        found = [array_layers(layer, rows) for layer in chain]
        return None not in found and any(found)

    def load(self) -> None:
        """Binds the current memory of the parameters, and what ``acting_outputs`` copies of the module's own ones."""
        self._versions = [parameter._version for parameter in self._parameters]
        self._writes = [(part.path, _WRITERS[type(part.layer)](part.layer, part.out)) for part in self._parts]
        self._layers: list[ArrayLayer] = []
        for mlp in self._chain:
            layers = array_layers(mlp, self._rows)
            assert layers is not None
            self._layers += layers
        self._finish = self._module.acting_outputs([self._module], [self._rows])

    def accepts(self, observations: Any) -> bool:
        """Whether observations have the parts, types and shapes that the module was built for."""
        try:
            for path, shape, dtype, _, _ in self._parts:
                part = _at(observations, path)
                if type(part) is not np.ndarray or part.shape != shape or part.dtype != dtype:
                    return False
        except (LookupError, TypeError):
            return False
        return True

    def __call__(self, observations: Any, state: None = None) -> tuple[np.ndarray, None]:
        """Returns ``[B, n]`` float32 ``action_dist_inputs``, and None as the next state.

        Args:
            observations: ``[B, ...]`` arrays, or a tree of them.
            state: None.
        """
        if [parameter._version for parameter in self._parameters] != self._versions:
            self.load()
        for path, write in self._writes:
            write(_at(observations, path))
        inputs = run_layers(self._flat, self._layers)
        return (inputs if self._finish is None else self._finish(inputs)), None


def _at(observations: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        observations = observations[key]
    return observations


# Functions of ``[B, ...]`` arrays that write the vectors of a part of the observations to ``[B, output_dim]`` float32.
# They do what the layer's forward pass does, and are valid until parameters get other memory.


def _write_flat(layer: FlatPart, out: np.ndarray) -> Callable[[np.ndarray], None]:
    def write(x: np.ndarray) -> None:
        out[...] = x.reshape(out.shape)
        if layer.scale is not None:
            np.multiply(out, layer.scale, out=out)

    return write


def _write_one_hot(layer: OneHotPart, out: np.ndarray) -> Callable[[np.ndarray], None]:
    def write(x: np.ndarray) -> None:
        spread = x.reshape(len(x), -1)[:, layer.component] if layer.rank else x[:, None]
        np.equal(spread, layer.numbers, out=out)

    return write


def _write_image(layer: ImagePart, out: np.ndarray) -> Callable[[np.ndarray], None]:
    images = np.zeros((len(out), *layer.shape), np.float32)
    convolve = _bind_cnn(layer.cnn, layer.channels_first_of(torch.from_numpy(images)))
    result = out.reshape(convolve().shape)

    def write(x: np.ndarray) -> None:
        images[...] = x
        if layer.scale is not None:
            np.multiply(images, layer.scale, out=images)
        result[...] = convolve().numpy()

    return write


_WRITERS: dict[type, Callable[[Any, np.ndarray], Callable[[np.ndarray], None]]] = {
    FlatPart: _write_flat,
    OneHotPart: _write_one_hot,
    ImagePart: _write_image,
}


def _bind_cnn(cnn: CNN, images: Tensor) -> Callable[[], Tensor]:
    """Returns a function that computes the last layer's ``[B, C, H, W]`` outputs for the present ``images``.

    It neither calls the layers nor computes gradients. Inputs of convolutions have the memory layout that they have in
    the forward pass, as other layouts round differently.
    """
    steps: list[tuple[np.ndarray, Tensor, Tensor, Tensor, Any]] = []
    activate, x = cnn.activation.forward, images
    for layer in cnn.layers:
        assert isinstance(layer, Conv2d) and layer.bias is not None
        left, _, top, _ = layer.padding_of_inputs
        padded = F.pad(torch.zeros_like(x), layer.padding_of_inputs)
        inner = padded.numpy()[:, :, top : top + x.shape[2], left : left + x.shape[3]]
        steps.append((inner, padded, layer.weight.detach(), layer.bias.detach(), layer.stride))
        x = activate(torch.conv2d(*steps[-1][1:]))

    def run() -> Tensor:
        x = images
        for inner, padded, weight, bias, stride in steps:
            inner[...] = x.numpy()
            x = activate(torch.conv2d(padded, weight, bias, stride))
        return x

    return run
