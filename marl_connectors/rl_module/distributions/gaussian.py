"""Normal distributions, plain and squashed into a range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from marl_connectors.array_functions import log, namespace, softplus, split
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.distributions.noise import draw_like
from marl_connectors.spaces import describe

_EDGE = 1e-6
"""The distance that squashed actions keep from the ends of their range, so that float32 can invert ``tanh``."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
"""Gauss-Hermite quadrature for expectations under a standard normal distribution, up to a factor."""


class TorchDiagGaussian(Distribution):
    """The distribution for Box spaces: independent normal distributions, one for each number of the action.

    ``action_dist_inputs`` are the means followed by the logarithms of the standard deviations. Sampled actions are
    flat, ``[..., n]``; NormalizeAndClipActions gives them the space's shape and range. ``logp`` accepts both shapes.
    """

    takes_arrays = True

    def __init__(self, loc: Any, scale: Any = None, *, log_std: Any = None):
        """Makes distributions from ``[..., n]`` means, and standard deviations or their logarithms."""
        self.mean = loc
        self.log_std = log(namespace(loc).zeros_like(loc) + scale) if log_std is None else log_std

    @classmethod
    def from_logits(cls, logits: Any) -> TorchDiagGaussian:
        mean, log_std = split(logits, [logits.shape[-1] // 2] * 2)
        return cls(mean, log_std=log_std)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.Box)
        return 2 * int(np.prod(space.shape))

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """Numbers of standard normal distributions."""
        return [("normal", num_inputs // 2)]

    @property
    def _std(self) -> Any:
        return namespace(self.log_std).exp(self.log_std)

    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        if noise is None:
            noise = draw_like(self.mean, [("normal", self.mean.shape[-1])], sample_shape)
        return self.mean + self._std * noise

    def sample_with_logp(self, noise: Any) -> tuple[Any, Any]:
        """Returns ``[..., n]`` actions, and their ``[...]`` log-probabilities, both with gradients.

        Args:
            noise: ``[..., n]`` numbers of a standard normal distribution.
        """
        return self.mean + self._std * noise, self._logp_of_noise(noise)

    def _logp_of_noise(self, noise: Any) -> Any:
        return (-0.5 * noise * noise - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def to_deterministic(self) -> Any:
        return self.mean

    def logp(self, value: Any) -> Any:
        xp = namespace(self.mean)
        return self._logp_of_noise((value.reshape(self.mean.shape) - self.mean) * xp.exp(-self.log_std))

    def log_stds(self) -> Any:
        return self.log_std

    def entropy(self) -> Any:
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, other: TorchDiagGaussian) -> Any:
        xp = namespace(self.mean)
        log_ratio = 2 * (self.log_std - other.log_std)
        distance = xp.square((self.mean - other.mean) * xp.exp(-other.log_std))
        return 0.5 * (xp.exp(log_ratio) + distance - 1.0 - log_ratio).sum(-1)


class TorchClippedGaussian(TorchDiagGaussian):
    """Actions in [-1, 1] with normally distributed noise, for policies that are deterministic without exploration.

    Actions that the noise moves out of the range are clipped. Densities are those before clipping.
    """

    takes_arrays = True

    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        return super().sample(noise, sample_shape=sample_shape).clip(-1.0, 1.0)


class TorchSquashedGaussian(TorchDiagGaussian):
    """The distribution for bounded Box spaces: ``tanh`` of normally distributed numbers, without clipping.

    Actions are in (-1, 1), which NormalizeAndClipActions stretches to the space's range; densities are those in
    (-1, 1). The KL divergence is that of the normal distributions, which ``tanh`` does not change. The entropy is
    computed by quadrature (to 1e-3 nats up to a standard deviation of 2, to 3 in 100 up to 10), so it has a gradient
    without noise. ``to_deterministic`` is the median.
    """

    takes_arrays = True

    @staticmethod
    def required_input_dim(space: Space) -> int:
        check_bounded("TorchSquashedGaussian", space)
        return TorchDiagGaussian.required_input_dim(space)

    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        return _squashed(super().sample(noise, sample_shape=sample_shape))

    def sample_with_logp(self, noise: Any) -> tuple[Any, Any]:
        unsquashed, logp = super().sample_with_logp(noise)
        return _squashed(unsquashed), logp - _log_slope(unsquashed).sum(-1)

    def to_deterministic(self) -> Any:
        return _squashed(self.mean)

    def logp(self, value: Any) -> Any:
        xp, inside = namespace(self.mean), value.reshape(self.mean.shape).clip(-1 + _EDGE, 1 - _EDGE)
        unsquashed = 0.5 * (xp.log1p(inside) - xp.log1p(-inside))  # torch's atanh depends on a number's neighbours
        return super().logp(unsquashed) - _log_slope(unsquashed).sum(-1)

    def entropy(self) -> Any:
        mean, std = (torch.as_tensor(x)[..., None] for x in (self.mean, self._std))
        nodes, weights = (torch.as_tensor(x, dtype=mean.dtype, device=mean.device) for x in (_NODES, _WEIGHTS))
        spread = (_log_slope(mean + std * nodes) @ (weights / _WEIGHTS.sum())).sum(-1)
        return super().entropy() + (spread.numpy() if isinstance(self.mean, np.ndarray) else spread)


def _squashed(x: Any) -> Any:
    return namespace(x).tanh(x).clip(-1 + _EDGE, 1 - _EDGE)


def _log_slope(x: Any) -> Any:
    """The logarithm of the derivative of ``tanh``, ``1 - tanh(x) ** 2``, exact also where that rounds to 0."""
    return 2.0 * (math.log(2.0) - x - softplus(-2.0 * x))


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
