"""Encoders, which turn observations of any space into the vectors that the heads of a module read."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn import functional as F

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.default_model_config import CONV_FILTERS, DefaultModelConfig
from marl_connectors.rl_module.layers import GRU, LSTM, MLP, Initializers, RecurrentLayer, make_activation
from marl_connectors.spaces import byte_scale, describe

_GROUPED_SIZE = 4096
"""The largest image, in numbers, for which the CPU convolves the images of several modules faster together."""
_COMPUTED = (torch.float32, torch.float64, torch.bfloat16)
"""The types of numbers that layers compute with as they are. Others, such as float16, become float32."""
_SMALL = 7
"""Default filters halve an image until it has at most this number of rows and columns."""


class Encoder(MLP):
    """The hidden layers over an observation: each part becomes a vector, and an MLP reads all vectors side by side.

    Images pass through convolutions, Discrete and MultiDiscrete parts become one-hot vectors, and all other parts are
    flattened. Whole numbers of 8 bits are scaled to [0, 1]. Observations have any leading axes: ``[B, ...]``,
    ``[B, T, ...]``, and with stacked parameters ``[M, B, ...]``.

    Attributes:
        space: The observation space.
        parts: The layers that turn each part of the observation into a vector.
        paths: The keys that lead to each part.
    """

    def __init__(self, space: Space, config: DefaultModelConfig):
        """Builds the layers.

        Args:
            space: The observation space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these.
            config: Sizes, activations and initializers.

        Raises:
            ModuleError: If there is no encoder for the space.
        """
        encoders = _encoders(space, config)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Initializing zero-element tensors")  # of observations without numbers
            super().__init__(
                sum(encoder.output_dim for _, encoder in encoders),
                config.fcnet_hiddens,
                config.fcnet_activation,
                initializers=Initializers.of(config, "fcnet"),
                use_layernorm=config.fcnet_use_layernorm,
            )
        self.space = space
        self.paths = [path for path, _ in encoders]
        self.parts = nn.ModuleList([encoder for _, encoder in encoders])
        self._is_plain = self.paths == [()]

    def flat(self, x: Any) -> Tensor:
        """Returns the parts of an observation, which may be a tree of tensors, as vectors side by side."""
        parts: Any = self._modules["parts"]
        encoders = parts._modules.values()
        if self._is_plain:
            (encoder,) = encoders
            return encoder(x)
        flat = []
        for path, encoder in zip(self.paths, encoders, strict=True):
            part = x
            for key in path:
                part = part[key]
            flat.append(encoder(part))
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)


class FlatPart(nn.Module):
    """Flattens numbers to a vector. Whole numbers of 8 bits are scaled to [0, 1]."""

    def __init__(self, space: Space):
        super().__init__()
        shape = space.shape or ()
        self.rank = len(shape)
        self.scale = byte_scale(space) if isinstance(space, spaces.Box) else None
        self.output_dim = int(np.prod(shape))

    def forward(self, x: Tensor) -> Tensor:
        if self.rank != 1:
            x = x.flatten(-self.rank) if self.rank else x.unsqueeze(-1)
        x = x if x.dtype in _COMPUTED else x.float()
        return x if self.scale is None else x * self.scale


class OneHotPart(nn.Module):
    """Turns whole numbers into one-hot vectors side by side."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete):
        super().__init__()
        self.rank = len(space.shape or ())
        counts, starts = (np.atleast_1d(x).ravel() for x in (_counts(space), space.start))
        numbers = np.concatenate([np.arange(n) + start for n, start in zip(counts, starts, strict=True)])
        component = np.repeat(np.arange(len(counts)), counts)
        self.numbers, self.component = numbers, component
        self._table = torch.from_numpy(numbers), torch.from_numpy(component)
        self.output_dim = len(numbers)

    def forward(self, x: Tensor) -> Tensor:
        numbers, component = self._table
        if numbers.device != x.device:
            numbers, component = numbers.to(x.device), component.to(x.device)
            is_traced = torch.compiler.is_compiling() or torch._C._is_tracing() or is_fake(numbers)
            if not is_traced:  # tensors made in a trace are not valid outside of it
                self._table = numbers, component
        spread = x.flatten(-self.rank)[..., component] if self.rank else x.unsqueeze(-1)
        return (spread == numbers).float()


