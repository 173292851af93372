"""Distributions over Dict and Tuple actions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.seeding import StreamGenerator
from marl_connectors.spaces import parts_of, values_per_choice
from marl_connectors.typing import Tree

if TYPE_CHECKING:
    from typing_extensions import Self


class ActionPart(NamedTuple):
    """One part of an action.

    Attributes:
        key: Its key in a dict, or its index in a tuple.
        dist_cls: Its distribution; a TorchMultiDistribution for a part with parts.
        num_inputs: The number of its ``action_dist_inputs``.
        num_noise: The number of values that ``sample`` makes it from; None for a distribution that draws itself.
        num_mask: The number of values of its action masks; 0 for a part without choices.
    """

    key: Any
    dist_cls: type[Distribution]
    num_inputs: int
    num_noise: int | None
    num_mask: int = 0


class TorchMultiDistribution(Distribution):
    """The distribution for Dict and Tuple spaces: independent parts, which may be nested.

    ``action_dist_inputs`` are those of the parts, one after another in the space's order; actions are dicts or tuples
    of tensors. Log-probability, entropy and KL divergence are the sums of the parts'.

    Attributes:
        parts: The parts of an action. ``of_parts`` sets them.
        is_dict: Whether actions are dicts; else they are tuples.
    """

    parts: tuple[ActionPart, ...] = ()
    is_dict = True

    def __init__(self, children: list[Distribution]):
        self._children = children

    @classmethod
    def of_parts(cls, space: spaces.Dict | spaces.Tuple, dist_cls_of: Any) -> type[Self]:
        """Returns the class for a space.

        Args:
            space: The space.
            dist_cls_of: ``fn(space)``, which returns the distribution of a part.
        """
        is_dict = isinstance(space, spaces.Dict)
        parts = []
        for key, part in parts_of(space):
            dist_cls = dist_cls_of(part)
            num_inputs = dist_cls.required_input_dim(part)
            noise = dist_cls.noise(np.random.default_rng(0), (0,), num_inputs)
            num_mask = sum(values_per_choice(part) or ())
            parts.append(ActionPart(key, dist_cls, num_inputs, None if noise is None else noise.shape[-1], num_mask))
        return cls.get_partial_dist_cls(parts=tuple(parts), is_dict=is_dict)

    @classmethod
    def from_logits(cls, logits: Tensor) -> TorchMultiDistribution:
        inputs = logits.split([part.num_inputs for part in cls.parts], -1)
        return cls([part.dist_cls.from_logits(own) for part, own in zip(cls.parts, inputs, strict=True)])

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        """Returns the sum of the parts' numbers. Call it on the class that ``of_parts`` returned."""
        return sum(part.num_inputs for part in cls.parts)

    @classmethod
    def noise(
        cls, rng: StreamGenerator | np.random.Generator, shape: tuple[int, ...], num_inputs: int
    ) -> np.ndarray | None:
        """Draws the noise of all parts, one after another."""
        found = [part.dist_cls.noise(rng, shape, part.num_inputs) for part in cls.parts]
        known = [noise for noise in found if noise is not None]
        return np.concatenate(known, -1) if len(known) == len(found) else None

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        found = [part.dist_cls.noise_parts(part.num_inputs) for part in cls.parts]
        if None in found or not cls._computes_as(TorchMultiDistribution, "noise"):
            return None
        return [part for own in found for part in own or ()]

    @classmethod
    def apply_action_mask(cls, inputs: Tensor, mask: Any) -> Tensor:
        """Applies the masks of the parts, which stand one after another. Parts without choices have none."""
        lens = [part.num_mask for part in cls.parts]
        mask = torch.as_tensor(mask, dtype=torch.bool, device=inputs.device)
        wanted = (*inputs.shape[:-1], sum(lens))
        if not torch._C._is_tracing() and mask.shape != wanted:
            raise ModuleError(
                f"action mask: its shape is {tuple(mask.shape)}, but should be {wanted}: for the parts "
                f"{ {part.key: part.num_mask for part in cls.parts} }. A module with other masks must set "
                f"handles_action_masks = True and apply its masks itself."
            )
        own = inputs.split([part.num_inputs for part in cls.parts], -1)
        found = [
            part.dist_cls.apply_action_mask(x, allowed) if part.num_mask else x
            for part, x, allowed in zip(cls.parts, own, mask.split(lens, -1), strict=True)
        ]
        return torch.cat(found, -1)

    def _together(self, values: list[Any]) -> Any:
        if not self.is_dict:
            return tuple(values)
        return {part.key: value for part, value in zip(self.parts, values, strict=True)}

    def sample(self, noise: Tensor | None = None) -> Any:
        if noise is None:
            return self._together([child.sample() for child in self._children])
        parts = noise.split([part.num_noise or 0 for part in self.parts], -1)
        return self._together([child.sample(own) for child, own in zip(self._children, parts, strict=True)])

    @classmethod
    def bind_choice(cls) -> Callable[[np.ndarray, np.ndarray | None], Tree]:
        if not cls._computes_as(TorchMultiDistribution, "from_logits", "sample", "to_deterministic"):
            return super().bind_choice()
        choices = [part.dist_cls.bind_choice() for part in cls.parts]
        inputs_at = list(accumulate(part.num_inputs for part in cls.parts))[:-1]
        noise_at = list(accumulate(part.num_noise or 0 for part in cls.parts))[:-1]
        keys = [part.key for part in cls.parts]

        def choose(inputs: np.ndarray, noise: np.ndarray | None) -> Tree:
            own = np.split(inputs, inputs_at, axis=1)
            drawn = [None] * len(own) if noise is None else np.split(noise, noise_at, axis=1)
            values = [make(x, numbers) for make, x, numbers in zip(choices, own, drawn, strict=True)]
            return dict(zip(keys, values, strict=True)) if cls.is_dict else tuple(values)

        return choose

    def to_deterministic(self) -> Any:
        return self._together([child.to_deterministic() for child in self._children])

    def logp(self, value: Any) -> Tensor:
        pairs = zip(self.parts, self._children, strict=True)
        return torch.stack([child.logp(value[part.key]) for part, child in pairs]).sum(0)

    @classmethod
    def logp_of_rows(cls, inputs: np.ndarray, actions: Tree) -> np.ndarray:
        if not cls._computes_as(TorchMultiDistribution, "from_logits", "logp"):
            return super().logp_of_rows(inputs, actions)
        own = np.split(inputs, np.cumsum([part.num_inputs for part in cls.parts])[:-1], axis=1)
        logps = [
            part.dist_cls.logp_of_rows(np.ascontiguousarray(x), actions[part.key])  # type: ignore[call-overload]
            for part, x in zip(cls.parts, own, strict=True)
        ]
        return np.sum(logps, axis=0)

    def log_stds(self) -> Tensor | None:
        found = [own for own in (child.log_stds() for child in self._children) if own is not None]
        return torch.cat(found, -1) if found else None

    def entropy(self) -> Tensor:
        return torch.stack([child.entropy() for child in self._children]).sum(0)

    def kl(self, other: TorchMultiDistribution) -> Tensor:
        pairs = zip(self._children, other._children, strict=True)
        return torch.stack([mine.kl(theirs) for mine, theirs in pairs]).sum(0)
