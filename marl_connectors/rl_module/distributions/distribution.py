"""The interface of all action distributions."""

from __future__ import annotations

import copyreg
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Hashable
from functools import cache
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from marl_connectors.rl_module.masked_logits import apply_action_mask, apply_mask_to_rows
from marl_connectors.seeding import StreamGenerator
from marl_connectors.trees import tree_map
from marl_connectors.typing import Tree

if TYPE_CHECKING:
    from typing_extensions import Self

_PARTIAL: dict[Any, type] = {}


class _DistributionKind(ABCMeta):
    """The metaclass of distributions, which makes the classes of ``get_partial_dist_cls`` picklable."""

    made_of: tuple[type, tuple[tuple[str, Any], ...]] | None


def _partial_dist_cls(cls: type[Distribution], attributes: tuple[tuple[str, Any], ...]) -> type[Distribution]:
    return cls.get_partial_dist_cls(**dict(attributes))


def _reduced(cls: _DistributionKind) -> Any:
    made_of = cls.__dict__.get("made_of")
    return cls.__qualname__ if made_of is None else (_partial_dist_cls, made_of)


copyreg.pickle(_DistributionKind, _reduced)


class Distribution(metaclass=_DistributionKind):
    """A batch of action distributions.

    Every method works on any number of leading axes: ``[B, n]`` for one module, ``[M, B, n]`` for stacked modules.

    Attributes:
        always_samples: Whether actions are sampled even without exploration, so that ``to_deterministic`` is not used.
    """

    always_samples: bool = False

    @classmethod
    @abstractmethod
    def from_logits(cls, logits: Tensor) -> Distribution:
        """Makes distributions from a module's ``action_dist_inputs``, ``[..., n]``."""

    @staticmethod
    @abstractmethod
    def required_input_dim(space: Space) -> int:
        """Returns the number of ``action_dist_inputs`` that an action of ``space`` needs."""

    @classmethod
    def for_space(cls, space: Space) -> type[Self]:
        """Returns the class for actions of ``space``: this class, unless it depends on the space."""
        del space
        return cls

    @classmethod
    def get_partial_dist_cls(cls, **attributes: Hashable) -> type[Self]:
        """Returns a subclass with some class attributes set. The same attributes always return the same class."""
        key = cls, tuple(sorted(attributes.items()))
        if key not in _PARTIAL:
            about = ", ".join(f"{name}={value}" for name, value in sorted(attributes.items()))
            made = type(cls)(f"{cls.__name__}({about})", (cls,), {**attributes, "made_of": key})
            _PARTIAL.setdefault(key, made)  # another thread may have been quicker
        return _PARTIAL[key]

    @classmethod
    def noise(
        cls, rng: StreamGenerator | np.random.Generator, shape: tuple[int, ...], num_inputs: int
    ) -> np.ndarray | None:
        """Draws the numbers that ``sample`` turns into actions: ``[*shape, k]`` float32, for many steps at once.

        None means that the distribution draws from torch's generator itself. Its numbers then follow from the run's
        seed and the step, but they depend on the rows of the batch.

        Args:
            rng: Draws for each row from its own stream. It has the methods of StreamGenerator, and the first axes of
                every ``size`` must be ``shape``.
            shape: The numbers of steps and of rows.
            num_inputs: The number of ``action_dist_inputs`` of each row.
        """
        del rng, shape, num_inputs
        return None

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """Returns the kinds and numbers of what ``noise`` draws for a row, one after another; None if unknown.

        The kinds are ``"normal"``, ``"exponential"``, ``"uniform"`` (in [0, 1)), ``"gumbel"`` and ``"logistic"``. So a
        program that was exported with ``Policy.export_onnx`` can draw the numbers without this class. A subclass that
        overrides ``noise`` must override this method, too.

        Args:
            num_inputs: The number of ``action_dist_inputs`` of each row.
        """
        del num_inputs
        return None

    @classmethod
    def apply_action_mask(cls, inputs: Tensor, mask: Any) -> Tensor:
        """Returns ``action_dist_inputs`` that give forbidden actions the probability 0; see ``apply_action_mask``."""
        return apply_action_mask(inputs, mask)

    @classmethod
    def apply_mask_to_rows(cls, inputs: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Returns what ``apply_action_mask`` does for ``[B, n]`` inputs and a mask, in arrays on the CPU."""
        if cls._computes_as(Distribution, "apply_action_mask"):
            return apply_mask_to_rows(inputs, mask)
        return cls.apply_action_mask(torch.from_numpy(inputs), torch.from_numpy(mask)).numpy()

    @abstractmethod
    def sample(self, noise: Tensor | None = None) -> Any:
        """Returns one action for each row.

        Args:
            noise: ``[..., k]`` as ``Distribution.noise`` returns it; None to draw from torch's global generator.
        """

    @abstractmethod
    def to_deterministic(self) -> Any:
        """Returns the action to take without exploration: the most likely one of each row, or its mean or median."""

    @abstractmethod
    def logp(self, value: Any) -> Tensor:
        """Returns the ``[...]`` log-probability (density) of actions."""

    @classmethod
    def logp_of_rows(cls, inputs: np.ndarray, actions: Tree) -> np.ndarray:
        """Returns ``[B]`` float32, ``logp`` of ``[B, n]`` inputs and ``[B, ...]`` actions, in arrays on the CPU.

        In the library's distributions, each row's number depends on that row alone, to the last bit. It does not depend
        on the number of rows or on their order.
        """
        return cls.from_logits(torch.from_numpy(inputs)).logp(tree_map(torch.from_numpy, actions)).numpy()

    @classmethod
    def bind_choice(cls) -> Callable[[np.ndarray, np.ndarray | None], Tree]:
        """Returns a function from ``[B, n]`` inputs and noise to ``[B, ...]`` actions, in arrays on the CPU.

        The function returns the same as ``sample``, or as ``to_deterministic`` if the noise is None.
        """

        def choose(inputs: np.ndarray, noise: np.ndarray | None) -> Tree:
            distribution = cls.from_logits(torch.from_numpy(inputs))
            chosen = distribution.to_deterministic() if noise is None else distribution.sample(torch.from_numpy(noise))
            return tree_map(lambda leaf: leaf.numpy(), chosen)

        return choose

    @classmethod
    def draws_from_noise(cls, num_inputs: int) -> bool:
        """Whether ``sample`` makes actions from ``noise``, and not from torch's random numbers."""
        return cls.noise(StreamGenerator(np.zeros(0, np.uint64)), (0,), num_inputs) is not None

    @classmethod
    def _computes_as(cls, base: type[Distribution], *names: str) -> bool:
        """Whether the class has these methods from ``base``, so that no subclass has overridden one."""
        return _has_methods_of(cls, base, names)

    def log_stds(self) -> Tensor | None:
        """Returns the ``[..., k]`` logarithms of standard deviations; None for a distribution without."""
        return None

    @abstractmethod
    def entropy(self) -> Tensor:
        """Returns the ``[...]`` entropy in nats."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """Returns the ``[...]`` KL divergence from this distribution to ``other``, in nats."""


@cache
def _has_methods_of(cls: type, base: type, names: tuple[str, ...]) -> bool:
    return all(getattr_static(cls, name) is getattr_static(base, name) for name in names)