def _counts(space: spaces.Discrete | spaces.MultiDiscrete) -> Any:
    return space.n if isinstance(space, spaces.Discrete) else space.nvec


class Conv2d(nn.Conv2d):
    """``torch.nn.Conv2d`` over ``[B, C, H, W]`` that also accepts stacked weights for ``[M, B, C, H, W]``.

    Images of ``image_size``, ``(H, W)``, are padded with zeros so that an output has ``ceil(size / stride)`` rows and
    columns.
    """

    def __init__(self, channels: int, out: int, kernel: Any, stride: Any, image_size: tuple[int, int]):
        super().__init__(channels, out, kernel, stride)
        self.padding_of_inputs = [*self._pads(image_size[1], 1), *self._pads(image_size[0], 0)]

    def forward(self, input: Tensor) -> Tensor:
        input = F.pad(input, self.padding_of_inputs)
        weight, bias = self.weight, self.bias
        assert bias is not None
        if weight.dim() == 4:
            return F.conv2d(input, weight, bias, self.stride)
        if input.is_cpu and input[0, 0].numel() > _GROUPED_SIZE:
            each = zip(input, weight, bias, strict=True)
            return torch.stack([F.conv2d(x, own, own_bias, self.stride) for x, own, own_bias in each])
        side_by_side = input.transpose(0, 1).flatten(1, 2)  # [B, M * C, H, W]
        outputs = F.conv2d(side_by_side, weight.flatten(0, 1), bias.flatten(), self.stride, groups=len(weight))
        return outputs.unflatten(1, (len(weight), -1)).transpose(0, 1)

    def _pads(self, size: int, axis: int) -> tuple[int, int]:
        kernel, stride = self.kernel_size[axis], self.stride[axis]
        missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        return missing // 2, missing - missing // 2


