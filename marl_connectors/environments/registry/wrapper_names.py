"""The names of wrappers and their arguments, and which wrappers are refused. No wrapper is imported for this.

A wrapper is a callable ``env -> env``, or a string with its name and arguments: ``"frame_skip_v0:4"`` (names without a
module are SuperSuit's) or ``"my_package.my_module.my_wrapper:0.5,mode=fast"``.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from marl_connectors.errors import ConfigError
from marl_connectors.names import call_arguments
from marl_connectors.validators import imported, shown

EnvWrapper: TypeAlias = str | Callable[[Any], Any]
"""A wrapper, or a string with its name and arguments."""


def parse_wrapper(text: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Parses the name, the arguments and the keyword arguments of a wrapper.

    Arguments are Python or JSON literals; other words are strings.

    >>> parse_wrapper("resize_v1:42,y_size=42,linear_interp=false")
    ('resize_v1', (42,), {'y_size': 42, 'linear_interp': False})
    >>> parse_wrapper("dtype_v0:float32")
    ('dtype_v0', ('float32',), {})

    Raises:
        ConfigError: If the string does not have this form.
    """
    name, _, arguments = (part.strip() for part in text.partition(":"))
    if not name or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f'wrappers: expected "name:argument,name=argument", such as "frame_skip_v0:4", but got {text!r}.'
        )
    try:
        return name, *call_arguments(arguments)
    except ValueError as cause:
        raise ConfigError(
            f"wrappers: the arguments in {text!r} cannot be read. Write numbers, texts in quotes, lists or tuples with "
            f"commas between, such as {name}:4 or {name}:x=1,y=(2,3)."
        ) from cause


def checked_wrappers(wrappers: Iterable[EnvWrapper] | None) -> list[EnvWrapper]:
    """Checks wrappers without importing anything, and returns them as a list.

    Raises:
        ConfigError: If they are not a list of strings and callables, or contain a wrapper of ``REFUSED``.
    """
    if wrappers is None:
        return []
    no_lists = (str, Mapping, *imported("numpy:ndarray"))
    if isinstance(wrappers, no_lists) or callable(wrappers) or not isinstance(wrappers, Iterable):
        raise ConfigError(
            f'wrappers: expected a list of names and callables, such as ["frame_skip_v0:4"], but got {shown(wrappers)}.'
        )
    found = list(wrappers)
    for wrapper in found:
        if isinstance(wrapper, str):
            name = parse_wrapper(wrapper)[0].removeprefix("supersuit.")
        elif callable(wrapper):
            name = supersuit_name(wrapper.func if isinstance(wrapper, functools.partial) else wrapper)
        else:
            raise ConfigError(
                f"wrappers: expected a name or a callable that takes an environment, but got {shown(wrapper)}."
            )
        if name in REFUSED:
            raise ConfigError(f"wrappers: {name} is not applied, because {REFUSED[name]}")
    return found


_WRAPPER_NAME = re.compile(r"[a-z]\w*_v\d+")


def wrapper_names(module: Any) -> list[str]:
    """Returns the names of the public wrappers of the ``supersuit`` module."""
    return [name for name in vars(module) if _WRAPPER_NAME.fullmatch(name) and callable(getattr(module, name))]


def supersuit_name(fn: Any) -> str | None:
    """Returns the name of this object in SuperSuit if it is one of SuperSuit's wrappers; else None."""
    module = sys.modules.get("supersuit")
    if module is None:
        return None
    return next((name for name in wrapper_names(module) if getattr(module, name) is fn), None)


_VECTORISES = (
    "it makes a vector of environments, but a runner steps single ones. Set num_envs_per_env_runner (--num-envs on the "
    "command line) for more sub-environments."
)
REFUSED = {
    "black_death_v3": (
        "it hides which agents have died and when, and adds a step after the end. Leave it out: agents that die, join "
        "and return need no wrapper here."
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
"""Names of wrappers that are never applied, each with the reason and an alternative."""
