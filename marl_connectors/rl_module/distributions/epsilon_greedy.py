"""EpsilonGreedy: the action with the greatest value, or sometimes any action."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.masked_logits import apply_action_mask
from marl_connectors.seeding import StreamGenerator
from marl_connectors.typing import Tree


class EpsilonGreedy(Distribution):
    """With probability epsilon an action that is drawn evenly from all, else the one with the greatest value.

    ``action_dist_inputs`` are the values of all actions of a Discrete space, and epsilon: ``[..., n + 1]``. Forbidden
    actions are neither drawn nor chosen.
    """

    def __init__(self, values: Tensor, epsilon: Tensor):
        self.values = values
        self.epsilon = epsilon

    @classmethod
    def from_logits(cls, logits: Tensor) -> EpsilonGreedy:
        return cls(logits[..., :-1], logits[..., -1])

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.Discrete)
        return int(space.n) + 1

    @classmethod
    def noise(cls, rng: StreamGenerator | np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray:
        """Draws one number to compare with epsilon, and one for each action, of which the least decides."""
        return rng.random((*shape, num_inputs), dtype=np.float32)

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        return [("uniform", num_inputs)] if cls._computes_as(EpsilonGreedy, "noise") else None

    @classmethod
    def apply_action_mask(cls, inputs: Tensor, mask: Any) -> Tensor:
        return torch.cat([apply_action_mask(inputs[..., :-1], mask), inputs[..., -1:]], -1)

    @cached_property
    def _allowed(self) -> Tensor:
        return self.values > torch.finfo(self.values.dtype).min

    def sample(self, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            noise = torch.rand((*self.values.shape[:-1], self.values.shape[-1] + 1), device=self.values.device)
        at_random = torch.where(self._allowed, noise[..., 1:], 2.0).argmin(-1)
        return torch.where(noise[..., 0] < self.epsilon, at_random, self.to_deterministic())

    def to_deterministic(self) -> Tensor:
        return self.values.argmax(-1)

    @classmethod
    def bind_choice(cls) -> Callable[[np.ndarray, np.ndarray | None], Tree]:
        if not cls._computes_as(EpsilonGreedy, "from_logits", "sample", "to_deterministic"):
            return super().bind_choice()
        return _choose

    @property
    def probs(self) -> Tensor:
        """``[..., n]`` probabilities of all actions."""
        allowed = self._allowed.to(self.values.dtype)
        even = allowed / allowed.sum(-1, keepdim=True)
        greedy = torch.nn.functional.one_hot(self.to_deterministic(), self.values.shape[-1])
        return torch.lerp(greedy.to(even.dtype), even, self.epsilon.unsqueeze(-1))

    def logp(self, value: Tensor) -> Tensor:
        return self.probs.gather(-1, value.long().unsqueeze(-1)).squeeze(-1).log()

    def entropy(self) -> Tensor:
        return -torch.xlogy(self.probs, self.probs).sum(-1)

    def kl(self, other: EpsilonGreedy) -> Tensor:
        own = self.probs
        return (torch.xlogy(own, own) - torch.where(own > 0, own * other.probs.log(), 0.0)).sum(-1)


def _choose(inputs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """Returns ``[B]`` actions, as ``sample`` and ``to_deterministic`` do."""
    values = inputs[..., :-1]
    greedy = values.argmax(-1)
    if noise is None:
        return greedy
    at_random = np.where(values > np.finfo(values.dtype).min, noise[..., 1:], 2.0).argmin(-1)
    return np.where(noise[..., 0] < inputs[..., -1], at_random, greedy)