class CNN(nn.Module):
    """Convolutions with an activation after each; the result is flat.

    Attributes:
        output_dim: The number of outputs for an image.
    """

    def __init__(
        self,
        image_shape: tuple[int, int, int],
        filters: Sequence[Any],
        activation: str = "relu",
        initializers: Initializers | None = None,
    ):
        """Builds the layers.

        Args:
            image_shape: ``(height, width, channels)``.
            filters: ``[channels, kernel, stride]`` for each layer; kernel and stride may be pairs (height, width).
            activation: A key of ``ACTIVATIONS``.
            initializers: Fill the weights and biases; None for orthogonal weights and biases of 0.
        """
        super().__init__()
        height, width, channels = image_shape
        layers = []
        for out, *sizes in CONV_FILTERS.check(filters, "CNN", "conv_filters"):
            kernel, stride = ((size, size) if isinstance(size, int) else size for size in sizes)
            layers.append(Conv2d(channels, out, kernel, stride, (height, width)))
            channels, height, width = out, -(-height // stride[0]), -(-width // stride[1])
        self.layers = nn.ModuleList(layers)
        self.activation = make_activation(activation)
        self.output_dim = channels * height * width
        initializers = initializers or Initializers()
        for layer in layers:
            initializers.fill_weight(layer.weight)
            initializers.fill_bias(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``[..., output_dim]`` of ``[..., C, H, W]`` images. If stacked, the first axis is the modules'."""
        num_axes = 4 if next(self.parameters()).dim() == 4 else 5  # the axes of a layer's input
        lead = x.shape[:-3]
        if x.dim() != num_axes:
            x = x.flatten(num_axes - 4, -4)
        for layer in self.layers:
            x = self.activation(layer(x))
        return x.flatten(-3).reshape(*lead, self.output_dim)


def default_filters(height: int, width: int) -> list[list[int]]:
    """Returns ``[channels, kernel, stride]`` of convolutions that shrink images of that size.

    >>> default_filters(84, 84)
    [[16, 8, 4], [32, 4, 2], [64, 3, 2]]
    >>> default_filters(3, 3)
    [[16, 3, 1], [32, 3, 1]]
    """
    size, filters = max(height, width), []
    while size > _SMALL or len(filters) < 2:
        channels = min(16 << len(filters), 64)
        stride = 1 if size <= _SMALL else 4 if size >= 64 and not filters else 2
        filters.append([channels, {1: 3, 2: 4 if size > 16 else 3, 4: 8}[stride], stride])
        size = -(-size // stride)
    return filters


class ImagePart(nn.Module):
    """Applies convolutions to an image: ``(height, width, channels)``, ``(height, width)``, or channels first.

    The channels are first if the first axis is at most a quarter of each of the others. Whole numbers of 8 bits are
    scaled to [0, 1].
    """

    def __init__(self, space: spaces.Box, config: DefaultModelConfig):
        super().__init__()
        self.shape = space.shape
        height, width, *last = space.shape
        channels = last[0] if last else 1
        self._has_channels = bool(last)
        self._channels_first = bool(last) and 4 * height <= min(width, channels)
        if self._channels_first:
            channels, height, width = height, width, channels
        self.scale = byte_scale(space)
        filters = default_filters(height, width) if config.conv_filters is None else config.conv_filters
        self.cnn = CNN((height, width, channels), filters, config.conv_activation, Initializers.of(config, "conv"))
        self.output_dim = self.cnn.output_dim

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.dtype in _COMPUTED else x.float()
        return self.cnn(self.channels_first_of(x if self.scale is None else x * self.scale))

    def channels_first_of(self, x: Tensor) -> Tensor:
        """Returns a view of ``[..., *shape]`` images as ``[..., C, H, W]``."""
        if not self._has_channels:
            return x.unsqueeze(-3)
        return x if self._channels_first else x.movedim(-1, -3)


def is_image(space: Space) -> bool:
    """Whether default modules use convolutions: for a Box with channels, or with two axes of uint8.

    >>> is_image(spaces.Box(0, 255, (84, 84, 3), np.uint8)), is_image(spaces.Box(0, 1, (84, 84)))
    (True, False)
    """
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
        return False
    if len(space.shape) == 2:
        return space.dtype == np.uint8 and min(space.shape) >= 3
    return min(space.shape[:2]) >= 3 or 4 * space.shape[0] <= min(space.shape[1:])


def _encoders(space: Space, config: DefaultModelConfig, path: tuple[Any, ...] = ()) -> list[tuple[tuple, Any]]:
    """Returns a layer for each part of the observation that is no Dict or Tuple, with the path to the part."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)) and len(space.spaces):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return [found for key, part in parts for found in _encoders(part, config, (*path, key))]
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return [(path, OneHotPart(space))]
    if is_image(space) and (config.conv_filters is None or len(config.conv_filters)):
        assert isinstance(space, spaces.Box)
        return [(path, ImagePart(space, config))]
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return [(path, FlatPart(space))]
    where = f"in part {'/'.join(map(str, path))} of the observations " if path else ""
    raise ModuleError(
        f"the default modules have no encoder for {describe(space)} {where}(known: Box, Discrete, MultiDiscrete, "
        f"MultiBinary, and Dict and Tuple of them). Turn it into one of these with an env-to-module connector piece "
        f"(ObservationPreprocessor), or pass your own RLModule in .rl_module(rl_module_spec=...)."
    )


def make_head(input_dim: int, output_dim: int, config: DefaultModelConfig, gain: float) -> MLP:
    """Returns the layers from an encoder's outputs to a module's outputs.

    Args:
        input_dim: The number of the encoder's outputs.
        output_dim: The number of outputs.
        config: Sizes, activation and initializers of a head.
        gain: The scale of the last layer's weights.
    """
    return MLP(
        input_dim,
        (*config.head_fcnet_hiddens, output_dim),
        config.head_fcnet_activation,
        activate_last=False,
        last_gain=gain,
        initializers=Initializers.of(config, "head_fcnet"),
        use_layernorm=config.head_fcnet_use_layernorm,
    )


def recurrent_layer(input_dim: int, config: DefaultModelConfig) -> RecurrentLayer | None:
    """Returns the LSTM or GRU that ``config`` selects, if any."""
    if config.use_lstm:
        return LSTM(input_dim, config.lstm_cell_size, Initializers.of(config, "lstm"))
    if config.use_gru:
        return GRU(input_dim, config.gru_cell_size, Initializers.of(config, "gru"))
    return None
