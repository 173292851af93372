"""How an environment is made: what to call, with which settings, and what to say if that fails."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from marl_connectors.environments.env_failures import ENV_ERRORS
from marl_connectors.errors import (
    ConfigError,
    EnvError,
    MarlConnectorsError,
    describe_error,
    did_you_mean,
    place_of_definition,
    place_of_error,
)

GYMNASIUM_KEYS = ("max_episode_steps", "disable_env_checker", "vectorization_mode", "vector_kwargs", "wrappers")
"""What ``gymnasium.make`` accepts besides the environment's own settings."""

_UNEXPECTED_KEY = re.compile(r"(?:([\w.<>]+)\.)?\w+\(\) got an unexpected keyword argument '(\w+)'")


@dataclass(frozen=True, slots=True)
class EnvMaker:
    """How to make an environment.

    Attributes:
        name: What the user called it.
        make: The class or function to call.
        declared_by: The callables whose parameters say which keywords ``make`` accepts.
        takes_dict: Whether ``make`` wants the ``env_config`` as one dict, as RLlib's makers do.
        extra_keys: Keywords that ``make`` accepts beyond those.
        settings: What it is made with unless ``env_config`` says otherwise.
        advice: What to do if it fails.
    """

    name: str
    make: Callable[..., Any]
    declared_by: tuple[Callable[..., Any], ...]
    takes_dict: bool = False
    extra_keys: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    advice: str = "Look at its env_config and at what it needs installed."


def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # some builtins have no signature: then nothing is known, and calling it will tell
        return {"kwargs": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}


def _positional(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in _parameters(fn).values() if parameter.kind in kinds]


def wants_dict(fn: Callable[..., Any]) -> bool:
    """Whether the only required parameter is called ``config`` or ``env_config``."""
    positional = _positional(fn)
    only_one = len(positional) == 1 or (positional and all(p.default is not p.empty for p in positional[1:]))
    return bool(only_one and positional[0].name in ("config", "env_config"))


def has_one_required(fn: Callable[..., Any], config: Mapping[str, Any]) -> bool:
    """Whether there is one required parameter, and ``config`` does not name it."""
    required = [p for p in _positional(fn) if p.default is p.empty]
    return len(required) == 1 and required[0].name not in config


def _accepted_keys(maker: EnvMaker) -> tuple[list[str], bool]:
    """The keywords that are known to be accepted, and whether there may be more."""
    keys, open_ended = list(maker.extra_keys), False
    for fn in maker.declared_by:
        parameters = _parameters(fn).values()
        keys += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not open_ended:
            break
    return keys, open_ended


def check_keys(maker: EnvMaker, config: Mapping[str, Any]) -> None:
    """Raises ConfigError for a key that ``make`` is known not to accept; names the closest one that it does."""
    keys, open_ended = _accepted_keys(maker)
    for key in config:
        if not open_ended and key not in keys:
            raise _unknown_key(maker, key, keys)


def _unknown_key(maker: EnvMaker, key: str, keys: list[str]) -> ConfigError:
    known = sorted({name for name in keys if name not in GYMNASIUM_KEYS} - {"self", "render_mode"})
    hint = did_you_mean(key, known) if known else "Look at its documentation for what it accepts."
    return ConfigError(f"env_config: environment {maker.name!r} does not accept {key!r}. {hint}")


def call_maker(
    maker: EnvMaker, config: dict[str, Any], render_mode: str | None, num_envs: int = 1, *, vector: bool = False
) -> Any:
    """What ``make`` gives.

    Args:
        maker: How to make it.
        config: With which settings.
        render_mode: Passed on where it is accepted.
        num_envs: Passed on where there is such a parameter.
        vector: Whether ``make`` gives all copies at once, so that it must get ``num_envs`` in any case.

    Raises:
        EnvError: If it fails.
        ConfigError: If it does not accept a key.
    """
    keys, open_ended = _accepted_keys(maker)
    wants_render = render_mode is not None and "render_mode" not in config
    extra: dict[str, Any] = {}
    if wants_render and ("render_mode" in keys or open_ended):
        extra["render_mode"] = render_mode
    if ("num_envs" in keys or (vector and not maker.takes_dict)) and "num_envs" not in config:
        extra["num_envs"] = num_envs
    try:
        if maker.takes_dict:
            return maker.make({"num_envs": num_envs, **config} if vector else dict(config), **extra)
        return maker.make(**{**maker.settings, **config, **extra})
    except MarlConnectorsError:
        raise
    except TypeError as cause:
        match = _UNEXPECTED_KEY.search(str(cause))
        if match and match[2] == "render_mode" and extra:
            return call_maker(maker, config, None, num_envs, vector=vector)
        if match and match[2] in config and not maker.takes_dict:
            raise _unknown_key(maker, match[2], _keys_of_class(maker, match[1])) from cause
        raise _failed(maker, cause) from cause
    except ENV_ERRORS as cause:
        raise _failed(maker, cause) from cause


def _failed(maker: EnvMaker, cause: BaseException) -> EnvError:
    what = describe_error(cause)
    if not place_of_error(cause) and (place := place_of_definition(maker.make)):
        what += f" (when {place} was called)"
    return EnvError(f"environment {maker.name!r} could not be made: {what}. {_advice(maker, cause)}")


def _advice(maker: EnvMaker, cause: BaseException) -> str:
    if isinstance(cause, gymnasium.error.UnregisteredEnv):
        return (
            "If a package registers that id when it is imported, import the package in the function that makes the "
            'environment, or let gymnasium.make do so: "its_package:MyEnv-v0".'
        )
    return maker.advice


def _keys_of_class(maker: EnvMaker, qualified: str | None) -> list[str]:
    """The keywords of the class that refused one, as far as the module of the environment's maker knows that class."""
    keys, _ = _accepted_keys(maker)
    modules = [sys.modules.get(getattr(fn, "__module__", "")) for fn in maker.declared_by]
    for value in (value for module in modules if module is not None for value in vars(module).values()):
        if inspect.isclass(value) and value.__qualname__ == qualified:
            return keys + [name for name in _parameters(value) if name != "kwargs"]
    return keys
