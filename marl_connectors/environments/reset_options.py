"""Options that an environment gets with every reset."""

from __future__ import annotations

import copy as copying
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper

from marl_connectors.errors import ConfigError


def with_reset_options(env: Any, options: Mapping[str, Any], name: str) -> Any:
    """An environment of a single copy, in a wrapper that passes the options to each reset.

    Args:
        env: A ``gymnasium.Env``, or a PettingZoo ``ParallelEnv`` or ``AECEnv``.
        options: Each reset gets a copy of them.
        name: For messages.

    Raises:
        ConfigError: If it is of another kind, whose resets take no options.
    """
    if isinstance(env, gym.Env):
        return _GymnasiumEnv(env, options)
    if isinstance(env, ParallelEnv):
        return _ParallelEnv(env, options)
    if isinstance(env, AECEnv):
        return _TurnBasedEnv(env, options)
    raise ConfigError(
        f"reset_options: {name!r} is a natively batched environment, whose reset(seeds, mask) takes no options. Put "
        f"them into env_config, and let its maker pass them on."
    )


class _GymnasiumEnv(gym.Wrapper):
    def __init__(self, env: gym.Env, options: Mapping[str, Any]):
        super().__init__(env)
        self._reset_options = options
        self.step = env.step  # a hot path: nothing in between

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed, options={**copying.deepcopy(self._reset_options), **(options or {})})


class _ParallelEnv(BaseParallelWrapper):
    def __init__(self, env: ParallelEnv, options: Mapping[str, Any]):
        super().__init__(env)
        self._reset_options = options
        self.step = env.step

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.env.reset(seed=seed, options={**copying.deepcopy(self._reset_options), **(options or {})})


class _TurnBasedEnv(BaseWrapper):
    def __init__(self, env: AECEnv, options: Mapping[str, Any]):
        super().__init__(env)
        self._reset_options = options
        self.step = env.step

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.env.reset(seed=seed, options={**copying.deepcopy(self._reset_options), **(options or {})})
