"""EpsilonGreedy: the action with the greatest value, or sometimes any action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import Space, spaces

from marl_connectors.array_functions import log, namespace, one_hot, pick
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.distributions.masks import apply_action_mask
from marl_connectors.rl_module.distributions.noise import draw_like


class EpsilonGreedy(Distribution):
    """With probability epsilon an action that is drawn evenly from all, else the one with the greatest value.

    ``action_dist_inputs`` are the values of all actions of a Discrete space, and epsilon: ``[..., n + 1]``. Forbidden
    actions are neither drawn nor chosen.
    """

    takes_arrays = True

    def __init__(self, values: Any, epsilon: Any):
        self.values = values
        self.epsilon = epsilon

    @classmethod
    def from_logits(cls, logits: Any) -> EpsilonGreedy:
        return cls(logits[..., :-1], logits[..., -1])

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.Discrete)
        return int(space.n) + 1

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """One number to compare with epsilon, and one for each action, of which the least decides."""
        return [("uniform", num_inputs)]

    @classmethod
    def apply_action_mask(cls, inputs: Any, mask: Any) -> Any:
        return namespace(inputs).concatenate([apply_action_mask(inputs[..., :-1], mask), inputs[..., -1:]], -1)

    @property
    def _allowed(self) -> Any:
        return self.values > namespace(self.values).finfo(self.values.dtype).min

    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        if noise is None:
            noise = draw_like(self.values, [("uniform", self.values.shape[-1] + 1)], sample_shape)
        xp = namespace(self.values)
        at_random = xp.where(self._allowed, noise[..., 1:], 2.0).argmin(-1)
        return xp.where(noise[..., 0] < self.epsilon, at_random, self.to_deterministic())

    def to_deterministic(self) -> Any:
        return self.values.argmax(-1)

    @property
    def probs(self) -> Any:
        """``[..., n]`` probabilities of all actions."""
        xp, values, epsilon = namespace(self.values), self.values, self.epsilon[..., None]
        allowed = xp.where(self._allowed, xp.ones_like(values), 0.0)
        even = allowed / allowed.sum(-1)[..., None]
        return epsilon * even + (1 - epsilon) * one_hot(self.to_deterministic(), values)

    def logp(self, value: Any) -> Any:
        return log(pick(self.probs, value))

    def entropy(self) -> Any:
        return -_times_log(self.probs, self.probs).sum(-1)

    def kl(self, other: EpsilonGreedy) -> Any:
        return (_times_log(self.probs, self.probs) - _times_log(self.probs, other.probs)).sum(-1)


def _times_log(probs: Any, others: Any) -> Any:
    """Returns ``probs * log(others)``, 0 where the first are 0."""
    return namespace(probs).where(probs > 0, probs * log(others), 0.0)
