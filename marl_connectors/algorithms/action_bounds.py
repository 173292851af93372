"""Checks that action distributions cover action spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.errors import ConfigError
from marl_connectors.spaces import describe

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
    from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec

UNBOUNDED = "gaussian"
"""The ``action_distribution`` that draws all numbers."""


def check_action_bounds(
    config: AlgorithmConfig, spec: RLModuleSpec, default_class: type[RLModule], distribution: str | None = UNBOUNDED
) -> None:
    """Checks that the action distribution of a module covers its action space.

    Args:
        config: The settings of the run.
        spec: The module. Those of classes that are not known here are not checked.
        default_class: The algorithm's default module.
        distribution: Its default ``action_distribution``; None if its actions are always in [-1, 1].

    Raises:
        ConfigError: If the distribution is bounded and the space has other bounds.
    """
    from marl_connectors.rl_module.random_rl_module import RandomRLModule

    module_class, given, space = spec.module_class or default_class, spec.model_config, spec.action_space
    if config.normalize_actions or space is None or not _has_other_bounds(space):
        return
    who = type(config).__name__
    if issubclass(module_class, RandomRLModule) or (issubclass(module_class, default_class) and distribution is None):
        raise ConfigError(
            f"{who}: {module_class.__name__} draws actions in (-1, 1), which normalize_actions=False does not stretch "
            f"to {describe(space)}. Leave normalize_actions on."
        )
    if not issubclass(module_class, default_class):
        return
    if isinstance(given, Mapping):
        chosen = given.get("action_distribution", distribution)
    else:
        chosen = getattr(given, "action_distribution", distribution)
    if chosen != UNBOUNDED:
        raise ConfigError(
            f"{who}: action_distribution={chosen!r} draws actions in (-1, 1), which normalize_actions=False does not "
            f"stretch to {describe(space)}. Leave normalize_actions on, or use action_distribution={UNBOUNDED!r}."
        )


def _has_other_bounds(space: Space) -> bool:
    """Whether a Box in a space is not [-1, 1]."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(_has_other_bounds, parts))
    return isinstance(space, spaces.Box) and not bool(np.all(space.low == -1) and np.all(space.high == 1))
