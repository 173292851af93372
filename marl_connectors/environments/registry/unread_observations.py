"""Saves the observations that PettingZoo's conversion of turn-based environments asks for and throws away."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from pettingzoo import AECEnv
from pettingzoo.utils.conversions import aec_to_parallel_wrapper


def without_unread_observations(env: Any) -> Any:
    """Returns an environment whose conversions to parallel environments observe each agent once in a step.

    ``aec_to_parallel_wrapper``, of which most parallel environments of PettingZoo's suites are made, calls ``last()``
    at each turn, and reads no observation of it: it calls ``observe()`` for all agents after the last turn. This
    function lets its ``last()`` leave the observation out. A turn-based environment with a ``last`` of its own
    stays as it is.

    Args:
        env: An environment with all its wrappers. Its conversions are changed in place.
    """
    for conversion in _conversions(env):
        turns = conversion.aec_env
        if getattr(type(turns), "last", None) is AECEnv.last and "last" not in vars(turns):
            turns.last = functools.partial(turns.last, observe=False)
    return env


def _conversions(env: Any) -> Iterator[aec_to_parallel_wrapper]:
    """Yields all conversions within the wrappers of an environment, the outermost first."""
    while env is not None:
        if isinstance(env, aec_to_parallel_wrapper):
            yield env
            env = env.aec_env
        else:
            env = getattr(env, "__dict__", {}).get("env")
