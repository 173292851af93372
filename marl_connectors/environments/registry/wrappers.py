"""Wraps environments in SuperSuit's and Gymnasium's wrappers by name, and in any callable ``env -> env``."""

from __future__ import annotations

import ast
import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper, BaseWrapper

from marl_connectors.environments.registry.wrapper_names import (
    EnvWrapper,
    checked_wrappers,
    parse_wrapper,
    supersuit_name,
    wrapper_names,
)
from marl_connectors.environments.rules.env_failures import errors_named
from marl_connectors.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    MarlConnectorsError,
    MissingDependencyError,
    describe_error,
    did_you_mean,
)
from marl_connectors.names import (
    Expected,
    Names,
    brief,
    import_attribute,
    is_function,
    qualified_name,
)
from marl_connectors.packages import distribution_of, how_to_install, import_package
from marl_connectors.spaces import describe


def wrap_env(env: Any, wrappers: Iterable[EnvWrapper], *, name: str) -> Any:
    """Wraps an environment.

    Args:
        env: A PettingZoo or Gymnasium environment.
        wrappers: The wrappers, the innermost first.
        name: The name of the environment in messages.

    Returns:
        The wrapped environment. It has the same possible agents.

    Raises:
        ConfigError: If a wrapper does not exist, gets wrong arguments, or does not work in this library.
        MissingDependencyError: If it is one of SuperSuit's, and SuperSuit is not installed.
        EnvError: If a wrapper fails, does not fit this environment, or does not return an environment.
    """
    for wrapper in checked_wrappers(wrappers):
        env = _wrapped(env, wrapper, name)
    return env


def _call(wrapper: EnvWrapper, env: Any) -> tuple[str, Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]:
    """Returns a wrapper's name in messages, the wrapper itself, and the arguments with which it wraps ``env``."""
    if isinstance(wrapper, str):
        name, args, kwargs = parse_wrapper(wrapper)
        return name, _import(name, wrapper), (env, *args), kwargs
    fn, args, kwargs = wrapper, (env,), {}
    if isinstance(wrapper, functools.partial):
        fn, args, kwargs = wrapper.func, (*wrapper.args, env), wrapper.keywords
    return supersuit_name(fn) or getattr(fn, "__qualname__", type(fn).__qualname__), fn, args, kwargs


def _import(name: str, text: str) -> Callable[..., Any]:
    module_name, _, attribute = name.rpartition(".")
    if module_name in ("", "supersuit"):
        return _import_supersuit(attribute)
    fn = import_attribute(f"{module_name}:{attribute}", who="wrappers", error=ConfigError)
    if not callable(fn):
        hint = "Name the class or function in it, with a dot: my_module.my_wrapper." if ":" in text else ""
        raise ConfigError(f"wrappers: expected {name!r} to be a class or function, but it is {fn!r}. {hint}".rstrip())
    return fn


def _import_supersuit(name: str) -> Callable[..., Any]:
    try:
        supersuit = import_package("supersuit")
    except ModuleNotFoundError as cause:
        if cause.name != "supersuit":
            raise _incomplete(cause) from cause
        raise MissingDependencyError(
            f"wrappers: {name!r} is looked for in SuperSuit, which is not installed. A wrapper of your own needs its "
            f"module: my_module.{name}. {how_to_install('supersuit')}"
        ) from cause
    known = wrapper_names(supersuit)
    if name in known:
        return getattr(supersuit, name)
    same = [other for other in known if other.rpartition("_v")[0] == name.rpartition("_v")[0]]
    hint = f"Use {same[-1]!r}." if same else did_you_mean(name, known)
    raise ConfigError(
        f"wrappers: SuperSuit {supersuit.__version__} has no {name!r}. {hint} A wrapper of your own needs its module: "
        f"my_module.{name}."
    )


def _incomplete(cause: ModuleNotFoundError) -> MissingDependencyError:
    """Returns the error for an installed SuperSuit that lacks a dependency."""
    return MissingDependencyError(
        f"wrappers: SuperSuit needs {cause.name!r}, which is not installed. "
        f"{how_to_install(distribution_of(cause.name or ''))}"
    )


