"""Distributions over finitely many actions: Categorical, MultiCategorical and Bernoulli."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor
from torch.nn import functional as F

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.masked_logits import fitting_mask
from marl_connectors.seeding import StreamGenerator
from marl_connectors.typing import Tree

if TYPE_CHECKING:
    from typing_extensions import Self

_FEW = 64
"""Up to this number of categories, torch normalises several times faster along the first axis than along the last."""


class TorchCategorical(Distribution):
    """The distribution for Discrete spaces. Actions count from 0; ``start`` is added for the environment only."""

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

    @classmethod
    def noise(cls, rng: StreamGenerator | np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray:
        """Draws Gumbel noise. Adding it to the logits and taking the largest one samples from the softmax."""
        noise = rng.standard_exponential((*shape, num_inputs), dtype=np.float32)
        np.maximum(noise, np.finfo(np.float32).tiny, out=noise)
        np.log(noise, out=noise)
        return np.negative(noise, out=noise)

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        return [("gumbel", num_inputs)] if cls._computes_as(TorchCategorical, "noise") else None

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

    @classmethod
    def bind_choice(cls) -> Callable[[np.ndarray, np.ndarray | None], Tree]:
        if not cls._computes_as(TorchCategorical, "from_logits", "sample", "to_deterministic"):
            return super().bind_choice()
        return _largest

    @classmethod
    def logp_of_rows(cls, inputs: np.ndarray, actions: Tree) -> np.ndarray:
        if not cls._computes_as(TorchCategorical, "from_logits", "logp", "log_probs"):
            return super().logp_of_rows(inputs, actions)
        by_action = np.array(inputs.T, order="C")
        by_action -= by_action.max(axis=0)
        chosen = by_action[np.asarray(actions), np.arange(len(inputs))]
        np.exp(by_action, out=by_action)
        return chosen - np.log(by_action.sum(axis=0))

    def entropy(self) -> Tensor:
        log_probs = self._finite_log_probs
        return -(log_probs.exp() * log_probs).sum(-1)

    def kl(self, other: TorchCategorical) -> Tensor:
        log_probs = self._finite_log_probs
        return (log_probs.exp() * (log_probs - other._finite_log_probs)).sum(-1)


def _largest(inputs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """Returns ``[B]``, the action with the largest score."""
    return (inputs if noise is None else inputs + noise).argmax(-1)


class TorchMultiCategorical(Distribution):
    """The distribution for MultiDiscrete spaces: independent choices with ``input_lens[i]`` logits for the ``i``-th.

    Actions are flat, ``[..., number of choices]``, and count from 0. The choices are computed together, as one
    categorical distribution with an additional axis, padded to the largest choice with logits of probability 0.

    Attributes:
        input_lens: The number of values of each choice. ``for_space`` and ``get_partial_dist_cls`` set it.
    """

    input_lens: tuple[int, ...] = ()

    def __init__(self, choices: TorchCategorical):
        self._choices = choices

    @classmethod
    def from_logits(cls, logits: Tensor, input_lens: Sequence[int] | None = None) -> TorchMultiCategorical:
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
        return cls(TorchCategorical(cls._by_choice(logits, torch.finfo(logits.dtype).min)))

    @classmethod
    def for_space(cls, space: Space) -> type[Self]:
        assert isinstance(space, spaces.MultiDiscrete)
        return cls.get_partial_dist_cls(input_lens=tuple(space.nvec.reshape(-1).tolist()))

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.MultiDiscrete)
        return int(space.nvec.sum())

    @classmethod
    def _by_choice(cls, values: Tensor, fill: Any) -> Tensor:
        """Returns ``[..., sum(input_lens)]`` values as ``[..., choices, largest choice]``."""
        lens = cls.input_lens
        if len(set(lens)) == 1:
            return values.unflatten(-1, (len(lens), lens[0]))
        longest = max(lens)
        parts = [F.pad(part, (0, longest - part.shape[-1]), value=fill) for part in values.split(lens, -1)]
        return torch.stack(parts, -2)

    @classmethod
    def noise(cls, rng: StreamGenerator | np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray:
        """Draws Gumbel noise for each logit."""
        return TorchCategorical.noise(rng, shape, num_inputs)

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        return [("gumbel", num_inputs)] if cls._computes_as(TorchMultiCategorical, "noise") else None

    @classmethod
    def apply_action_mask(cls, inputs: Tensor, mask: Any) -> Tensor:
        """Applies a mask to each choice. The mask of a choice whose values are all forbidden is ignored."""
        mask = fitting_mask(inputs, mask)
        some = cls._by_choice(mask, False).any(-1)  # [..., choices]
        spread = [part.expand(*part.shape[:-1], n) for part, n in zip(some.split(1, -1), cls.input_lens, strict=True)]
        forbidden = mask.logical_not() & torch.cat(spread, -1)
        return inputs.masked_fill(forbidden, torch.finfo(inputs.dtype).min)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        return self._choices.sample(None if noise is None else self._by_choice(noise, 0.0))

    def to_deterministic(self) -> Tensor:
        return self._choices.to_deterministic()

    def logp(self, value: Tensor) -> Tensor:
        return self._choices.logp(value.reshape(self._choices.logits.shape[:-1])).sum(-1)

    @classmethod
    def bind_choice(cls) -> Callable[[np.ndarray, np.ndarray | None], Tree]:
        if not cls._computes_as(TorchMultiCategorical, "from_logits", "sample", "to_deterministic"):
            return super().bind_choice()
        bounds = list(pairwise([0, *accumulate(cls.input_lens)]))

        def choose(inputs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
            scores = inputs if noise is None else inputs + noise
            actions = np.empty((len(scores), len(bounds)), np.int64)
            for i, (begin, end) in enumerate(bounds):
                scores[:, begin:end].argmax(-1, out=actions[:, i])
            return actions

        return choose

    @classmethod
    def logp_of_rows(cls, inputs: np.ndarray, actions: Tree) -> np.ndarray:
        if not cls._computes_as(TorchMultiCategorical, "from_logits", "logp"):
            return super().logp_of_rows(inputs, actions)
        chosen = np.asarray(actions).reshape(len(inputs), -1)
        parts = np.split(inputs, np.cumsum(cls.input_lens)[:-1], axis=1)
        logps = [TorchCategorical.logp_of_rows(part, chosen[:, i]) for i, part in enumerate(parts)]
        return np.sum(logps, axis=0)

    def entropy(self) -> Tensor:
        return self._choices.entropy().sum(-1)

    def kl(self, other: TorchMultiCategorical) -> Tensor:
        return self._choices.kl(other._choices).sum(-1)


class TorchBernoulli(Distribution):
    """The distribution for MultiBinary spaces: independent bits, each with the logit of its probability to be 1.

    Sampled actions are flat, ``[..., n]``. A mask has two numbers for each bit: whether the bit may be 0, and whether
    it may be 1.
    """

    def __init__(self, logits: Tensor):
        self.logits = logits

    @classmethod
    def from_logits(cls, logits: Tensor) -> TorchBernoulli:
        return cls(logits)

    @staticmethod
    def required_input_dim(space: Space) -> int:
        assert isinstance(space, spaces.MultiBinary)
        return int(np.prod(space.shape))

    @classmethod
    def noise(cls, rng: StreamGenerator | np.random.Generator, shape: tuple[int, ...], num_inputs: int) -> np.ndarray:
        """Draws logistic noise. Its sum with a logit is above 0 with the probability of the bit."""
        return rng.logistic(size=(*shape, num_inputs)).astype(np.float32)

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        return [("logistic", num_inputs)] if cls._computes_as(TorchBernoulli, "noise") else None

    @classmethod
    def apply_action_mask(cls, inputs: Tensor, mask: Any) -> Tensor:
        """Sets the logits of bits with one forbidden value. The mask of a bit that forbids both values is ignored."""
        may_be_0, may_be_1 = fitting_mask(inputs, mask, 2).unflatten(-1, (-1, 2)).unbind(-1)
        largest = torch.finfo(inputs.dtype).max
        inputs = inputs.masked_fill(may_be_0 & ~may_be_1, -largest)
        return inputs.masked_fill(may_be_1 & ~may_be_0, largest)

    @classmethod
    def bind_choice(cls) -> Callable[[np.ndarray, np.ndarray | None], Tree]:
        if not cls._computes_as(TorchBernoulli, "from_logits", "sample", "to_deterministic"):
            return super().bind_choice()
        return lambda inputs, noise: ((inputs if noise is None else inputs + noise) > 0).astype(np.int64)

    @cached_property
    def _log_probs(self) -> tuple[Tensor, Tensor]:
        """Each bit's log-probabilities to be 0 and 1, which are finite even if the logits are not."""
        largest = torch.finfo(self.logits.dtype).max
        logits = self.logits.clamp(-largest, largest)
        return F.logsigmoid(-logits), F.logsigmoid(logits)

    def sample(self, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            noise = (
                torch.empty_like(self.logits).exponential_().log() - torch.empty_like(self.logits).exponential_().log()
            )
        return (self.logits + noise > 0).long()

    def to_deterministic(self) -> Tensor:
        return (self.logits > 0).long()

    def logp(self, value: Tensor) -> Tensor:
        zero, one = self._log_probs
        return torch.where(value.reshape(self.logits.shape) > 0, one, zero).sum(-1)

    def entropy(self) -> Tensor:
        zero, one = self._log_probs
        return -(zero.exp() * zero + one.exp() * one).sum(-1)

    def kl(self, other: TorchBernoulli) -> Tensor:
        (zero, one), (other_zero, other_one) = self._log_probs, other._log_probs
        return (zero.exp() * (zero - other_zero) + one.exp() * (one - other_one)).sum(-1)
