"""From what a user calls an environment to the environment.

An environment is named by an importable PettingZoo module, by ``"package.module:attribute"``, by a Gymnasium id or by a
name given to ``register_env``, or it is given as a class or function. Nothing is made here but one copy; seeding,
vectorising and checking what it returns are the callers' business.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import load_env_creator
from pettingzoo import AECEnv, ParallelEnv

from marl_connectors.errors import CheckpointError, ConfigError, EnvError, MarlConnectorsError, did_you_mean
from marl_connectors.policy_mapping import import_attribute, qualified_name
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID

EnvLike: TypeAlias = ParallelEnv | AECEnv | gymnasium.Env

_registered: dict[str, Callable[[dict[str, Any]], Any]] = {}
_FAMILIES = ("mpe2", "pettingzoo.sisl", "pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.atari", "marl_envs")
_PIP_NAMES = {
    "mpe2": "mpe2",
    "pettingzoo": "pettingzoo",
    "magent2": "magent2",
    "vmas": "vmas",
    "supersuit": "supersuit",
    "gymnasium_robotics": "gymnasium-robotics",
    "ale_py": "ale-py",
    "marl_envs": "marl-connectors",
}
_UNEXPECTED_KEY = re.compile(r"(?:([\w.<>]+)\.)?\w+\(\) got an unexpected keyword argument '(\w+)'")
_GYMNASIUM_KEYS = ("max_episode_steps", "disable_env_checker", "vectorization_mode", "vector_kwargs", "wrappers")


@dataclass(frozen=True, slots=True)
class _Maker:
    """How to make an environment.

    Attributes:
        name: What the user called it.
        make: The class or function to call.
        declared_by: The callables whose parameters say which keywords ``make`` accepts.
        takes_dict: Whether ``make`` wants the ``env_config`` as one dict, as RLlib's makers do.
        extra_keys: Keywords that ``make`` accepts beyond those.
    """

    name: str
    make: Callable[..., Any]
    declared_by: tuple[Callable[..., Any], ...]
    takes_dict: bool = False
    extra_keys: tuple[str, ...] = ()


def register_env(name: str, fn: Callable[[dict[str, Any]], Any]) -> None:
    """Gives a name to a function that makes an environment from its ``env_config`` dict.

    A later call for the same name replaces an earlier one.

    Raises:
        ConfigError: If ``fn`` cannot be called.
    """
    if not callable(fn):
        raise ConfigError(f"register_env: expected a function of env_config for {name!r}, but got {fn!r}.")
    _registered[name] = fn


def make_env(env: Any, env_config: Mapping[str, Any] | None = None, *, render_mode: str | None = None) -> EnvLike:
    """One copy of an environment.

    Args:
        env: An importable PettingZoo module (``"mpe2.simple_spread_v3"``; ``parallel_env`` is preferred to the
            turn-taking ``env``), ``"package.module:attribute"``, a Gymnasium id, a name given to ``register_env``, a
            class, or a function. Classes and functions get ``env_config`` as keyword arguments; one whose only required
            parameter is called ``config`` or ``env_config`` gets the dict, and so does a function that is given as an
            object and has one required parameter that is not in ``env_config``.
        env_config: What to make it with. It is not changed.
        render_mode: Passed on where it is accepted, for example ``"rgb_array"``; the environment is made without it
            elsewhere. ``supports_rendering`` tells which it was.

    Returns:
        A PettingZoo ``ParallelEnv`` or ``AECEnv``, or a ``gymnasium.Env``.

    Raises:
        EnvError: If there is no such environment, a package is missing, or its maker fails.
        ConfigError: If ``env_config`` has a key that the environment does not accept.
    """
    if env_config is not None and not isinstance(env_config, Mapping):
        raise ConfigError(f"env_config: expected a dict, but got {env_config!r}.")
    config = dict(env_config or {})
    with warnings.catch_warnings():
        # PettingZoo 1.27 announces a registry of its own at each use of the API that all its versions have.
        warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
        maker = _find(env, config)
        if not maker.takes_dict:
            _check_keys(maker, config)
        made = _call(maker, config, render_mode)
    if not isinstance(made, (ParallelEnv, AECEnv, gymnasium.Env)):
        raise EnvError(
            f"environment {maker.name!r}: expected a PettingZoo ParallelEnv or AECEnv or a gymnasium.Env, but its "
            f"maker gave a {type(made).__name__}. Return the environment, or derive its class from one of these."
        )
    return made


def supports_rendering(env: EnvLike) -> bool:
    """Whether a made environment gives frames: it was made with ``"rgb_array"`` and knows that mode."""
    modes = (getattr(env, "metadata", None) or {}).get("render_modes", ())
    return getattr(env, "render_mode", None) == "rgb_array" and "rgb_array" in modes


def agent_ids(env: EnvLike) -> list[AgentID]:
    """The agents of an environment: its possible agents, or where it has no such list, those after a reset."""
    if isinstance(env, gymnasium.Env):
        return [DEFAULT_AGENT_ID]
    possible = getattr(env, "possible_agents", None)
    if possible is None:
        env.reset(seed=0)
        possible = env.agents
    return list(possible)


def env_name(env: Any) -> str:
    """A short name that can stand in a path: ``"simple_spread_v3"`` of ``"mpe2.simple_spread_v3"``."""
    if not isinstance(env, str):
        text = getattr(env, "__name__", type(env).__name__)
    elif env in _registered or env in gymnasium.registry:
        text = env
    else:
        module_name, _, attribute = env.partition(":")
        last = module_name.rpartition(".")[2]
        text = last if attribute in ("", "parallel_env", "env", "raw_env") else f"{last}-{attribute}"
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "env"


def env_to_json(env: Any) -> dict[str, Any]:
    """An environment's name as JSON data; what has no importable name leaves a note that it has to be passed again."""
    if isinstance(env, str):
        return {"type": "registered" if env in _registered else "name", "name": env}
    name = qualified_name(env)
    if name is not None:
        return {"type": "object", "name": name}
    return {"type": "not_importable", "name": getattr(env, "__qualname__", type(env).__qualname__)}


