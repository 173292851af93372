"""Convolutions over images, for one module or for many modules of one shape at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marl_connectors.rl_module.default_model_config import CONV_FILTERS
from marl_connectors.rl_module.initializers import Initializers
from marl_connectors.rl_module.layers import make_activation

_GROUPED_SIZE = 4096
"""Up to how many numbers an image has for which the CPU convolves several modules' images faster together."""
_SMALL = 7
"""Default filters halve an image until it has at most so many rows and columns."""


class Conv2d(nn.Conv2d):
    """``torch.nn.Conv2d`` over ``[B, C, H, W]`` that also takes stacked weights with inputs ``[M, B, C, H, W]``.

    Images of ``image_size``, ``(H, W)``, are padded with zeros so that an output has ``ceil(size / stride)`` rows and
    columns.
    """

    def __init__(self, channels: int, out: int, kernel: Any, stride: Any, image_size: tuple[int, int]):
        super().__init__(channels, out, kernel, stride)
        self._padding = [*self._pads(image_size[1], 1), *self._pads(image_size[0], 0)]

    def forward(self, input: Tensor) -> Tensor:
        input = F.pad(input, self._padding)
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
        output_dim: How many numbers an image becomes.
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
            initializers: How the weights and biases begin, if not orthogonal and at 0.
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
        """``[..., output_dim]`` of ``[..., C, H, W]`` images; stacked, the first axis is the modules'."""
        num_axes = 4 if next(self.parameters()).dim() == 4 else 5  # of what a layer takes
        lead = x.shape[:-3]
        if x.dim() != num_axes:
            x = x.flatten(num_axes - 4, -4)
        for layer in self.layers:
            x = self.activation(layer(x))
        return x.flatten(-3).reshape(*lead, self.output_dim)


def default_filters(height: int, width: int) -> list[list[int]]:
    """``[channels, kernel, stride]`` of convolutions that suit images of that size: as many as make it small.

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
