"""Which SuperSuit wrappers are refused, and what to use instead. Nothing here imports SuperSuit.

Found by trying all public wrappers of SuperSuit 3.11 with PettingZoo 1.27; ``test_supersuit_wrappers.py`` repeats it.
What the others can and cannot do is in ``docs/wrappers.md``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
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
