"""Uniform distributions, for random actions in a range."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.array_functions import log, namespace, split
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.distributions.gaussian import check_bounded
from marl_connectors.rl_module.distributions.noise import draw_like


class TorchUniform(Distribution):
    """Independent uniform distributions, one for each number of an action of a bounded Box space.

    ``action_dist_inputs`` are the lower bounds of all numbers, followed by their upper bounds, which must be larger.
    ``to_deterministic`` is the middle. The KL divergence is infinite where the other distribution cannot draw an action
    that this one can draw.
    """

    takes_arrays = True

    def __init__(self, low: Any, high: Any):
        self.low = low
        self.high = high

    @classmethod
    def from_logits(cls, logits: Any) -> TorchUniform:
        return cls(*split(logits, [logits.shape[-1] // 2] * 2))

    @staticmethod
    def required_input_dim(space: Space) -> int:
        check_bounded("TorchUniform", space)
        assert isinstance(space, spaces.Box)
        return 2 * int(np.prod(space.shape))

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """The position between the bounds, from 0 to 1."""
        return [("uniform", num_inputs // 2)]

    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        if noise is None:
            noise = draw_like(self.low, [("uniform", self.low.shape[-1])], sample_shape)
        return self.low + (self.high - self.low) * noise

    def to_deterministic(self) -> Any:
        return 0.5 * (self.low + self.high)

    @property
    def _log_widths(self) -> Any:
        return log(self.high - self.low)

    def logp(self, value: Any) -> Any:
        value = value.reshape(self.low.shape)
        is_inside = (value >= self.low) & (value <= self.high)
        return namespace(self.low).where(is_inside, -self._log_widths, -math.inf).sum(-1)

    def entropy(self) -> Any:
        return self._log_widths.sum(-1)

    def kl(self, other: TorchUniform) -> Any:
        is_covered = (other.low <= self.low) & (other.high >= self.high)
        return namespace(self.low).where(is_covered, other._log_widths - self._log_widths, math.inf).sum(-1)
