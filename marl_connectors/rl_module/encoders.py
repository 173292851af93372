"""From observations of any space to the numbers that the heads of a module read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch._subclasses.fake_tensor import is_fake

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.conv_layers import CNN, default_filters
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.initializers import Initializers
from marl_connectors.rl_module.layers import MLP
from marl_connectors.rl_module.recurrent_layers import GRU, LSTM, RecurrentLayer
from marl_connectors.spaces import byte_scale, describe


class Encoder(MLP):
    """The hidden layers over an observation: each part of it as a vector, side by side, and an MLP over all of them.

    Images go through convolutions, Discrete and MultiDiscrete parts become one-hot vectors, all else is flattened as it
    is; whole numbers of 8 bits are scaled to [0, 1]. Observations have any leading axes: ``[B, ...]``, ``[B, T, ...]``,
    and with stacked parameters ``[M, B, ...]``.

    Attributes:
        parts: What turns each part of the observation into a vector; see ``parts_of``.
    """

    def __init__(self, space: Space, config: DefaultModelConfig):
        """Builds the layers.

        Args:
            space: Of observations: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of such.
            config: Sizes, activations and initializers.

        Raises:
            ModuleError: If there is no encoder for the space.
        """
        encoders = _encoders(space, config)
        super().__init__(
            sum(encoder.output_dim for _, encoder in encoders),
            config.fcnet_hiddens,
            config.fcnet_activation,
            initializers=Initializers.of(config, "fcnet"),
            use_layernorm=config.fcnet_use_layernorm,
        )
        self._paths = [path for path, _ in encoders]
        self.parts = nn.ModuleList([encoder for _, encoder in encoders])
        self._is_plain = self._paths == [()]

    def flat(self, x: Any) -> Tensor:
        """The parts of an observation, which may be a tree of tensors, as vectors side by side."""
        parts: Any = self._modules["parts"]
        encoders = parts._modules.values()
        if self._is_plain:
            (encoder,) = encoders
            return encoder(x)
        flat = []
        for path, encoder in zip(self._paths, encoders, strict=True):
            part = x
            for key in path:
                part = part[key]
            flat.append(encoder(part))
        return flat[0] if len(flat) == 1 else torch.cat(flat, -1)


class FlatPart(nn.Module):
    """Numbers as they are, side by side; whole numbers of 8 bits are scaled to [0, 1]."""

    def __init__(self, space: Space):
        super().__init__()
        shape = space.shape or ()
        self._rank = len(shape)
        self._scale = byte_scale(space) if isinstance(space, spaces.Box) else None
        self.output_dim = int(np.prod(shape))

    def forward(self, x: Tensor) -> Tensor:
        if self._rank != 1:
            x = x.flatten(-self._rank) if self._rank else x.unsqueeze(-1)
        x = x if x.is_floating_point() else x.float()
        return x if self._scale is None else x * self._scale


class OneHotPart(nn.Module):
    """One-hot vectors of whole numbers, side by side."""

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete):
        super().__init__()
        self._rank = len(space.shape or ())
        counts, starts = (np.atleast_1d(x).ravel() for x in (_counts(space), space.start))
        numbers = np.concatenate([np.arange(n) + start for n, start in zip(counts, starts, strict=True)])
        component = np.repeat(np.arange(len(counts)), counts)
        self._table = torch.from_numpy(numbers), torch.from_numpy(component)
        self.output_dim = len(numbers)

    def forward(self, x: Tensor) -> Tensor:
        numbers, component = self._table
        if numbers.device != x.device:
            numbers, component = numbers.to(x.device), component.to(x.device)
            is_traced = torch.compiler.is_compiling() or torch._C._is_tracing() or is_fake(numbers)
            if not is_traced:  # else they mean nothing outside of the trace
                self._table = numbers, component
        spread = x.flatten(-self._rank)[..., component] if self._rank else x.unsqueeze(-1)
        return (spread == numbers).float()


def _counts(space: spaces.Discrete | spaces.MultiDiscrete) -> Any:
    return space.n if isinstance(space, spaces.Discrete) else space.nvec


class ImagePart(nn.Module):
    """Convolutions over an image: ``(height, width, channels)``, ``(height, width)``, or channels first.

    The channels are first where that axis is at most a quarter of either other one. Whole numbers of 8 bits are scaled
    to [0, 1].
    """

    def __init__(self, space: spaces.Box, config: DefaultModelConfig):
        super().__init__()
        height, width, *last = space.shape
        channels = last[0] if last else 1
        self._has_channels = bool(last)
        self._channels_first = bool(last) and 4 * height <= min(width, channels)
        if self._channels_first:
            channels, height, width = height, width, channels
        self._scale = byte_scale(space)
        filters = default_filters(height, width) if config.conv_filters is None else config.conv_filters
        self.cnn = CNN((height, width, channels), filters, config.conv_activation, Initializers.of(config, "conv"))
        self.output_dim = self.cnn.output_dim

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.is_floating_point() else x.float()
        if self._scale is not None:
            x = x * self._scale
        if not self._has_channels:
            x = x.unsqueeze(-3)
        elif not self._channels_first:
            x = x.movedim(-1, -3)
        return self.cnn(x)


def is_image(space: Space) -> bool:
    """Whether default modules convolve: a Box with rows, columns and channels, or rows and columns of uint8.

    >>> is_image(spaces.Box(0, 255, (84, 84, 3), np.uint8)), is_image(spaces.Box(0, 1, (84, 84)))
    (True, False)
    """
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3):
        return False
    if len(space.shape) == 2:
        return space.dtype == np.uint8 and min(space.shape) >= 3
    return min(space.shape[:2]) >= 3 or 4 * space.shape[0] <= min(space.shape[1:])


def _encoders(space: Space, config: DefaultModelConfig, path: tuple[Any, ...] = ()) -> list[tuple[tuple, Any]]:
    """A module for each part of the observation that is no Dict or Tuple, with the way there."""
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


def recurrent_layer(input_dim: int, config: DefaultModelConfig) -> RecurrentLayer | None:
    """The LSTM or GRU that ``config`` asks for, if any."""
    if config.use_lstm:
        return LSTM(input_dim, config.lstm_cell_size, Initializers.of(config, "lstm"))
    if config.use_gru:
        return GRU(input_dim, config.gru_cell_size, Initializers.of(config, "gru"))
    return None
