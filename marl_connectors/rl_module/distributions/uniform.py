"""Uniform distributions, for random actions in a range."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.distributions.gaussian import check_bounded
from marl_connectors.seeding import StreamGenerator


class TorchUniform(Distribution):
    """Independent uniform distributions, one for each number of an action of a bounded Box space.

    ``action_dist_inputs`` are the lower bounds of all numbers, followed by their upper bounds, which must be larger.
    ``to_deterministic`` is the middle. The KL divergence is infinite where the other distribution cannot draw an action
    that this one can draw.
    """

    def __init__(self, low: Tensor, high: Tensor):
        self.low = low
        self.high = high

    @classmethod
    def from_logits(cls, logits: Tensor) -> TorchUniform:
        return cls(*logits.chunk(2, -1))

    @staticmethod
    def required_input_dim(space: Space) -> int:
        check_bounded("TorchUniform", space)
        assert isinstance(space, spaces.Box)
        return 2 * int(np.prod(space.shape))

    @classmethod
    def noise(cls, rng: StreamGenerator | np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray:
        """Draws the position between the bounds, from 0 to 1."""
        return rng.random((*shape, num_inputs // 2), dtype=np.float32)

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        return [("uniform", num_inputs // 2)] if cls._computes_as(TorchUniform, "noise") else None

    def sample(self, noise: Tensor | None = None) -> Tensor:
        noise = torch.rand_like(self.low) if noise is None else noise
        return self.low + (self.high - self.low) * noise

    def to_deterministic(self) -> Tensor:
        return 0.5 * (self.low + self.high)

    def logp(self, value: Tensor) -> Tensor:
        value = value.reshape(self.low.shape)
        is_inside = (value >= self.low) & (value <= self.high)
        return torch.where(is_inside, -(self.high - self.low).log(), -math.inf).sum(-1)

    def entropy(self) -> Tensor:
        return (self.high - self.low).log().sum(-1)

    def kl(self, other: TorchUniform) -> Tensor:
        is_covered = (other.low <= self.low) & (other.high >= self.high)
        widths = (other.high - other.low).log() - (self.high - self.low).log()
        return torch.where(is_covered, widths, math.inf).sum(-1)
