"""Distributions over finitely many actions: Categorical, MultiCategorical and Bernoulli."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.array_functions import (
    log,
    log_sigmoid,
    log_softmax,
    namespace,
    pick,
    split,
    whole,
)
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.distributions.masks import fitting_mask, forbid
from marl_connectors.rl_module.distributions.noise import draw_like

if TYPE_CHECKING:
    from typing_extensions import Self


class TorchCategorical(Distribution):
    """The distribution for Discrete spaces. Actions count from 0; ``start`` is added for the environment only."""

    takes_arrays = True

    def __init__(self, logits: Any = None, probs: Any = None):
        """Makes distributions from ``[..., n]`` logits, or from probabilities."""
        self.logits = log(probs) if logits is None else logits

    @classmethod
    def from_logits(cls, logits: Any) -> TorchCategorical:
        return cls(logits)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.Discrete)
        return int(space.n)

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """Adding Gumbel noise to the logits and taking the largest one samples from the softmax."""
        return [("gumbel", num_inputs)]

    @cached_property
    def log_probs(self) -> Any:
        """``[..., n]`` normalised logits."""
        return log_softmax(self.logits)

    @cached_property
    def finite_log_probs(self) -> Any:
        """``log_probs`` in which an impossible action (logit -inf) counts 0 as ``p * log(p)``, not nan."""
        return self.log_probs.clip(namespace(self.logits).finfo(self.logits.dtype).min)

    @cached_property
    def probs(self) -> Any:
        """``[..., n]`` probabilities."""
        return namespace(self.logits).exp(self.finite_log_probs)

    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        if noise is None:
            noise = draw_like(self.logits, [("gumbel", self.logits.shape[-1])], sample_shape)
        return (self.logits + noise).argmax(-1)

    def to_deterministic(self) -> Any:
        return self.logits.argmax(-1)

    def logp(self, value: Any) -> Any:
        return pick(self.log_probs, value)

    def entropy(self) -> Any:
        return self._entropy

    @cached_property
    def _entropy(self) -> Any:
        return -(self.probs * self.finite_log_probs).sum(-1)

    def kl(self, other: TorchCategorical) -> Any:
        return (self.probs * (self.finite_log_probs - other.finite_log_probs)).sum(-1)


class TorchMultiCategorical(Distribution):
    """The distribution for MultiDiscrete spaces: independent choices with ``input_lens[i]`` logits for the ``i``-th.

    Actions are flat, ``[..., number of choices]``, and count from 0.

    Attributes:
        input_lens: The number of values of each choice. ``for_space`` and ``get_partial_dist_cls`` set it.
    """

    takes_arrays = True
    input_lens: tuple[int, ...] = ()

    def __init__(self, logits: Any):
        self.logits = logits

    @classmethod
    def from_logits(cls, logits: Any, input_lens: Sequence[int] | None = None) -> TorchMultiCategorical:
        """Makes distributions from ``[..., sum(input_lens)]`` logits.

        Raises:
            ModuleError: If ``input_lens`` is not set, or the number of logits differs.
        """
        if input_lens is not None:
            return cls.get_partial_dist_cls(input_lens=tuple(map(int, input_lens))).from_logits(logits)
        if not cls.input_lens or logits.shape[-1] != sum(cls.input_lens):
            raise ModuleError(
                f"TorchMultiCategorical: got {logits.shape[-1]} logits for choices of {cls.input_lens} values. Use "
                f"TorchMultiCategorical.for_space(action_space), and let the module return one logit for each value."
            )
        return cls(logits)

    @classmethod
    def for_space(cls, space: Space) -> type[Self]:
        assert isinstance(space, spaces.MultiDiscrete)
        return cls.get_partial_dist_cls(input_lens=tuple(space.nvec.reshape(-1).tolist()))

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.MultiDiscrete)
        return int(space.nvec.sum())

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """Gumbel noise for each logit."""
        return [("gumbel", num_inputs)]

    @classmethod
    def apply_action_mask(cls, inputs: Any, mask: Any) -> Any:
        """Applies a mask to each choice. The mask of a choice whose values are all forbidden is ignored."""
        mask = fitting_mask(inputs, mask)
        parts = [~part & part.any(-1)[..., None] for part in cls._split(mask)]
        return forbid(inputs, namespace(inputs).concatenate(parts, -1))

    @cached_property
    def choices(self) -> TorchCategorical:
        """The choices as one distribution with an additional axis, padded to the largest with probabilities of 0."""
        lens, longest, logits = self.input_lens, max(self.input_lens), self.logits
        if min(lens) == longest:
            return TorchCategorical(logits.reshape(*logits.shape[:-1], len(lens), longest))
        xp = namespace(logits)
        none = xp.full_like(logits[..., :1], xp.finfo(logits.dtype).min)
        parts = [xp.concatenate([part, *[none] * (longest - part.shape[-1])], -1) for part in self._split(logits)]
        return TorchCategorical(xp.stack(parts, -2))

    @classmethod
    def _split(cls, values: Any) -> list[Any]:
        return split(values, cls.input_lens)

    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        if noise is None:
            noise = draw_like(self.logits, [("gumbel", self.logits.shape[-1])], sample_shape)
        return self._best(self.logits + noise)

    def to_deterministic(self) -> Any:
        return self._best(self.logits)

    def _best(self, scores: Any) -> Any:
        return namespace(scores).stack([part.argmax(-1) for part in self._split(scores)], -1)

    def logp(self, value: Any) -> Any:
        return self.choices.logp(value.reshape(self.choices.logits.shape[:-1])).sum(-1)

    def entropy(self) -> Any:
        return self.choices.entropy().sum(-1)

    def kl(self, other: TorchMultiCategorical) -> Any:
        return self.choices.kl(other.choices).sum(-1)


class TorchBernoulli(Distribution):
    """The distribution for MultiBinary spaces: independent bits, each with the logit of its probability to be 1.

    Sampled actions are flat, ``[..., n]``. A mask has two numbers for each bit: whether the bit may be 0, and whether
    it may be 1.
    """

    takes_arrays = True

    def __init__(self, logits: Any = None, probs: Any = None):
        """Makes distributions from ``[..., n]`` logits, or from probabilities to be 1."""
        self.logits = log(probs) - log(1 - probs) if logits is None else logits

    @classmethod
    def from_logits(cls, logits: Any) -> TorchBernoulli:
        return cls(logits)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.MultiBinary)
        return int(np.prod(space.shape))

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """The sum of logistic noise and a logit is above 0 with the probability of the bit."""
        return [("logistic", num_inputs)]

    @classmethod
    def apply_action_mask(cls, inputs: Any, mask: Any) -> Any:
        """Sets the logits of bits with one forbidden value. The mask of a bit that forbids both values is ignored."""
        mask = fitting_mask(inputs, mask, 2)
        may_be_0, may_be_1 = mask[..., ::2], mask[..., 1::2]
        return -forbid(-forbid(inputs, may_be_0 & ~may_be_1), may_be_1 & ~may_be_0)

    @cached_property
    def _log_probs(self) -> tuple[Any, Any]:
        """Each bit's log-probabilities to be 0 and 1, which are finite even if the logits are not."""
        largest = namespace(self.logits).finfo(self.logits.dtype).max
        logits = self.logits.clip(-largest, largest)
        return log_sigmoid(-logits), log_sigmoid(logits)

    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        if noise is None:
            noise = draw_like(self.logits, [("logistic", self.logits.shape[-1])], sample_shape)
        return whole(self.logits + noise > 0)

    def to_deterministic(self) -> Any:
        return whole(self.logits > 0)

    def logp(self, value: Any) -> Any:
        zero, one = self._log_probs
        return namespace(zero).where(value.reshape(self.logits.shape) > 0, one, zero).sum(-1)

    def entropy(self) -> Any:
        xp, (zero, one) = namespace(self.logits), self._log_probs
        return -(xp.exp(zero) * zero + xp.exp(one) * one).sum(-1)

    def kl(self, other: TorchBernoulli) -> Any:
        xp, (zero, one), (other_zero, other_one) = namespace(self.logits), self._log_probs, other._log_probs
        return (xp.exp(zero) * (zero - other_zero) + xp.exp(one) * (one - other_one)).sum(-1)