def env_from_json(data: Mapping[str, Any]) -> Any:
    """What ``env_to_json`` described, for ``make_env``.

    Raises:
        CheckpointError: If it cannot be had from the description alone.
    """
    match data.get("type"):
        case "name":
            return data["name"]
        case "object":
            return import_attribute(data["name"], who="env of the checkpoint", error=CheckpointError)
        case "registered":
            if data["name"] in _registered:
                return data["name"]
            raise CheckpointError(
                f"env: the checkpoint was made with {data['name']!r}, a name given to register_env, which is not "
                f"registered now. Call register_env({data['name']!r}, ...) first."
            )
        case "not_importable":
            raise CheckpointError(
                f"env: the checkpoint was made with {data['name']!r}, which cannot be imported by name. "
                f"Pass the environment again, or define it at the top of a module."
            )
    raise CheckpointError(f"env: expected the description of an environment, but got {dict(data)!r}.")


# Finding it ---------------------------------------------------------------------------------------------------------


def _find(env: Any, config: Mapping[str, Any]) -> _Maker:
    if isinstance(env, str) and env.strip():
        return _find_by_name(env.strip())
    if not callable(env):
        raise EnvError(
            f"environment: expected a name, a class or a function of env_config, but got {env!r}. "
            f"To use an environment that you have made, give a function that makes it."
        )
    name = getattr(env, "__name__", type(env).__name__)
    takes_dict = _takes_dict(env) or (not inspect.isclass(env) and _single_required(env, config))
    return _Maker(name, env, (env,), takes_dict)


def _find_by_name(env: str) -> _Maker:
    if env in _registered:
        return _Maker(env, _registered[env], (), takes_dict=True)
    if env in gymnasium.registry:
        return _gymnasium_maker(env, env)
    module_name, colon, attribute = env.partition(":")
    if not colon:
        return _module_maker(env)
    if not attribute.replace(".", "").isidentifier():
        # A Gymnasium id that a package registers when it is imported, such as "ale_py:ALE/Pong-v5".
        _import_env_module(env, module_name)
        if attribute in gymnasium.registry:
            return _gymnasium_maker(env, attribute)
        close = did_you_mean(attribute, gymnasium.registry)
        hint = close if close.startswith("Did you mean") else "Check the id."
        raise EnvError(f"environment {env!r}: {module_name!r} registers no Gymnasium id {attribute!r}. {hint}")
    module = _import_env_module(env, module_name)
    make = import_attribute(env, who=f"environment {env!r}", error=EnvError)
    if not callable(make):
        raise EnvError(f"environment {env!r}: expected a class or a function, but it is {make!r}.")
    raw = getattr(module, "raw_env", None) if attribute in ("parallel_env", "env") else None
    return _Maker(env, make, (make, raw) if callable(raw) else (make,), _takes_dict(make))


