"""Actions drawn from the action space, without a module."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.spaces import stack


def random_actions(space: Space, num: int, rng: np.random.Generator) -> dict[str, Any]:
    """``num`` actions, uniform where the space is bounded: ``actions`` and, where it differs, ``actions_for_env``.

    ``actions`` count from 0 for Discrete, and are the environment's own numbers otherwise.
    """
    if isinstance(space, spaces.Discrete):
        actions = rng.integers(space.n, size=num)
        columns = {Columns.ACTIONS: actions}
        return {**columns, Columns.ACTIONS_FOR_ENV: actions + space.start} if space.start else columns
    space.seed(int(rng.integers(2**31)))
    return {Columns.ACTIONS: stack([space.sample() for _ in range(num)], space)}
