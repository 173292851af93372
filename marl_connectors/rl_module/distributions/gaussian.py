"""Normal distributions, plain and squashed into a range."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.seeding import StreamGenerator
from marl_connectors.spaces import describe
from marl_connectors.typing import Tree

_EDGE = 1e-6
"""The distance that squashed actions keep from the ends of their range, so that float32 can invert ``tanh``."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
"""Gauss-Hermite quadrature for expectations under a standard normal distribution, up to a factor."""


class TorchDiagGaussian(Distribution):
    """The distribution for Box spaces: independent normal distributions, one for each number of the action.

    ``action_dist_inputs`` are the means followed by the logarithms of the standard deviations. Sampled actions are
    flat, ``[..., n]``; NormalizeAndClipActions gives them the space's shape and range. ``logp`` accepts both shapes.
    """

    def __init__(self, mean: Tensor, log_std: Tensor):
        self.mean = mean
        self.log_std = log_std

    @classmethod
    def from_logits(cls, logits: Tensor) -> TorchDiagGaussian:
        mean, log_std = logits.chunk(2, -1)
        return cls(mean, log_std)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.Box)
        return 2 * int(np.prod(space.shape))

    @classmethod
    def noise(cls, rng: StreamGenerator | np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray:
        return rng.standard_normal((*shape, num_inputs // 2), dtype=np.float32)

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        return [("normal", num_inputs // 2)] if cls._computes_as(TorchDiagGaussian, "noise") else None

    def sample(self, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            noise = torch.randn_like(self.mean)
        return self.mean + self.log_std.exp() * noise

    def sample_with_logp(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Returns ``[..., n]`` actions, and their ``[...]`` log-probabilities, both with gradients.

        Args:
            noise: ``[..., n]`` numbers of a standard normal distribution.
        """
        return self.mean + self.log_std.exp() * noise, self._logp_of_noise(noise)

    def _logp_of_noise(self, noise: Tensor) -> Tensor:
        return (-0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def to_deterministic(self) -> Tensor:
        return self.mean

    @classmethod
    def bind_choice(cls) -> Callable[[np.ndarray, np.ndarray | None], Tree]:
        if not cls._computes_as(TorchDiagGaussian, "from_logits", "sample", "to_deterministic"):
            return super().bind_choice()
        return _normal

    def logp(self, value: Tensor) -> Tensor:
        standardised = (value.reshape(self.mean.shape) - self.mean) * (-self.log_std).exp()
        return (-0.5 * standardised.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def log_stds(self) -> Tensor | None:
        return self.log_std

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, other: TorchDiagGaussian) -> Tensor:
        variance_ratio = (2 * (self.log_std - other.log_std)).exp()
        distance = ((self.mean - other.mean) * (-other.log_std).exp()).square()
        return 0.5 * (variance_ratio + distance - 1.0 - variance_ratio.log()).sum(-1)


def _normal(inputs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """Returns ``[B, n]`` actions of means and log standard deviations side by side."""
    size = inputs.shape[-1] // 2
    if noise is None:
        return inputs[:, :size].copy()
    actions = np.exp(inputs[:, size:])
    actions *= noise
    actions += inputs[:, :size]
    return actions


class TorchClippedGaussian(TorchDiagGaussian):
    """Actions in [-1, 1] with normally distributed noise, for policies that are deterministic without exploration.

    Actions that the noise moves out of the range are clipped. Densities are those before clipping.
    """

    def sample(self, noise: Tensor | None = None) -> Tensor:
        return super().sample(noise).clamp(-1.0, 1.0)


class TorchSquashedGaussian(TorchDiagGaussian):
    """The distribution for bounded Box spaces: ``tanh`` of normally distributed numbers, without clipping.

    Actions are in (-1, 1), which NormalizeAndClipActions stretches to the space's range; densities are those in
    (-1, 1). The KL divergence is that of the normal distributions, which ``tanh`` does not change. The entropy is
    computed by quadrature (to 1e-3 nats up to a standard deviation of 2, to 3 in 100 up to 10), so it has a gradient
    without noise. ``to_deterministic`` is the median.
    """

    @staticmethod
    def required_input_dim(space: Space) -> int:
        check_bounded("TorchSquashedGaussian", space)
        return TorchDiagGaussian.required_input_dim(space)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        return super().sample(noise).tanh().clamp(-1 + _EDGE, 1 - _EDGE)

    def sample_with_logp(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        unsquashed, logp = super().sample_with_logp(noise)
        return unsquashed.tanh().clamp(-1 + _EDGE, 1 - _EDGE), logp - _log_slope(unsquashed).sum(-1)

    def to_deterministic(self) -> Tensor:
        return self.mean.tanh().clamp(-1 + _EDGE, 1 - _EDGE)

    def logp(self, value: Tensor) -> Tensor:
        inside = value.reshape(self.mean.shape).clamp(-1 + _EDGE, 1 - _EDGE)
        unsquashed = 0.5 * (inside.log1p() - (-inside).log1p())  # torch's atanh depends on a number's neighbours
        return super().logp(unsquashed) - _log_slope(unsquashed).sum(-1)

    def entropy(self) -> Tensor:
        nodes = torch.as_tensor(_NODES, dtype=self.mean.dtype, device=self.mean.device)
        weights = torch.as_tensor(_WEIGHTS / _WEIGHTS.sum(), dtype=self.mean.dtype, device=self.mean.device)
        points = self.mean.unsqueeze(-1) + self.log_std.exp().unsqueeze(-1) * nodes
        return super().entropy() + (_log_slope(points) @ weights).sum(-1)


def _log_slope(x: Tensor) -> Tensor:
    """The logarithm of the derivative of ``tanh``, ``1 - tanh(x) ** 2``, exact also where that rounds to 0."""
    return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


def softplus(x: Tensor) -> Tensor:
    """Returns ``log(1 + exp(x))``. Each result depends only on its own number, to the last bit."""
    return x.clamp(min=0.0) + (-x.abs()).exp().log1p()


def check_bounded(who: str, space: Space) -> None:
    """Checks that a space has bounds.

    Raises:
        ModuleError: If it has none.
    """
    if not isinstance(space, spaces.Box) or not space.is_bounded("both"):
        raise ModuleError(
            f"{who}: its actions lie in a range, but {describe(space)} has no bounds. Give the action space finite "
            f"bounds, or use the normal distribution (action_distribution='gaussian')."
        )
