"""Action distributions: from what a module puts out to actions, log-probabilities, entropy and KL divergence.

Every method works on any number of leading axes: ``[B, n]`` for one module, ``[M, B, n]`` for stacked modules.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from marl_connectors.errors import ModuleError
from marl_connectors.spaces import describe

_FEW = 64
"""Up to how many categories torch normalises several times faster along the first axis than along the last."""


class Distribution(ABC):
    """A batch of action distributions."""

    @classmethod
    @abstractmethod
    def from_logits(cls, logits: Tensor) -> Distribution:
        """From a module's ``action_dist_inputs``, ``[..., n]``."""

    @staticmethod
    @abstractmethod
    def required_input_dim(space: Space) -> int:
        """How many ``action_dist_inputs`` an action of ``space`` needs."""

    @staticmethod
    def noise(rng: np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray | None:
        """What ``sample`` turns into actions: ``[*shape, k]`` float32, drawn for many steps at once.

        None means that the distribution draws from torch's generator itself.
        """
        del rng, shape, num_inputs
        return None

    @abstractmethod
    def sample(self, noise: Tensor | None = None) -> Tensor:
        """One action for each row.

        Args:
            noise: ``[..., k]`` as ``Distribution.noise`` gives it; None to draw from torch's global generator.
        """

    @abstractmethod
    def to_deterministic(self) -> Tensor:
        """The most likely action of each row."""

    @abstractmethod
    def logp(self, value: Tensor) -> Tensor:
        """``[...]`` log-probability (density) of actions."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """``[...]`` in nats."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """``[...]`` KL divergence from this distribution to ``other``, in nats."""


class TorchCategorical(Distribution):
    """For Discrete spaces. Actions count from 0; a space's ``start`` is added for the environment only."""

    def __init__(self, logits: Tensor):
        self.logits = logits
        self._log_probs: Tensor | None = None

    @classmethod
    def from_logits(cls, logits: Tensor) -> TorchCategorical:
        return cls(logits)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.Discrete)
        return int(space.n)

    @staticmethod
    def noise(rng: np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray:
        """Gumbel noise: adding it to the logits and taking the largest samples from the softmax."""
        exponential = rng.standard_exponential((*shape, num_inputs), dtype=np.float32)
        return -np.log(np.maximum(exponential, np.finfo(np.float32).tiny))

    @property
    def log_probs(self) -> Tensor:
        """``[..., n]`` normalised logits."""
        if self._log_probs is None:
            if self.logits.shape[-1] <= _FEW:
                self._log_probs = torch.log_softmax(self.logits.movedim(-1, 0).contiguous(), 0).movedim(0, -1)
            else:
                self._log_probs = torch.log_softmax(self.logits, -1)
        return self._log_probs

    @property
    def _finite_log_probs(self) -> Tensor:
        """``log_probs`` in which an impossible action (logit -inf) counts 0 as ``p * log(p)``, not nan."""
        return self.log_probs.clamp(min=torch.finfo(self.logits.dtype).min)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            noise = -torch.empty_like(self.logits).exponential_().log()
        return (self.logits + noise).argmax(-1)

    def to_deterministic(self) -> Tensor:
        return self.logits.argmax(-1)

    def logp(self, value: Tensor) -> Tensor:
        return self.log_probs.gather(-1, value.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        log_probs = self._finite_log_probs
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, other: TorchCategorical) -> Tensor:
        log_probs = self._finite_log_probs
        return (log_probs.exp() * (log_probs - other._finite_log_probs)).sum(-1)


class TorchDiagGaussian(Distribution):
    """For Box spaces: independent normal distributions, one for each number of the action.

    ``action_dist_inputs`` are the means followed by the logarithms of the standard deviations. Sampled actions are
    flat, ``[..., n]``; NormalizeAndClipActions gives them the space's shape and range. ``logp`` takes either shape.
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

    @staticmethod
    def noise(rng: np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray:
        return rng.standard_normal((*shape, num_inputs // 2), dtype=np.float32)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            noise = torch.randn_like(self.mean)
        return self.mean + self.log_std.exp() * noise

    def to_deterministic(self) -> Tensor:
        return self.mean

    def logp(self, value: Tensor) -> Tensor:
        standardised = (value.reshape(self.mean.shape) - self.mean) * (-self.log_std).exp()
        return (-0.5 * standardised.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def kl(self, other: TorchDiagGaussian) -> Tensor:
        variance_ratio = (2 * (self.log_std - other.log_std)).exp()
        distance = ((self.mean - other.mean) * (-other.log_std).exp()).square()
        return 0.5 * (variance_ratio + distance - 1.0 - variance_ratio.log()).sum(-1)


def without_forbidden(inputs: Tensor, mask: Any) -> Tensor:
    """Inputs of a categorical distribution that gives forbidden actions the probability 0, exactly.

    They get the most negative number there is, and no gradient. All else stays finite: log-probabilities of forbidden
    actions, entropy, KL divergence, and the gradients of all three.

    Args:
        inputs: ``[..., n]`` logits.
        mask: ``[..., n]``, of the same shape, 0 or False for forbidden actions. A row that forbids all, such as padding
            or that of an agent that only waits, forbids none.

    Returns:
        ``[..., n]``.

    Raises:
        ModuleError: If the shapes differ.
    """
    mask = torch.as_tensor(mask, dtype=torch.bool, device=inputs.device)
    if mask.shape != inputs.shape:
        raise ModuleError(
            f"action mask: its shape is {tuple(mask.shape)}, but that of 'action_dist_inputs' is "
            f"{tuple(inputs.shape)}. A mask needs one number for each logit of a Discrete action space; a module that "
            f"works otherwise sets handles_action_masks = True and sees to its masks itself."
        )
    forbidden = mask.logical_not() & mask.any(-1, keepdim=True)
    return inputs.masked_fill(forbidden, torch.finfo(inputs.dtype).min)


def default_distribution(action_space: Space) -> type[Distribution]:
    """The distribution that default modules use for a space.

    Raises:
        ModuleError: If there is none.
    """
    if isinstance(action_space, spaces.Discrete):
        return TorchCategorical
    if isinstance(action_space, spaces.Box) and np.issubdtype(action_space.dtype, np.floating):
        return TorchDiagGaussian
    raise ModuleError(
        f"default_distribution: there is no default action distribution for {describe(action_space)}; Discrete and "
        f"float Box spaces have one. Override get_exploration_action_dist_cls() and its siblings in your own RLModule."
    )