def _wrapped(env: Any, wrapper: EnvWrapper, env_name: str) -> Any:
    name, fn, args, kwargs = _call(wrapper, env)
    _check_arguments(name, parameters_from(fn, env), args, kwargs)
    # They are read first because the wrapper may change the environment that it wraps.
    with errors_named(f"environment {env_name!r}: possible_agents"):
        before = _possible_agents(env)
    try:
        with warnings.catch_warnings():
            # PettingZoo's conversions, which SuperSuit uses, want an attribute that its API does not ask for.
            warnings.filterwarnings("ignore", ".*does not have a `render_mode` defined", UserWarning)
            made = fn(*args, **kwargs)
    except MarlConnectorsError:
        raise
    except Exception as cause:
        raise EnvError(
            f"environment {env_name!r}: wrapper {name} failed: {describe_error(cause)}. Look at its "
            f"arguments, and at the spaces that it is made for; here they are {_spaces_in_words(env)}."
        ) from cause
    _check(made, env, before, f"environment {env_name!r}: wrapper {name}")
    return made


def _check_arguments(name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises a ConfigError if a wrapper does not accept its arguments."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have no signature: errors only show when they are called
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as cause:
        own = [parameter.name for parameter in list(signature.parameters.values())[1:]]
        unknown = next((key for key in kwargs if key not in own), None)
        hint = f"Its arguments are: {', '.join(own)}." if own else "It takes no arguments."
        what = str(cause)
        if unknown is not None and own:
            what, hint = f"there is no argument {unknown!r}", did_you_mean(unknown, own)
        raise ConfigError(f"wrappers: {name}: {what}. {hint}") from cause


def _spaces_in_words(env: Any) -> str:
    """Describes the observation and the action space of the first agent."""
    try:
        if isinstance(env, gymnasium.Env):
            return f"{describe(env.observation_space)} → {describe(env.action_space)}"
        agent = env.possible_agents[0]
        return f"{describe(env.observation_space(agent))} → {describe(env.action_space(agent))} for {agent!r}"
    except Exception:  # this is to explain an error, and must not hide it
        return "unknown"


def _possible_agents(env: Any) -> list[Any] | None:
    if isinstance(env, gymnasium.Env):
        return None
    possible = getattr(env, "possible_agents", None)
    return None if possible is None else list(possible)


def _check(made: Any, env: Any, before: list[Any] | None, who: str) -> None:
    """Raises an EnvError unless a wrapper returned an environment with the same agents."""
    if not isinstance(made, (ParallelEnv, AECEnv, gymnasium.Env)):
        hint = "Return the environment, or derive its class from PettingZoo's BaseParallelWrapper or gymnasium.Wrapper."
        if isinstance(made, VectorEnv):
            hint = "Leave it out, and set num_envs_per_env_runner for more sub-environments."
        raise EnvError(
            f"{who}: expected it to return a PettingZoo or Gymnasium environment, but it returned a "
            f"{type(made).__name__}. {hint}"
        )
    if isinstance(made, gymnasium.Env) != isinstance(env, gymnasium.Env):
        raise EnvError(
            f"{who}: it turns a {_env_api(env)} environment into a {_env_api(made)} one, with other agents. Do this in "
            f"the function that makes the environment."
        )
    if isinstance(made, gymnasium.Env):
        return
    after = _possible_agents(made)
    if before is not None and (after is None or set(after) != set(before)):
        raise EnvError(
            f"{who}: it changes possible_agents from {before} to {after}. A wrapper must keep the agents; rename, add "
            f"or remove them in the function that makes the environment."
        )
    # PettingZoo's own wrappers forward `agents`. Others may lack it, which only shows after a reset.
    if hasattr(made, "agents") or isinstance(made, (BaseWrapper, BaseParallelWrapper)):
        return
    made.reset(seed=0)
    if not hasattr(made, "agents"):
        raise EnvError(
            f"{who}: the environment that it returns has no attribute 'agents' after reset(). Derive its class from "
            f"PettingZoo's BaseParallelWrapper (BaseWrapper for AEC), or forward env.agents."
        )


def _env_api(env: Any) -> str:
    return "Gymnasium" if isinstance(env, gymnasium.Env) else "PettingZoo"


# In checkpoints ------------------------------------------------------------------------------------------------------


def wrappers_to_json(wrappers: Iterable[EnvWrapper]) -> list[dict[str, Any]]:
    """Converts wrappers to JSON data.

    A wrapper without an importable name is marked, so that ``wrappers_from_json`` asks the user to pass it again.
    """
    return [_to_json(wrapper) for wrapper in wrappers]


def _to_json(wrapper: EnvWrapper) -> dict[str, Any]:
    if isinstance(wrapper, str):
        return {"type": "name", "name": wrapper}
    fn, kwargs = wrapper, {}
    if isinstance(wrapper, functools.partial):
        fn, kwargs = wrapper.func, wrapper.keywords
    own = supersuit_name(fn)
    name = qualified_name(fn) if own is None else f"supersuit:{own}"
    if name is None or getattr(wrapper, "args", ()) or not _is_literal(kwargs):
        return {"type": "not_importable", "name": getattr(fn, "__qualname__", type(fn).__qualname__)}
    return {"type": "object", "name": name, "kwargs": repr(kwargs)}


def _is_literal(value: Any) -> bool:
    """Whether Python reads an equal value in the ``repr``."""
    try:
        return ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError):
        return False


