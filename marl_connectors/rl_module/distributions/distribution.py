"""The interface of all action distributions, and of their closed forms."""

from __future__ import annotations

import copyreg
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Hashable
from functools import cache
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from marl_connectors.errors import ModuleError
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


class ClosedForm(Protocol):
    """What a loss needs of a batch of distributions, with the gradients, in numpy.

    It is of ``N`` rows of ``action_dist_inputs`` and of the actions that were taken.

    Attributes:
        logp: ``[N]`` log-probabilities of the actions.
        entropy: ``[N]`` in nats.
        kl: ``[N]`` KL divergence from the distributions that acted, in nats; None where these were not given.
    """

    logp: np.ndarray
    entropy: np.ndarray
    kl: np.ndarray | None

    def gradient(self, of_logp: np.ndarray, of_entropy: np.ndarray, of_kl: np.ndarray | None) -> np.ndarray:
        """``[N, n]`` how a number changes with the inputs, of how it changes with the three: ``[N]`` each."""
        ...


class Distribution(metaclass=_DistributionKind):
    """A batch of action distributions.

    Every method works on any number of leading axes: ``[B, n]`` for one module, ``[M, B, n]`` for stacked modules.
    """

    @classmethod
    @abstractmethod
    def from_logits(cls, logits: Tensor) -> Distribution:
        """Makes distributions from a module's ``action_dist_inputs``, ``[..., n]``."""

    @staticmethod
    @abstractmethod
    def required_input_dim(space: Space) -> int:
        """The number of ``action_dist_inputs`` that an action of ``space`` needs."""

    @classmethod
    def for_space(cls, space: Space) -> type[Self]:
        """The class for actions of ``space``: this class, unless it needs to know more of the space than its inputs."""
        del space
        return cls

    @classmethod
    def get_partial_dist_cls(cls, **attributes: Hashable) -> type[Self]:
        """A subclass with some class attributes set. The same attributes always give the same class."""
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
        """The numbers that ``sample`` turns into actions: ``[*shape, k]`` float32, drawn for many steps at once.

        None means that the distribution draws from torch's generator itself. Its numbers then follow from the run's
        seed and the step, but depend on which rows there are.

        Args:
            rng: Draws for each row from a stream of its own. It has the methods of StreamGenerator, and the first axes
                of every ``size`` must be ``shape``.
            shape: The numbers of steps and of rows.
            num_inputs: The number of ``action_dist_inputs`` of each row.
        """
        del rng, shape, num_inputs
        return None

    @classmethod
    def without_forbidden(cls, inputs: Tensor, mask: Any) -> Tensor:
        """``action_dist_inputs`` that give forbidden actions the probability 0; see ``masks.without_forbidden``."""
        return without_forbidden(inputs, mask)

    @abstractmethod
    def sample(self, noise: Tensor | None = None) -> Any:
        """One action for each row.

        Args:
            noise: ``[..., k]`` as ``Distribution.noise`` gives it; None to draw from torch's global generator.
        """

    @abstractmethod
    def to_deterministic(self) -> Any:
        """The action to take without exploration: the most likely one of each row, or its mean or median."""

    @abstractmethod
    def logp(self, value: Any) -> Tensor:
        """``[...]`` log-probability (density) of actions."""

    @classmethod
    def logp_of_rows(cls, inputs: np.ndarray, actions: Tree) -> np.ndarray:
        """``[B]`` float32: the result of ``logp`` for ``[B, n]`` inputs and ``[B, ...]`` actions, in arrays on the CPU.

        In the library's distributions, each row's number depends on that row alone, to the last bit. It does not depend
        on the number of rows or on their order.
        """
        return cls.from_logits(torch.from_numpy(inputs)).logp(tree_map(torch.from_numpy, actions)).numpy()

    @classmethod
    def bind_choice(cls) -> Callable[[np.ndarray, np.ndarray | None], Tree]:
        """A function of ``[B, n]`` inputs and noise that gives ``[B, ...]`` actions, in arrays on the CPU.

        It gives what ``sample`` gives, or what ``to_deterministic`` gives where the noise is None.
        """

        def choose(inputs: np.ndarray, noise: np.ndarray | None) -> Tree:
            distribution = cls.from_logits(torch.from_numpy(inputs))
            chosen = distribution.to_deterministic() if noise is None else distribution.sample(torch.from_numpy(noise))
            return tree_map(lambda leaf: leaf.numpy(), chosen)

        return choose

    @classmethod
    def draws_from_noise(cls, num_inputs: int) -> bool:
        """Whether ``sample`` makes its actions of ``noise``, and not of torch's own random numbers."""
        return cls.noise(StreamGenerator(np.zeros(0, np.uint64)), (0,), num_inputs) is not None

    @classmethod
    def closed_form(cls, inputs: Tensor, actions: Tensor, before: Tensor | None) -> ClosedForm | None:
        """What ``logp``, ``entropy`` and ``kl`` give for rows, with their gradients worked out; None if nobody has.

        Args:
            inputs: ``[N, n]`` float, on the CPU.
            actions: ``[N, ...]``.
            before: ``[N, n]`` inputs of the distributions that acted, if their KL divergence is wanted.
        """
        del inputs, actions, before
        return None

    @classmethod
    def _computes_as(cls, base: type[Distribution], *names: str) -> bool:
        """Whether the class has these methods from ``base``, so that no subclass has overridden one."""
        return _has_methods_of(cls, base, names)

    @abstractmethod
    def entropy(self) -> Tensor:
        """``[...]`` in nats."""

    @abstractmethod
    def kl(self, other: Any) -> Tensor:
        """``[...]`` KL divergence from this distribution to ``other``, in nats."""


@cache
def _has_methods_of(cls: type, base: type, names: tuple[str, ...]) -> bool:
    return all(getattr_static(cls, name) is getattr_static(base, name) for name in names)


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
    mask = fitting_mask(inputs, mask)
    forbidden = mask.logical_not() & mask.any(-1, keepdim=True)
    return inputs.masked_fill(forbidden, torch.finfo(inputs.dtype).min)


def fitting_mask(inputs: Tensor, mask: Any, numbers_per_input: int = 1) -> Tensor:
    """The mask as a bool tensor beside ``inputs``.

    Raises:
        ModuleError: If it does not have so many numbers for each input.
    """
    mask = torch.as_tensor(mask, dtype=torch.bool, device=inputs.device)
    wanted = (*inputs.shape[:-1], inputs.shape[-1] * numbers_per_input)
    if not torch._C._is_tracing() and mask.shape != wanted:  # a trace's shapes are tensors, not to be asked
        each = "one number" if numbers_per_input == 1 else f"{numbers_per_input} numbers"
        raise ModuleError(
            f"action mask: its shape is {tuple(mask.shape)}, but that of 'action_dist_inputs' is "
            f"{tuple(inputs.shape)}, so it should be {tuple(wanted)}: {each} for each of them. A module that works "
            f"otherwise sets handles_action_masks = True and sees to its masks itself."
        )
    return mask