def _gymnasium_maker(name: str, env_id: str) -> _Maker:
    spec = gymnasium.spec(env_id)

    def make(**kwargs: Any) -> gymnasium.Env:
        # What the environment returns is checked by this library, with messages that name agent and step.
        return gymnasium.make(env_id, **{"disable_env_checker": True, **kwargs})

    creator: Any = spec.entry_point
    if isinstance(creator, str):
        try:
            creator = load_env_creator(creator)
        except Exception as cause:
            raise EnvError(f"environment {name!r} cannot be loaded: {type(cause).__name__}: {cause}") from cause
    return _Maker(name, make, (creator,) if creator is not None else (), extra_keys=_GYMNASIUM_KEYS)


def _module_maker(env: str) -> _Maker:
    module = _import_env_module(env, env)
    for attribute in ("parallel_env", "env"):
        make = getattr(module, attribute, None)
        if callable(make):
            raw = getattr(module, "raw_env", None)
            return _Maker(env, make, (make, raw) if callable(raw) else (make,), _takes_dict(make))
    raise EnvError(
        f"environment {env!r}: the module has neither parallel_env nor env, as a PettingZoo environment does. "
        f'Name the class or function that makes it, as in "{env}:make".'
    )


def _import_env_module(env: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as cause:
        missing = cause.name or ""
        if missing and (module_name == missing or module_name.startswith(missing + ".")):
            raise EnvError(f"environment {env!r}: {_why_not_found(env, module_name, missing)}") from cause
        raise EnvError(
            f"environment {env!r} needs the package {missing!r}. Install it with: "
            f'pip install "{_pip_name(module_name, missing)}"'
        ) from cause
    except Exception as cause:
        if module_name.startswith("pettingzoo.mpe"):
            moved = module_name.replace("pettingzoo.mpe", "mpe2", 1)
            raise EnvError(
                f"environment {env!r} is not in PettingZoo any more. Use {moved!r}, and install it with: "
                f"pip install mpe2"
            ) from cause
        raise EnvError(f"environment {env!r}: its module fails to import: {type(cause).__name__}: {cause}") from cause


def _why_not_found(env: str, module_name: str, missing: str) -> str:
    """One sentence about a name that is no module, and one about what to do."""
    top = module_name.partition(".")[0]
    if missing == top and top in _PIP_NAMES:
        return f"the package {top!r} is not installed. Install it with: pip install {_PIP_NAMES[top]}"
    parent_name, _, last = missing.rpartition(".")
    parent = sys.modules.get(parent_name)
    if parent is not None:
        if callable(vars(parent).get(last)):
            return f"{last!r} is no module but a part of the module {parent_name!r}. Write '{parent_name}:{last}'."
        siblings = [module.name for module in pkgutil.iter_modules(getattr(parent, "__path__", []))]
        versioned = [name for name in siblings if re.search(r"_v\d+$", name)]
        return f"{parent_name!r} has no module {last!r}. {did_you_mean(last, versioned or siblings)}"
    elsewhere = [f"{family}.{env}" for family in _FAMILIES if "." not in env and _module_exists(f"{family}.{env}")]
    if elsewhere:
        return f"there is no such module. Did you mean {elsewhere[0]!r}?"
    close = did_you_mean(env, gymnasium.registry)
    if close.startswith("Did you mean"):
        return f"there is neither a module nor a Gymnasium id of that name. {close}"
    return (
        f"there is neither a module {missing!r} nor a Gymnasium id of that name. Check the spelling, run from the "
        f"folder that holds it, or install the package that has it."
    )


def _module_exists(name: str) -> bool:
    parent, _, last = name.rpartition(".")
    try:
        found = importlib.util.find_spec(parent)
    except ModuleNotFoundError:
        return False
    locations = found.submodule_search_locations if found else None
    return any(module.name == last for module in pkgutil.iter_modules(locations or []))


def _pip_name(module_name: str, missing: str) -> str:
    """What to install for a package that an environment's module could not import."""
    family = re.match(r"pettingzoo\.(sisl|butterfly|classic|atari)\b", module_name)
    if family and missing.partition(".")[0] != "pettingzoo":
        return f"pettingzoo[{family[1]}]"
    return _PIP_NAMES.get(missing.partition(".")[0], missing.partition(".")[0])


# Calling it ---------------------------------------------------------------------------------------------------------


def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # some builtins have no signature: then nothing is known, and calling it will tell
        return {"kwargs": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}


def _positional(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in _parameters(fn).values() if parameter.kind in kinds]


def _takes_dict(fn: Callable[..., Any]) -> bool:
    positional = _positional(fn)
    only_one = len(positional) == 1 or (positional and all(p.default is not p.empty for p in positional[1:]))
    return bool(only_one and positional[0].name in ("config", "env_config"))


def _single_required(fn: Callable[..., Any], config: Mapping[str, Any]) -> bool:
    required = [p for p in _positional(fn) if p.default is p.empty]
    return len(required) == 1 and required[0].name not in config


def _accepted_keys(maker: _Maker) -> tuple[list[str], bool]:
    """The keywords that are known to be accepted, and whether there may be more."""
    keys, open_ended = list(maker.extra_keys), False
    for fn in maker.declared_by:
        parameters = _parameters(fn).values()
        keys += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not open_ended:
            break
    return keys, open_ended


def _check_keys(maker: _Maker, config: Mapping[str, Any]) -> None:
    keys, open_ended = _accepted_keys(maker)
    for key in config:
        if not open_ended and key not in keys:
            raise _unknown_key(maker, key, keys)


def _unknown_key(maker: _Maker, key: str, keys: list[str]) -> ConfigError:
    known = sorted({name for name in keys if name not in _GYMNASIUM_KEYS} - {"self", "render_mode"})
    hint = did_you_mean(key, known) if known else "Look at its documentation for what it accepts."
    return ConfigError(f"env_config: environment {maker.name!r} does not accept {key!r}. {hint}")


def _call(maker: _Maker, config: dict[str, Any], render_mode: str | None) -> Any:
    keys, open_ended = _accepted_keys(maker)
    wants_render = render_mode is not None and "render_mode" not in config
    extra = {"render_mode": render_mode} if wants_render and ("render_mode" in keys or open_ended) else {}
    try:
        if maker.takes_dict:
            return maker.make(dict(config), **extra)
        return maker.make(**config, **extra)
    except MarlConnectorsError:
        raise
    except TypeError as cause:
        match = _UNEXPECTED_KEY.search(str(cause))
        if match and match[2] == "render_mode" and extra:
            return _call(maker, config, None)
        if match and match[2] in config and not maker.takes_dict:
            raise _unknown_key(maker, match[2], _keys_of_class(maker, match[1])) from cause
        raise _failed(maker, cause) from cause
    except Exception as cause:
        raise _failed(maker, cause) from cause


def _failed(maker: _Maker, cause: Exception) -> EnvError:
    message = " ".join(str(cause).split())
    return EnvError(
        f"environment {maker.name!r} could not be made: {type(cause).__name__}: {message}. "
        f"Look at its env_config and at what it needs installed."
    )


def _keys_of_class(maker: _Maker, qualified: str | None) -> list[str]:
    """The keywords of the class that refused one, as far as the module of the environment's maker knows that class."""
    keys, _ = _accepted_keys(maker)
    modules = [sys.modules.get(getattr(fn, "__module__", "")) for fn in maker.declared_by]
    for value in (value for module in modules if module is not None for value in vars(module).values()):
        if inspect.isclass(value) and value.__qualname__ == qualified:
            return keys + [name for name in _parameters(value) if name != "kwargs"]
    return keys