_WRAPPER = Expected(
    "a function or class that wraps an environment",
    bases=(gymnasium.Wrapper, BaseWrapper, BaseParallelWrapper),
    own=lambda found: isinstance(found, type) or is_function(found),
    known=lambda found: supersuit_name(found) is not None,
    packages=frozenset({"supersuit"}),
)


def wrappers_from_json(data: Any, names: Names | None = None) -> list[EnvWrapper]:
    """Returns the wrappers that ``wrappers_to_json`` described.

    Args:
        data: The JSON data.
        names: Resolves names; None to import from any of the user's modules.

    Raises:
        CheckpointError: If the wrappers cannot be found from the description alone.
    """
    if not isinstance(data, list):
        raise CheckpointError(f"wrappers: expected the descriptions of wrappers, but got {brief(data)}.")
    return [_from_json(each, names or Names()) for each in data]


def _from_json(data: Any, names: Names) -> EnvWrapper:
    who = "wrappers of the checkpoint"
    match data:
        case {"type": "name", "name": str(text)}:
            module_name, _, attribute = _parsed(text)[0].rpartition(".")
            if module_name not in ("", "supersuit"):
                names.resolve(f"{module_name}:{attribute}", _WRAPPER, who=who)
            return text
        case {"type": "object", "name": name, "kwargs": str(text)}:
            fn, kwargs = names.resolve(name, _WRAPPER, who=who), _keywords(text)
            return functools.partial(fn, **kwargs) if kwargs else fn
        case {"type": "not_importable", "name": name}:
            raise CheckpointError(
                f"wrappers: the checkpoint was made with {name!r}, which cannot be imported by name. Build the "
                f"config as you did then and pass it: Algorithm.from_checkpoint(path, config=...)."
            )
    raise CheckpointError(f"wrappers: expected the description of a wrapper, but got {brief(data)}.")


def _parsed(text: str) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    try:
        return parse_wrapper(text)
    except (
        ConfigError,
        RecursionError,
        MemoryError,
    ) as error:  # the latter two: too deep nesting
        raise CheckpointError(f"wrappers of the checkpoint: {brief(text)} is not the name of a wrapper.") from error


def _keywords(text: str) -> dict[str, Any]:
    try:
        return {str(key): value for key, value in ast.literal_eval(text).items()}
    except (ValueError, TypeError, AttributeError, SyntaxError, RecursionError, MemoryError) as error:
        raise CheckpointError(
            f"wrappers of the checkpoint: expected arguments and their values, but got {brief(text)}."
        ) from error


def parameters_from(fn: Any, env: Any) -> Callable[..., Any]:
    """Returns the callable that declares a wrapper's parameters.

    For one of SuperSuit's choosers this is the class for this kind of environment, else the wrapper itself.
    """
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
