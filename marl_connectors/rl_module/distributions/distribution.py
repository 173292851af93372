"""The interface of all action distributions."""

from __future__ import annotations

import copyreg
from abc import ABCMeta, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors.rl_module.distributions.masks import apply_action_mask
from marl_connectors.rl_module.distributions.noise import draw
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
        takes_arrays: Whether ``from_logits``, ``sample``, ``to_deterministic``, ``logp`` and ``apply_action_mask``
            compute with numpy arrays as they do with tensors. Each class says so for itself, as a subclass may compute
            with torch alone.
    """

    always_samples: bool = False
    takes_arrays: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.takes_arrays = vars(cls).get("takes_arrays", False)

    @classmethod
    @abstractmethod
    def from_logits(cls, logits: Any) -> Distribution:
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
            own = {"takes_arrays": cls.takes_arrays, **attributes, "made_of": key}
            made = type(cls)(f"{cls.__name__}({about})", (cls,), own)
            _PARTIAL.setdefault(key, made)  # another thread may have been quicker
        return _PARTIAL[key]

    @classmethod
    def noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """Returns the kinds and numbers of what ``noise`` draws for a row, one after another; None if unknown.

        The kinds are ``"normal"``, ``"exponential"``, ``"uniform"`` (in [0, 1)), ``"gumbel"`` and ``"logistic"``. So a
        program that was exported with ``Policy.export_onnx`` can draw the numbers without this class.

        Args:
            num_inputs: The number of ``action_dist_inputs`` of each row.
        """
        del num_inputs
        return None

    @classmethod
    def noise(
        cls, rng: StreamGenerator | np.random.Generator, shape: tuple[int, ...], num_inputs: int
    ) -> np.ndarray | None:
        """Draws the numbers that ``sample`` turns into actions: ``[*shape, k]`` float32, for many steps at once.

        They are those of ``noise_parts``, unless overridden. None means that the distribution draws from torch's
        generator itself. Its numbers then follow from the run's seed and the step, but they depend on the rows of the
        batch.

        Args:
            rng: Draws for each row from its own stream. It has the methods of StreamGenerator, and the first axes of
                every ``size`` must be ``shape``.
            shape: The numbers of steps and of rows.
            num_inputs: The number of ``action_dist_inputs`` of each row.
        """
        parts = cls.noise_parts(num_inputs)
        return None if parts is None else draw(parts, rng, shape)

    @classmethod
    def known_noise_parts(cls, num_inputs: int) -> list[tuple[str, int]] | None:
        """Returns ``noise_parts``; None if ``noise`` is overridden and draws other numbers."""
        parts, drawn = cls.noise_parts(num_inputs), cls.noise(np.random.default_rng(0), (1,), num_inputs)
        if parts is None or drawn is None or not np.array_equal(draw(parts, np.random.default_rng(0), (1,)), drawn):
            return None
        return parts

    @classmethod
    def draws_from_noise(cls, num_inputs: int) -> bool:
        """Whether ``sample`` makes actions from ``noise``, and not from torch's random numbers."""
        return cls.noise(StreamGenerator(np.zeros(0, np.uint64)), (0,), num_inputs) is not None

    @classmethod
    def apply_action_mask(cls, inputs: Any, mask: Any) -> Any:
        """Returns ``action_dist_inputs`` that give forbidden actions the probability 0; see ``apply_action_mask``."""
        return apply_action_mask(inputs, mask)

    @abstractmethod
    def sample(self, noise: Any = None, *, sample_shape: Sequence[int] = ()) -> Any:
        """Returns one action for each row.

        Args:
            noise: ``[..., k]`` as ``Distribution.noise`` returns it; None to draw from torch's global generator.
            sample_shape: Without noise, the axes of several samples of each row, which stand first in the result.
        """

    @abstractmethod
    def to_deterministic(self) -> Any:
        """Returns the action to take without exploration: the most likely one of each row, or its mean or median."""

    @abstractmethod
    def logp(self, value: Any) -> Any:
        """Returns the ``[...]`` log-probability (density) of actions."""

    def log_stds(self) -> Any:
        """Returns the ``[..., k]`` logarithms of standard deviations; None for a distribution without."""
        return None

    @abstractmethod
    def entropy(self) -> Any:
        """Returns the ``[...]`` entropy in nats."""

    @abstractmethod
    def kl(self, other: Any) -> Any:
        """Returns the ``[...]`` KL divergence from this distribution to ``other``, in nats."""

    # In arrays on the CPU. Classes that take no arrays are given tensors.

    @classmethod
    def actions_of_rows(cls, inputs: np.ndarray, noise: np.ndarray | None) -> Tree:
        """Returns ``[B, ...]`` actions: those of ``sample``, or of ``to_deterministic`` if the noise is None."""
        own: list[Any] = [inputs, noise]
        if not cls.takes_arrays:
            own = [None if x is None else torch.from_numpy(x) for x in own]
        distribution = cls.from_logits(own[0])
        actions = distribution.to_deterministic() if noise is None else distribution.sample(own[1])
        return actions if cls.takes_arrays else tree_map(lambda leaf: leaf.numpy(), actions)

    @classmethod
    def logp_of_rows(cls, inputs: np.ndarray, actions: Tree) -> np.ndarray:
        """Returns ``[B]`` float32, ``logp`` of ``[B, n]`` inputs and ``[B, ...]`` actions.

        In the library's distributions, each row's number depends on that row alone, to the last bit. It does not depend
        on the number of rows or on their order.
        """
        if cls.takes_arrays:
            return cls.from_logits(inputs).logp(actions)
        return cls.from_logits(torch.from_numpy(inputs)).logp(tree_map(torch.from_numpy, actions)).numpy()
