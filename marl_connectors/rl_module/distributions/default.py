"""The default distribution of a space."""

from __future__ import annotations

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.errors import ConfigError, ModuleError, did_you_mean
from marl_connectors.rl_module.distributions.beta import TorchBeta
from marl_connectors.rl_module.distributions.categorical import TorchBernoulli, TorchCategorical, TorchMultiCategorical
from marl_connectors.rl_module.distributions.distribution import Distribution
from marl_connectors.rl_module.distributions.gaussian import TorchDiagGaussian, TorchSquashedGaussian
from marl_connectors.rl_module.distributions.multi import TorchMultiDistribution
from marl_connectors.spaces import describe

BOX_DISTRIBUTIONS: dict[str, type[Distribution]] = {
    "gaussian": TorchDiagGaussian,
    "squashed_gaussian": TorchSquashedGaussian,
    "beta": TorchBeta,
}
"""The values of ``model_config["action_distribution"]``."""


def default_distribution(action_space: Space, box: str = "gaussian") -> type[Distribution]:
    """Returns the distribution that default modules use for a space.

    Args:
        action_space: Discrete, MultiDiscrete, MultiBinary, a Box of floats, or a Dict or Tuple of these.
        box: For Boxes, a key of ``BOX_DISTRIBUTIONS``.

    Raises:
        ConfigError: If ``box`` is not one.
        ModuleError: If the space has no distribution.
    """
    if not isinstance(box, str) or box not in BOX_DISTRIBUTIONS:
        raise ConfigError(f"action_distribution: unknown {box!r}. {did_you_mean(box, BOX_DISTRIBUTIONS)}")
    if isinstance(action_space, (spaces.Dict, spaces.Tuple)) and len(action_space.spaces):
        return TorchMultiDistribution.of_parts(action_space, lambda part: default_distribution(part, box))
    if isinstance(action_space, spaces.Discrete):
        return TorchCategorical
    if isinstance(action_space, spaces.MultiDiscrete):
        return TorchMultiCategorical.for_space(action_space)
    if isinstance(action_space, spaces.MultiBinary):
        return TorchBernoulli
    if isinstance(action_space, spaces.Box) and np.issubdtype(action_space.dtype, np.floating):
        return BOX_DISTRIBUTIONS[box]
    raise ModuleError(
        f"default_distribution: there is no default action distribution for {describe(action_space)}; Discrete, "
        f"MultiDiscrete, MultiBinary and float Box spaces, and Dicts and Tuples of them, have one. Override "
        f"get_exploration_action_dist_cls() and the methods like it in your own RLModule."
    )
