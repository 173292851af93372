"""Which SuperSuit wrappers do not work here, or not around every environment, and what to use instead.

Found by trying all public wrappers of SuperSuit 3.11 with PettingZoo 1.27; ``test_supersuit_wrappers.py``
repeats it. Nothing here imports SuperSuit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from pettingzoo import AECEnv, ParallelEnv

_VECTORISES = (
    "it makes a vector of environments, and a runner steps single ones. Set num_envs_per_env_runner (--num-envs on the "
    "command line) for more copies."
)
REFUSED = {
    "black_death_v3": (
        "it hides who has died and when, and adds a step after the end. Leave it out: agents that die, join and return "
        "need no wrapper here."
    ),
    "concat_vec_envs_v1": _VECTORISES,
    "gym_vec_env_v0": _VECTORISES,
    "pettingzoo_env_to_vec_env_v1": _VECTORISES,
    "stable_baselines_vec_env_v0": _VECTORISES,
    "stable_baselines3_vec_env_v0": _VECTORISES,
    "vectorize_aec_env_v0": _VECTORISES,
    "nan_random_v0": (
        "its random actions have no seed, so that a run could not be repeated. Use nan_zeros_v0 or nan_noop_v0, or "
        "look for the cause of the NaN."
    ),
    "scale_actions_v0": (
        "it multiplies the space by the scale and the action once more, so that the environment gets the square of it. "
        "Use normalize_actions=True (the default), or action_lambda_v1 with the right space."
    ),
}
"""Names of wrappers that are never applied, and one or two sentences about why and what instead."""

_WRAPPER_NAME = re.compile(r"[a-z]\w*_v\d+")


def wrapper_names(module: Any) -> list[str]:
    """The public wrappers of the ``supersuit`` module."""
    return [name for name in vars(module) if _WRAPPER_NAME.fullmatch(name) and callable(getattr(module, name))]


def supersuit_name(fn: Any) -> str | None:
    """Under which name SuperSuit has this very object, if it is one of its wrappers."""
    module = sys.modules.get("supersuit")
    if module is None:
        return None
    return next((name for name in wrapper_names(module) if getattr(module, name) is fn), None)


def parameters_from(fn: Any, env: Any) -> Callable[..., Any]:
    """What declares the parameters of a wrapper: for SuperSuit's choosers, the class for this kind of environment."""
    if type(fn).__name__ != "WrapperChooser":
        return fn
    by_kind = (
        (gymnasium.Env, (fn.gym_wrapper,)),
        (AECEnv, (fn.aec_wrapper, fn.parallel_wrapper)),
        (ParallelEnv, (fn.parallel_wrapper, fn.aec_wrapper)),
    )
    for kind, classes in by_kind:
        if isinstance(env, kind):
            return next((found for found in classes if found is not None), fn)
    return fn


def why_not(name: str, env: Any, arguments: Mapping[str, Any]) -> str | None:
    """Why a SuperSuit wrapper does not work around this environment.

    Args:
        name: Of the wrapper.
        env: What it is to wrap.
        arguments: Its arguments by name, defaults included.

    Returns:
        The reason and what to do, or None if it does.
    """
    if name in REFUSED:
        return REFUSED[name]
    rule = _RULES.get(name)
    return None if rule is None else rule(env, arguments)


def _spaces_of(env: Any, kind: str = "observation_space") -> Iterable[Space]:
    if isinstance(env, gymnasium.Env):
        return [getattr(env, kind)]
    return [getattr(env, kind)(agent) for agent in getattr(env, "possible_agents", None) or ()]


def _has_masks(env: Any) -> bool:
    return any(isinstance(space, spaces.Dict) and "action_mask" in space.spaces for space in _spaces_of(env))


def _clip_reward(env: Any, arguments: Mapping[str, Any]) -> str | None:
    low, high = arguments["lower_bound"], arguments["upper_bound"]
    return _reward_of_nothing(env, {"change_reward_fn": lambda reward: max(min(reward, high), low)})


def _reward_of_nothing(env: Any, arguments: Mapping[str, Any]) -> str | None:
    if isinstance(env, gymnasium.Env):
        return None
    changed = arguments["change_reward_fn"](0.0)
    if changed == 0:
        return None
    return (
        f"it makes {changed} of a reward of 0, and it is applied at each agent's turn, so that the turns of all "
        f"others are added to a reward. Use a function that leaves 0 as it is, or a learner connector for rewards."
    )


def _frame_skip(env: Any, arguments: Mapping[str, Any]) -> str | None:
    if isinstance(env, ParallelEnv) and not hasattr(env.unwrapped, "np_random"):
        env.reset(seed=0)
        if not hasattr(env.unwrapped, "np_random"):
            return (
                f"it draws from env.unwrapped.np_random, which {type(env.unwrapped).__name__} has not. Make it in "
                f"reset(seed=...): self.np_random, _ = gymnasium.utils.seeding.np_random(seed)."
            )
    return _repeats_actions(env, arguments)


def _repeats_actions(env: Any, arguments: Mapping[str, Any]) -> str | None:
    if _has_masks(env):
        return "it repeats actions, which the next action_mask may forbid. Leave it out where actions are masked."
    return None


def _delay(env: Any, arguments: Mapping[str, Any]) -> str | None:
    if _has_masks(env):
        return (
            "it delays the action_mask too, so that it allows illegal actions. Leave it out where actions are masked."
        )
    if not all(isinstance(space, spaces.Box) for space in _spaces_of(env)):
        return "it delays arrays only. Use it around environments with Box observations."
    return None


def _color_reduction(env: Any, arguments: Mapping[str, Any]) -> str | None:
    if arguments["mode"] == "full" and any(space.dtype != np.uint8 for space in _spaces_of(env)):
        return (
            "its mode 'full' turns observations into whole numbers, which leaves nothing of images in [0, 1]. Use it "
            "on uint8 images, or one of the modes 'R', 'G' and 'B'."
        )
    return None


def _frame_stack(env: Any, arguments: Mapping[str, Any]) -> str | None:
    if arguments["stack_dim"] == 0 and any(len(space.shape or ()) == 2 for space in _spaces_of(env)):
        return (
            "with stack_dim=0 it writes a 2-D observation over all frames but the last, which stays zero. Use "
            "stack_dim=-1, or the connector piece FrameStacking."
        )
    return None


def _pad_observations(env: Any, arguments: Mapping[str, Any]) -> str | None:
    if any(isinstance(space, spaces.Discrete) for space in _spaces_of(env)):
        return (
            "it gives the space instead of a Discrete observation. Use the connector pieces OneHotObservations and "
            "PadObservations."
        )
    return None


_RULES: dict[str, Callable[[Any, Mapping[str, Any]], str | None]] = {
    "clip_reward_v0": _clip_reward,
    "color_reduction_v0": _color_reduction,
    "delay_observations_v0": _delay,
    "frame_skip_v0": _frame_skip,
    "frame_stack_v1": _frame_stack,
    "frame_stack_v2": _frame_stack,
    "pad_observations_v0": _pad_observations,
    "reward_lambda_v0": _reward_of_nothing,
    "sticky_actions_v0": _repeats_actions,
}
