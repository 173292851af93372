"""A trial run of a Gymnasium VectorEnv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from marl_connectors import spaces
from marl_connectors.environments.gymnasium_copies import GymnasiumCopies
from marl_connectors.environments.gymnasium_vector_env import gymnasium_vector_env
from marl_connectors.errors import EnvError
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_AGENT_ID, Tree


def try_out_vector_env(
    env: GymnasiumCopies, name: str, choose: Callable[[np.ndarray | None], Any], *, num_steps: int, seed: int
) -> None:
    """Plays a few steps as a runner does.

    Args:
        env: Some copies.
        name: For messages.
        choose: An action for a copy, which may have a mask.
        num_steps: How many.
        seed: Of the copies.

    Raises:
        EnvError: If an array has another shape than it must have, an observation is not in its space, a reward is no
            finite number, or what ends and begins does not fit the autoreset mode.
    """
    vector_env = gymnasium_vector_env(env, seed=seed)
    space = env.observation_space(DEFAULT_AGENT_ID)
    first = vector_env.reset_all()
    observations: Tree = spaces.stack([own[DEFAULT_AGENT_ID] for own, _ in first], space)
    _check_inside(name, space, observations, 0)
    infos = {index: own[DEFAULT_AGENT_ID] for index, (_, own) in enumerate(first) if own}
    for t in range(1, num_steps + 1):
        acting = [copy.index for copy in vector_env.copies if not copy.rests]
        masks = [_mask(observations, place, infos.get(index, {})) for place, index in enumerate(acting)]
        step = vector_env.step(np.stack([np.asarray(choose(mask)) for mask in masks]))
        if not np.isfinite(step.rewards).all():
            place = int(np.flatnonzero(~np.isfinite(step.rewards))[0])
            raise EnvError(
                f"{name}: the reward of copy {acting[place]} at step {t} is {step.rewards[place]}, not a finite number."
            )
        if step.ends is not None:
            _check_inside(name, space, step.ends.observations, t)
        observations = step.observations
        _check_inside(name, space, observations, t)
        infos = {index: own[DEFAULT_AGENT_ID] for index, own in step.infos}


def _mask(observations: Tree, place: int, info: dict[str, Any]) -> np.ndarray | None:
    for holder, at in ((observations, place), (info, ...)):
        if isinstance(holder, dict) and "action_mask" in holder:
            return tree_map(lambda leaf, at=at: np.asarray(leaf)[at], holder["action_mask"])
    return None


def _check_inside(name: str, space: Any, observations: Tree, t: int) -> None:
    bad, why = spaces.outside(space, observations)
    if len(leaves(observations)[0]) and bad.any():
        raise EnvError(
            f"{name}: an observation of a copy at step {t} is not in its space, {spaces.describe(space)}: {why}. Fix "
            f"the environment, or set disable_env_checking=True (--no-env-check) if the space's bounds are wrong on "
            f"purpose."
        )
