"""Beta distributions, for actions in a range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from marl_connectors.array_functions import softplus
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.distributions.gaussian import check_bounded
from marl_connectors.rl_module.distributions.noise import draw_like

_EDGE = 1e-6
_PROPOSALS = 6
"""The number of proposals for a gamma variate. At least 95 in 100 are accepted, so that the probability that none is
accepted is below what float32 can represent next to 1 (0.05 ** 6 = 2e-8)."""


class TorchBeta(Distribution):
    """The distribution for bounded Box spaces: independent Beta distributions, one for each number of the action.

    ``action_dist_inputs`` ``x`` are those of all ``alpha`` followed by those of all ``beta``, each ``1 + softplus(x)``,
    so that the density has one peak, and none at the edges (Chou et al. (2017), Proceedings of ICML 70). Actions are in
    (-1, 1), which NormalizeAndClipActions stretches to the space's range; densities are those in (-1, 1).
    ``to_deterministic`` is the mean.

    Sampling takes the quotient of two gamma variates, by the method of Marsaglia and Tsang (2000), ACM TOMS 26(3), from
    a fixed number of proposals, so that an action follows from its own noise.
    """

    def __init__(self, alpha: Tensor, beta: Tensor):
        self.alpha = alpha
        self.beta = beta

    @classmethod
    def from_logits(cls, logits: Tensor) -> TorchBeta:
        alpha, beta = (1.0 + softplus(logits)).chunk(2, -1)
        return cls(alpha, beta)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        check_bounded("TorchBeta", space)
        assert isinstance(space, spaces.Box)
        return 2 * int(np.prod(space.shape))

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """The normal numbers of each gamma variate's proposals, then the numbers that decide on acceptance."""
        return [("normal", num_inputs * _PROPOSALS), ("exponential", num_inputs * _PROPOSALS)]

    def sample(self, noise: Tensor | None = None, *, sample_shape: Sequence[int] = ()) -> Tensor:
        concentration = torch.cat([self.alpha, self.beta], -1)
        if noise is None:
            noise = draw_like(concentration, self.noise_parts(concentration.shape[-1]) or (), sample_shape)
        first, second = _gamma(concentration, noise).chunk(2, -1)
        return (2.0 * first / (first + second) - 1.0).clamp(-1 + _EDGE, 1 - _EDGE)

    def to_deterministic(self) -> Tensor:
        return (self.alpha - self.beta) / (self.alpha + self.beta)

    @cached_property
    def _doubles(self) -> tuple[Tensor, Tensor, Tensor]:
        """``alpha``, ``beta`` and the logarithm of their Beta function, for which float32 is not exact enough."""
        alpha, beta = self.alpha.double(), self.beta.double()
        return alpha, beta, torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)

    def logp(self, value: Tensor) -> Tensor:
        alpha, beta, log_b = self._doubles
        share = (0.5 + 0.5 * value.reshape(alpha.shape).double()).clamp(0.5 * _EDGE, 1 - 0.5 * _EDGE)
        logp = (alpha - 1) * share.log() + (beta - 1) * (-share).log1p() - log_b - math.log(2.0)
        return logp.sum(-1).to(self.alpha.dtype)

    def entropy(self) -> Tensor:
        alpha, beta, log_b = self._doubles
        both = (alpha + beta - 2) * torch.digamma(alpha + beta)
        own = (alpha - 1) * torch.digamma(alpha) + (beta - 1) * torch.digamma(beta)
        return (log_b - own + both + math.log(2.0)).sum(-1).to(self.alpha.dtype)

    def kl(self, other: TorchBeta) -> Tensor:
        alpha, beta, log_b = self._doubles
        alpha_2, beta_2, log_b_2 = other._doubles
        own = (alpha - alpha_2) * torch.digamma(alpha) + (beta - beta_2) * torch.digamma(beta)
        both = (alpha_2 - alpha + beta_2 - beta) * torch.digamma(alpha + beta)
        return (log_b_2 - log_b + own + both).sum(-1).to(self.alpha.dtype)


def _gamma(concentration: Tensor, noise: Tensor) -> Tensor:
    """Returns ``[..., n]`` gamma variates of concentrations of at least 1, from ``[..., 2 * n * _PROPOSALS]`` noise."""
    normal, exponential = (part.unflatten(-1, (-1, _PROPOSALS)) for part in noise.chunk(2, -1))
    d = (concentration - 1.0 / 3.0).unsqueeze(-1)
    v = (1.0 + normal / (9.0 * d).sqrt()) ** 3
    positive = v > 0
    safe = torch.where(positive, v, 1.0)
    accepted = positive & (-exponential < 0.5 * normal**2 + d * (1.0 - safe + safe.log()))
    first = accepted.to(torch.uint8).argmax(-1, keepdim=True)
    return (d * safe).gather(-1, first).squeeze(-1)
