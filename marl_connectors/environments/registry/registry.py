"""The registry: finds the class or function that makes an environment.

A user names an environment by an importable PettingZoo module or its short name, by ``"package.module:attribute"``, by
a Gymnasium or PettingZoo id, by a VMAS scenario or by a registered name, or passes a class or function.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import pettingzoo
from gymnasium.envs.registration import load_env_creator

from marl_connectors.errors import ConfigError, EnvError, describe_error, did_you_mean, likeness
from marl_connectors.names import import_attribute, module_of_file
from marl_connectors.packages import how_to_install, is_installed

GYMNASIUM_KEYS = ("max_episode_steps", "disable_env_checker", "vectorization_mode", "vector_kwargs", "wrappers")
"""The keywords that ``gymnasium.make`` accepts in addition to the environment's own settings."""


@dataclass(frozen=True, slots=True)
class EnvMaker:
    """The class or function that makes an environment, and how to call it.

    Attributes:
        name: The name that the user gave.
        make: The class or function to call.
        declared_by: The callables whose parameters are the keywords that ``make`` accepts.
        takes_dict: Whether ``make`` gets the ``env_config`` as one dict, as in RLlib.
        extra_keys: Keywords that ``make`` accepts in addition.
        settings: Keyword arguments that ``env_config`` can override.
        advice: The advice at the end of the error message if ``make`` fails.
    """

    name: str
    make: Callable[..., Any]
    declared_by: tuple[Callable[..., Any], ...]
    takes_dict: bool = False
    extra_keys: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    advice: str = "Check its env_config, and that the packages that it needs are installed."


