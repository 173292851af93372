"""Distributions over Dict and Tuple actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space, spaces

from marl_connectors.array_functions import namespace, split
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.distributions.masks import as_mask
from marl_connectors.seeding import StreamGenerator
from marl_connectors.spaces import parts_of, values_per_choice

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

    takes_arrays = True
    parts: tuple[ActionPart, ...] = ()
    is_dict = True

    def __init__(self, child_distribution_struct: Mapping[Any, Distribution] | Sequence[Distribution]):
        """Makes the distribution of a dict, or of a tuple, of the parts' distributions."""
        self._children = child_distribution_struct

    def _of_children(self, compute: Callable[[Any, Distribution], Any]) -> Any:
        """Returns a dict or tuple of what a function returns for the key of each part and its distribution."""
        if isinstance(self._children, Mapping):
            return {key: compute(key, child) for key, child in self._children.items()}
        return tuple(compute(i, child) for i, child in enumerate(self._children))

    def _sum(self, compute: Callable[[Any, Distribution], Any]) -> Any:
        found = self._of_children(compute)
        found = list(found.values() if isinstance(found, dict) else found)
        return namespace(found[0]).stack(found).sum(0)

    @classmethod
    def of_parts(cls, space: spaces.Dict | spaces.Tuple, dist_cls_of: Any) -> type[Self]:
        """Returns the class for a space.

        Args:
            space: The space.
            dist_cls_of: ``fn(space)``, which returns the distribution of a part.
        """
        parts = []
        for key, part in parts_of(space):
            dist_cls = dist_cls_of(part)
            num_inputs = dist_cls.required_input_dim(part)
            noise = dist_cls.noise(np.random.default_rng(0), (0,), num_inputs)
            num_mask = sum(values_per_choice(part) or ())
            parts.append(ActionPart(key, dist_cls, num_inputs, None if noise is None else noise.shape[-1], num_mask))
        takes_arrays = cls.takes_arrays and all(part.dist_cls.takes_arrays for part in parts)
        is_dict = isinstance(space, spaces.Dict)
        return cls.get_partial_dist_cls(parts=tuple(parts), is_dict=is_dict, takes_arrays=takes_arrays)

    @classmethod
    def from_logits(cls, logits: Any) -> TorchMultiDistribution:
        inputs = split(logits, [part.num_inputs for part in cls.parts])
        made = [part.dist_cls.from_logits(own) for part, own in zip(cls.parts, inputs, strict=True)]
        return cls(dict(zip([part.key for part in cls.parts], made, strict=True)) if cls.is_dict else made)

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
        return None if None in found else [part for own in found for part in own or ()]

    @classmethod
    def apply_action_mask(cls, inputs: Any, mask: Any) -> Any:
        """Applies the masks of the parts, which stand one after another. Parts without choices have none."""
        lens, mask = [part.num_mask for part in cls.parts], as_mask(inputs, mask)
        wanted = (*inputs.shape[:-1], sum(lens))
        if not torch._C._is_tracing() and mask.shape != wanted:
            raise ModuleError(
                f"action mask: its shape is {tuple(mask.shape)}, but should be {wanted}: for the parts "
                f"{ {part.key: part.num_mask for part in cls.parts} }. A module with other masks must set "
                f"handles_action_masks = True and apply its masks itself."
            )
        own = split(inputs, [part.num_inputs for part in cls.parts])
        found = [
            part.dist_cls.apply_action_mask(x, allowed) if part.num_mask else x
            for part, x, allowed in zip(cls.parts, own, split(mask, lens), strict=True)
        ]
        return namespace(inputs).concatenate(found, -1)

    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        if noise is None:
            several = {"sample_shape": sample_shape} if len(sample_shape) else {}
            return self._of_children(lambda _, child: child.sample(**several))
        own = iter(split(noise, [part.num_noise or 0 for part in self.parts]))
        return self._of_children(lambda _, child: child.sample(next(own)))

    def to_deterministic(self) -> Any:
        return self._of_children(lambda _, child: child.to_deterministic())

    def logp(self, value: Any) -> Any:
        return self._sum(lambda key, child: child.logp(value[key]))

    def log_stds(self) -> Any:
        children = self._children.values() if isinstance(self._children, Mapping) else self._children
        found = [own for own in (child.log_stds() for child in children) if own is not None]
        return namespace(found[0]).concatenate(found, -1) if found else None

    def entropy(self) -> Any:
        return self._sum(lambda _, child: child.entropy())

    def kl(self, other: TorchMultiDistribution) -> Any:
        return self._sum(lambda key, child: child.kl(other._children[key]))
