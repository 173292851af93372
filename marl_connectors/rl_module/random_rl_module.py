"""RandomRLModule: acts at random, as an opponent or a baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions import (
    Distribution,
    TorchMultiDistribution,
    TorchUniform,
    default_distribution,
)
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.spaces import describe, leaves_in, parts_of


class RandomRLModule(RLModule):
    """Chooses actions at random, each with the same probability, also in evaluations without exploration.

    With an action mask, it chooses among the allowed actions with equal probability. The random numbers follow from the
    run's seed like those of all sampled actions, so evaluations with the same seed are equal.

    It acts in Discrete, MultiDiscrete, MultiBinary and bounded float Box spaces, and in Dicts and Tuples of them. In
    Box spaces it draws numbers between -1 and 1, which ``normalize_actions`` stretches to the bounds of the space.

    The module has no parameters, so it is never updated, and needs no value function. It reads ``obs`` for the number
    of rows only; writes ``action_dist_inputs``.
    """

    def setup(self) -> None:
        """Finds the distribution of the action space.

        Raises:
            ModuleError: If there is no uniform distribution over the space.
        """
        if self.action_space is None or self.observation_space is None:
            raise ModuleError("RandomRLModule: needs an observation_space and an action_space.")
        self._uniform = uniform_distribution(self.action_space)
        self._inputs = uniform_inputs(self.action_space)

    def get_exploration_action_dist_cls(self) -> type[Distribution]:
        """Returns the uniform distribution."""
        return self._uniform

    def get_train_action_dist_cls(self) -> type[Distribution]:
        """Returns the uniform distribution, which applies action masks."""
        return self._uniform

    def get_inference_action_dist_cls(self) -> type[Distribution]:
        """Returns the uniform distribution in a form that is sampled without exploration, too."""
        return self._uniform.get_partial_dist_cls(always_samples=True)

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        assert self.observation_space is not None
        space, seen = leaves_in(self.observation_space, batch[Columns.OBS])[0]
        lead = seen.shape[: seen.dim() - len(space.shape or ())]
        inputs = torch.from_numpy(self._inputs).to(seen.device)
        return {Columns.ACTION_DIST_INPUTS: inputs.expand(*lead, -1).clone()}


def uniform_distribution(action_space: Space) -> type[Distribution]:
    """Returns the distribution that draws all actions of a space with the same probability.

    Raises:
        ModuleError: If there is none.
    """
    if isinstance(action_space, (spaces.Dict, spaces.Tuple)) and len(action_space.spaces):
        return TorchMultiDistribution.of_parts(action_space, uniform_distribution)
    if isinstance(action_space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return default_distribution(action_space)
    if isinstance(action_space, spaces.Box) and action_space.is_bounded("both") and action_space.dtype.kind == "f":
        return TorchUniform
    raise ModuleError(
        f"RandomRLModule: there is no uniform distribution over {describe(action_space)}. It acts in Discrete, "
        f"MultiDiscrete, MultiBinary and bounded float Box spaces, and in Dicts and Tuples of them."
    )


def uniform_inputs(action_space: Space) -> np.ndarray:
    """Returns ``[n]`` float32, the inputs with which ``uniform_distribution`` draws all actions alike."""
    if isinstance(action_space, (spaces.Dict, spaces.Tuple)):
        return np.concatenate([uniform_inputs(part) for _, part in parts_of(action_space)])
    number = uniform_distribution(action_space).required_input_dim(action_space)
    if isinstance(action_space, spaces.Box):
        return np.repeat(np.array([-1.0, 1.0], np.float32), number // 2)
    return np.zeros(number, np.float32)