def parameters_of(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a callable by name; a single ``**kwargs`` if its signature is unknown."""
    try:
        return dict(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # some builtins have no signature: errors only show when they are called
        return {"kwargs": inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)}


def _positional(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in parameters_of(fn).values() if parameter.kind in kinds]


def wants_dict(fn: Callable[..., Any]) -> bool:
    """Whether the only required parameter is called ``config`` or ``env_config``."""
    positional = _positional(fn)
    only_one = len(positional) == 1 or (positional and all(p.default is not p.empty for p in positional[1:]))
    return bool(only_one and positional[0].name in ("config", "env_config"))


def has_one_required(fn: Callable[..., Any], config: Mapping[str, Any]) -> bool:
    """Whether there is one required parameter, and ``config`` does not name it."""
    required = [p for p in _positional(fn) if p.default is p.empty]
    return len(required) == 1 and required[0].name not in config


REGISTERED: dict[str, Callable[[dict[str, Any]], Any]] = {}
"""The names given to ``register_env``, and the functions that they stand for."""

_GYMNASIUM_ID = re.compile(r"([\w.-]+/)?[\w.-]+-v\d+")
VMAS = "vmas/"
"""The prefix of the names of VMAS scenarios."""


def register_env(name: str, fn: Callable[[dict[str, Any]], Any]) -> None:
    """Registers a function that makes an environment under a name.

    A later call for the same name replaces an earlier one.

    Args:
        name: The name, which can then be used as ``env``.
        fn: Gets the ``env_config`` dict and returns an environment.

    Raises:
        ConfigError: If ``fn`` cannot be called.
    """
    if not callable(fn):
        raise ConfigError(f"register_env: expected a function of env_config for {name!r}, but got {fn!r}.")
    REGISTERED[name] = fn


def find_env(env: Any, config: Mapping[str, Any], *, vector: bool = False) -> EnvMaker:
    """Finds the class or function that makes an environment.

    Args:
        env: A name, a class or a function.
        config: The settings of the environment. A function with one required parameter that is not among them gets
            them as a dict.
        vector: For a Gymnasium id, whether to make the VectorEnv of its vector entry point.

    Returns:
        The class or function, and how to call it.

    Raises:
        EnvError: If there is no such environment, or a package is missing.
    """
    if isinstance(env, str) and env.strip():
        return _find_by_name(env.strip(), vector)
    if not callable(env):
        raise EnvError(
            f"environment: expected a name, a class or a function of env_config, but got {env!r}. "
            f"For an environment that exists already, pass a function that makes it."
        )
    name = getattr(env, "__name__", type(env).__name__)
    takes_dict = wants_dict(env) or (not inspect.isclass(env) and has_one_required(env, config))
    return EnvMaker(name, env, (env,), takes_dict)


def is_importable(env: Any) -> bool:
    """Whether an environment is a name that another process can look up, not one registered in this process.

    Gymnasium's ids count as importable, since their specs are sent to worker processes.
    """
    return isinstance(env, str) and env.strip() not in REGISTERED and _registered_with_pettingzoo(env.strip()) is None


def _find_by_name(env: str, vector: bool) -> EnvMaker:
    if env in REGISTERED:
        return EnvMaker(env, REGISTERED[env], (), takes_dict=True)
    if env.startswith(VMAS):
        from marl_connectors.environments.adapters.vmas import VmasEnv

        return EnvMaker(env, partial(VmasEnv, env.removeprefix(VMAS)), (VmasEnv,))
    _import_namespace(env)
    if env in gymnasium.registry:
        return _gymnasium_maker(env, env, vector)
    full_name = importable_name(env)
    module_name, colon, attribute = full_name.partition(":")
    if not colon:
        return _registered_with_pettingzoo(env) or _module_maker(env, module_name)
    if not attribute.replace(".", "").isidentifier():
        # A Gymnasium id that a package registers when it is imported, such as "ale_py:ALE/Pong-v5".
        _import_env_module(env, module_name)
        if attribute in gymnasium.registry:
            return _gymnasium_maker(env, attribute, vector)
        close = did_you_mean(attribute, gymnasium.registry)
        hint = close if close.startswith("Did you mean") else "Check the id."
        raise EnvError(f"environment {env!r}: {module_name!r} registers no Gymnasium id {attribute!r}. {hint}")
    module = _import_env_module(env, module_name)
    make = import_attribute(full_name, who=f"environment {env!r}", error=EnvError)
    if not callable(make):
        raise EnvError(f"environment {env!r}: expected a class or a function, but it is {make!r}.")
    if attribute in ("parallel_env", "env"):
        return _maker_of_module(env, module, make)
    return EnvMaker(env, make, (make,), wants_dict(make))


def _import_namespace(env: str) -> None:
    """Imports the package that registers the Gymnasium ids of a namespace, such as ``ALE`` of ``"ALE/Pong-v5"``."""
    package = GYMNASIUM_NAMESPACES.get(env.partition("/")[0]) if "/" in env else None
    if package is not None:
        _import_env_module(env, package)


def _gymnasium_maker(name: str, env_id: str, vector: bool) -> EnvMaker:
    spec = gymnasium.spec(env_id)
    if vector and spec.vector_entry_point is None:
        raise EnvError(
            f"environment {name!r}: it has no vector entry point, so there is no VectorEnv of its own. Use "
            f'gym_env_vectorize_mode="sync" or "async", which make single environments.'
        )

    def make(**kwargs: Any) -> gymnasium.Env:
        # What the environment returns is checked by this library, with messages that name agent and step.
        return gymnasium.make(env_id, **{"disable_env_checker": True, **kwargs})

    def make_vec(**kwargs: Any) -> gymnasium.vector.VectorEnv:
        return gymnasium.make_vec(env_id, vectorization_mode="vector_entry_point", **kwargs)

    creator: Any = spec.vector_entry_point if vector else spec.entry_point
    if isinstance(creator, str):
        try:
            creator = load_env_creator(creator)
        except Exception as cause:
            raise EnvError(f"environment {name!r} cannot be loaded: {describe_error(cause)}.") from cause
    if vector:
        return EnvMaker(name, make_vec, (creator,), extra_keys=("max_episode_steps",))
    return EnvMaker(name, make, (creator,) if creator is not None else (), extra_keys=GYMNASIUM_KEYS)


def _registered_with_pettingzoo(env: str) -> EnvMaker | None:
    """Finds an id given to ``pettingzoo.register``; None if there is none.

    PettingZoo's own ids are left out. They are found as modules, whose settings are known.
    """
    for kind in ("parallel", "aec"):
        spec = getattr(pettingzoo, f"{kind}_registry", {}).get(env)
        if spec is not None and not str(spec.entry_point).startswith("pettingzoo."):
            make_by_id: Any = pettingzoo.make
            make = partial(make_by_id, kind, env)
            return EnvMaker(env, make, (make,))
    return None


def _module_maker(env: str, module_name: str) -> EnvMaker:
    module = _import_env_module(env, module_name)
    for attribute in ("parallel_env", "env"):
        make = getattr(module, attribute, None)
        if callable(make):
            return _maker_of_module(env, module, make)
    raise EnvError(
        f"environment {env!r}: the module has neither parallel_env nor env, as a PettingZoo environment does. "
        f'Name the class or function that makes it, as in "{env}:make".{_hint_at_config(module)}'
    )


def _hint_at_config(module: ModuleType) -> str:
    """Returns a sentence about a module that has the config of a run instead of an environment."""
    names = [
        name for name, value in vars(module).items() if hasattr(value, "build_algo") and not inspect.isclass(value)
    ]
    return f" It has the config {names[0]!r}, which --config names on the command line." if names else ""


def _maker_of_module(env: str, module: ModuleType, make: Callable[..., Any]) -> EnvMaker:
    raw = getattr(module, "raw_env", None)
    declared_by = (make, raw) if callable(raw) else (make,)
    return EnvMaker(env, make, declared_by, wants_dict(make), **of_suite(module.__name__))


def _import_env_module(env: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as cause:
        missing = cause.name or ""
        if missing and (module_name == missing or module_name.startswith(missing + ".")):
            raise EnvError(f"environment {env!r}: {_why_not_found(env, module_name, missing)}") from cause
        if beside := _folder_beside(module_name, missing):
            raise EnvError(
                f"environment {env!r} needs the module {missing!r}, which is in {beside}. Run from there, or add it to "
                f"PYTHONPATH."
            ) from cause
        raise EnvError(
            f"environment {env!r} needs the package {missing!r}. {how_to_install(pip_name(module_name, missing))}"
        ) from cause
    except Exception as cause:
        if module_name.startswith("pettingzoo.mpe"):
            moved = module_name.replace("pettingzoo.mpe", "mpe2", 1)
            raise EnvError(
                f"environment {env!r} is not in PettingZoo any more. Use {moved!r}, which is in mpe2. "
                f"{how_to_install('mpe2')}"
            ) from cause
        raise EnvError(f"environment {env!r}: its module fails to import: {describe_error(cause)}.") from cause


def _folder_beside(module_name: str, missing: str) -> str:
    """Returns the folder of a module if the missing one is a file in it; ``""`` if not."""
    folders = [Path(folder, *module_name.split(".")[:-1]) for folder in sys.path]
    return next((str(folder) for folder in folders if missing and (folder / f"{missing}.py").is_file()), "")


def _why_not_found(env: str, module_name: str, missing: str) -> str:
    """Returns a sentence about a name that is not a module, and a sentence of advice."""
    top = module_name.partition(".")[0]
    if missing == top and top in PIP_NAMES:
        return f"the package {top!r} is not installed. {how_to_install(PIP_NAMES[top])}"
    parent_name, _, last = missing.rpartition(".")
    parent = sys.modules.get(parent_name)
    if parent is not None:
        if callable(vars(parent).get(last)):
            return f"{last!r} is no module but a part of the module {parent_name!r}. Write '{parent_name}:{last}'."
        siblings = [module.name for module in pkgutil.iter_modules(getattr(parent, "__path__", []))]
        versioned = [name for name in siblings if re.search(r"_v\d+$", name)]
        return f"{parent_name!r} has no module {last!r}. {did_you_mean(last, versioned or siblings)}"
    for package, names in _NAMES_IN_PACKAGES.items():
        if re.fullmatch(names, env) and not is_installed(package):
            return f"it is in the package {package!r}, which is not installed. {how_to_install(PIP_NAMES[package])}"
    alike, known = re.sub(r"-(v\d+)$", r"_\1", env), known_environments()
    if likeness(alike, known) > likeness(env, gymnasium.registry):
        return f"there is no such environment. {did_you_mean(alike, known)}"
    close = did_you_mean(env, gymnasium.registry)
    hint = f'If a package registers it when it is imported, name that too: "its_package:{env}".'
    is_like_id = _GYMNASIUM_ID.fullmatch(env) is not None
    if close.startswith("Did you mean"):
        return f"there is neither a module nor a Gymnasium id of that name. {close}{f' {hint}' if is_like_id else ''}"
    if is_like_id:
        return f"no Gymnasium id of that name is registered, and there is no such module. {hint}"
    return (
        f"there is neither a module {missing!r} nor a Gymnasium id of that name. Check the spelling, run from the "
        f"folder that holds it, or install the package that has it."
    )


SUITES = {
    "mpe2": "mpe2",
    "sisl": "pettingzoo.sisl",
    "butterfly": "pettingzoo.butterfly",
    "classic": "pettingzoo.classic",
    "atari": "pettingzoo.atari",
    "magent2": "magent2.environments",
    "mamujoco": "gymnasium_robotics.envs.multiagent_mujoco",
    "marl_envs": "marl_envs",
}
"""Short name of a suite to the package whose modules called ``name_vN`` are PettingZoo environments."""

PIP_NAMES = {
    "mpe2": "mpe2",
    "pettingzoo": "pettingzoo",
    "magent2": "magent2",
    "vmas": "vmas",
    "supersuit": "supersuit",
    "gymnasium_robotics": "gymnasium-robotics",
    "ale_py": "ale-py",
}
"""The names under which packages are installed, by the names under which they are imported."""

_NAMES_IN_PACKAGES = {
    "mpe2": r"simple(_[a-z_]+)?_v\d+",
    "magent2": r"(adversarial_pursuit|battle|battlefield|combined_arms|gather|tiger_deer)_v\d+",
    "gymnasium_robotics": r"mamujoco_v\d+",
}
"""The names of environments in packages of their own, which cannot be listed unless these are installed."""

GYMNASIUM_NAMESPACES = {"ALE": "ale_py"}
"""Namespace to the package that registers Gymnasium ids when it is imported."""

_VERSIONED = re.compile(r"_v\d+$")


def importable_name(env: str) -> str:
    """Returns the module, or ``"module:attribute"``, that a short name means.

    A module can be named by its file. An environment of a suite can be named by its module alone or by its suite and
    module, with ``/`` instead of dots and ``-v3`` instead of ``_v3``, as in PettingZoo's ids. A module that can be
    imported under the given name has precedence. A name that belongs to no suite is returned unchanged, and so is that
    of a VMAS scenario.

    >>> importable_name("marl_envs/match-v0:parallel_env")
    'marl_envs.match_v0:parallel_env'
    >>> importable_name("vmas/balance")
    'vmas/balance'

    Raises:
        EnvError: If the name is that of a Python file that cannot be imported.
    """
    if env.startswith(VMAS):
        return env
    module_name, colon, attribute = env.partition(":")
    if module_name.endswith(".py"):
        return f"{module_of_file(module_name, who=f'environment {env!r}', error=EnvError)}{colon}{attribute}"
    dotted = re.sub(r"-(v\d+)$", r"_\1", module_name.replace("/", "."))
    if not all(part.isidentifier() for part in dotted.split(".")):
        return env
    package, _, last = dotted.rpartition(".")
    if not (last in _modules(package) if package else _is_at_top(last)):
        dotted = next(_matching(package, last), dotted if _is_at_top(dotted.partition(".")[0]) else module_name)
    return f"{dotted}{colon}{attribute}"


def _matching(before: str, last: str) -> Iterator[str]:
    """Yields the suites' modules with the name ``last``, of the suite ``before`` if that is not empty."""
    for short, package in SUITES.items():
        if before in ("", short, package, package.partition(".")[0]) and last in environments_of(package):
            yield f"{package}.{last}"


def environments_of(package: str) -> list[str]:
    """Returns the environment modules of a suite's package without importing it; none if it is not installed."""
    return [name for name in _modules(package) if _VERSIONED.search(name)]


def _modules(package: str) -> set[str]:
    """Returns the modules of a package without importing its parents, which ``find_spec`` would do."""
    top, *inner = package.split(".")
    found = importlib.util.find_spec(top) if _is_at_top(top) and top not in sys.modules else sys.modules.get(top)
    folders = getattr(found, "submodule_search_locations", None) or getattr(found, "__path__", ())
    return {module.name for module in pkgutil.iter_modules([str(Path(folder, *inner)) for folder in folders])}


def _is_at_top(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def known_environments() -> list[str]:
    """Returns the names of all installed suites' environments, without the suites' names."""
    return [name for package in SUITES.values() for name in environments_of(package)]


def pip_name(module_name: str, missing: str) -> str:
    """Returns the pip name of a package that an environment's module could not import."""
    family = re.match(r"pettingzoo\.(sisl|butterfly|classic|atari)\b", module_name)
    if family and missing.partition(".")[0] != "pettingzoo":
        return f"pettingzoo[{family[1]}]"
    return PIP_NAMES.get(missing.partition(".")[0], missing.partition(".")[0])


def of_suite(module_name: str) -> dict[str, Any]:
    """Returns extra arguments of EnvMaker for a suite's environment: PettingZoo's Atari games get ale-py's ROMs."""
    if not module_name.startswith("pettingzoo.atari."):
        return {}
    roms = importlib.util.find_spec("ale_py")
    settings = {"auto_rom_install_path": str(Path(roms.origin).parent)} if roms and roms.origin else {}
    return {"settings": settings, "advice": "ROMs come with ale-py. " + how_to_install("ale-py")}
