"""The factory: calls the class or function that makes an environment with the right settings, and explains failures.

The callers seed, vectorise and check the environments.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import gymnasium
from gymnasium import Space
from gymnasium.vector import VectorEnv
from pettingzoo import AECEnv, ParallelEnv

from marl_connectors.environments.adapters.batched import is_batched, missing_parts
from marl_connectors.environments.adapters.gymnasium_vector import GymnasiumBatch
from marl_connectors.environments.adapters.multi_agent_env import MultiAgentEnvAdapter, is_multi_agent_env
from marl_connectors.environments.adapters.single_agent import SingleAgentEnv
from marl_connectors.environments.adapters.turn_based import TurnBasedEnv
from marl_connectors.environments.registry.registry import (
    GYMNASIUM_KEYS,
    GYMNASIUM_NAMESPACES,
    REGISTERED,
    SUITES,
    VMAS,
    EnvMaker,
    find_env,
    importable_name,
    parameters_of,
)
from marl_connectors.environments.registry.unread_observations import without_unread_observations
from marl_connectors.environments.registry.wrapper_names import EnvWrapper
from marl_connectors.environments.registry.wrappers import wrap_env
from marl_connectors.environments.rules.checks import ADVICE_ON_OLD_GYM
from marl_connectors.environments.rules.env_failures import ENV_ERRORS, Watched, errors_named
from marl_connectors.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    MarlConnectorsError,
    describe_error,
    did_you_mean,
    place_of_definition,
    place_of_error,
)
from marl_connectors.flat_action_masks import ACTION_MASK
from marl_connectors.names import Expected, Names, brief, is_function, qualified_name
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID

EnvLike: TypeAlias = ParallelEnv | AECEnv | gymnasium.Env | VectorEnv


def make_env(
    env: Any,
    env_config: Mapping[str, Any] | None = None,
    *,
    render_mode: str | None = None,
    wrappers: Iterable[EnvWrapper] = (),
    num_envs: int = 1,
    vector_entry_point: bool = False,
) -> EnvLike:
    """Makes an environment.

    Args:
        env: An importable PettingZoo module (``"mpe2.simple_spread_v3"``, or one of a well-known suite by its short
            name, ``"simple_spread_v3"``; ``parallel_env`` is preferred to the turn-based ``env``),
            ``"package.module:attribute"``, a Gymnasium or PettingZoo id, a VMAS scenario (``"vmas/balance"``), a name
            given to ``register_env``, a class, or a function. Classes and functions get ``env_config`` as keyword
            arguments; one whose only required parameter is called ``config`` or ``env_config`` gets the dict, and so
            does a function that is given as an object and has one required parameter that is not in ``env_config``.
        env_config: The settings of the environment. The mapping is not changed.
        render_mode: The render mode, for example ``"rgb_array"``. It is only passed to environments that accept one.
        wrappers: The wrappers, the innermost first: callables ``env -> env``, or names with arguments such as
            ``"frame_skip_v0:4"`` (of SuperSuit) and ``"my_module.my_wrapper:0.5"``.
        num_envs: The number of sub-environments of a natively batched environment or a VectorEnv. It is passed to
            classes and functions that have such a parameter.
        vector_entry_point: Whether to make all sub-environments at once. The ``vector_entry_point`` of a Gymnasium id
            is used. A class or function must return a VectorEnv or a natively batched environment, and always gets
            ``num_envs``, in its dict if it gets one.

    Returns:
        A PettingZoo ``ParallelEnv`` or ``AECEnv``, a ``gymnasium.Env``, a ``MultiAgentEnv``, a
        ``gymnasium.vector.VectorEnv``, or a ``BatchedEnv``.

    Raises:
        EnvError: If there is no such environment, if a package is missing, or if the class or function that makes it
            or a wrapper fails.
        ConfigError: If ``env_config`` has a key that the environment does not accept, or if a wrapper does not exist,
            gets wrong arguments or does not work in this library.
    """
    if env_config is not None and not isinstance(env_config, Mapping):
        raise ConfigError(f"env_config: expected a dict, but got {env_config!r}.")
    config = dict(env_config or {})
    with warnings.catch_warnings():
        # PettingZoo 1.27 warns at each use of the API that all its versions have.
        warnings.filterwarnings("ignore", "The old environment creation API", DeprecationWarning)
        maker = find_env(env, config, vector=vector_entry_point)
        if not maker.takes_dict:
            check_keys(maker, config)
        made = call_maker(maker, config, render_mode, num_envs, vector=vector_entry_point)
    with errors_named(f"environment {maker.name!r}: one of its attributes"):
        is_of_all = is_batched(made) or isinstance(made, VectorEnv)
    if is_of_all:
        _check_batched(maker.name, made, num_envs, config, wrappers)
        return made
    _check_single(maker.name, made, vector_entry_point)
    wrapped = wrap_env(made, wrappers, name=maker.name)
    if is_multi_agent_env(made) and not is_multi_agent_env(wrapped):
        raise ConfigError(
            f"wrappers: {maker.name!r} is a MultiAgentEnv, but a wrapper made a {type(wrapped).__name__} of it. Derive "
            f"the wrapper from MultiAgentEnv, or wrap the environment in the function that makes it."
        )
    return without_unread_observations(wrapped)


def _check_single(name: str, made: Any, vector_entry_point: bool) -> None:
    """Checks what a maker returned that is no environment of several copies."""
    if vector_entry_point:
        raise EnvError(
            f"environment {name!r}: with gym_env_vectorize_mode='vector_entry_point' its maker must return "
            f"a gymnasium.vector.VectorEnv of num_envs sub-environments, but it returned a {type(made).__name__}. Use "
            f"the mode 'sync' or 'async', which call the maker for each sub-environment."
        )
    if not (isinstance(made, (ParallelEnv, AECEnv, gymnasium.Env)) or is_multi_agent_env(made)):
        if missing_parts(made):
            raise EnvError(
                f"environment {name!r}: it has num_envs and possible_agents, as natively batched environments "
                f"have, but lacks {', '.join(missing_parts(made))}. Add all methods of marl_connectors.BatchedEnv."
            )
        if is_of_old_gym(made):
            raise EnvError(
                f"environment {name!r}: {type(made).__name__} is an environment of the old package gym, which "
                f"Gymnasium has replaced. {ADVICE_ON_OLD_GYM}"
            )
        raise EnvError(
            f"environment {name!r}: expected a PettingZoo ParallelEnv or AECEnv, a gymnasium.Env or a "
            f"MultiAgentEnv, but its maker returned a {type(made).__name__}. Return the environment, or derive its "
            f"class from one of these."
        )


def _check_batched(
    name: str, env: Any, num_envs: int, config: Mapping[str, Any], wrappers: Iterable[EnvWrapper]
) -> None:
    if env.num_envs != num_envs:
        how = (
            "Leave num_envs out of env_config, and set num_envs_per_env_runner"
            if "num_envs" in config
            else "Its maker should accept num_envs as a keyword argument and pass it on"
        )
        raise EnvError(
            f"environment {name!r}: it {_is_what(env)} with num_envs={env.num_envs}, but the run needs "
            f"num_envs={num_envs}. {how}."
        )
    if tuple(wrappers):
        raise ConfigError(
            f"wrappers: they are for single environments, but {name!r} {_is_what(env)}. Change the environment itself, "
            f"or add a connector piece."
        )


def is_of_old_gym(env: Any) -> bool:
    """Whether an environment's class is derived from one of the package ``gym``."""
    return any(cls.__module__.partition(".")[0] == "gym" for cls in type(env).__mro__)


def _is_what(env: Any) -> str:
    return "is a Gymnasium VectorEnv" if isinstance(env, VectorEnv) else "is natively batched"


@dataclass
class EnvFactory:
    """Makes the sub-environments of a run, also in another process.

    Attributes:
        env: The environment, as for ``make_env``.
        env_config: Its settings, as for ``make_env``.
        wrappers: The wrappers, as for ``make_env``.
        vector_entry_point: Whether to make all sub-environments at once, as for ``make_env``.
        action_mask_key: The key of observations or infos under which action masks are, for turn-based environments.
        reset_options: The ``options`` that the environment gets with every reset.
        render_mode: The render mode of the environments.
        first_render_mode: The render mode of the first environment that is made in this process, instead.
        is_batched: Whether the factory makes natively batched environments.
        agent_spaces: The observation and action space of each agent of the sample environment.
    """

    env: Any
    env_config: Mapping[str, Any]
    wrappers: tuple[EnvWrapper, ...] = ()
    vector_entry_point: bool = False
    action_mask_key: str | None = ACTION_MASK
    reset_options: Mapping[str, Any] | None = None
    render_mode: str | None = None
    first_render_mode: str | None = None
    is_batched: bool = False
    agent_spaces: Mapping[AgentID, tuple[Space, Space]] = field(default_factory=dict)

    def __call__(self, num_envs: int = 1) -> Any:
        """Makes an environment.

        Args:
            num_envs: The number of sub-environments of a natively batched environment.

        Returns:
            A natively batched environment, or one with the methods of a PettingZoo parallel environment.
        """
        first, self.first_render_mode = self.first_render_mode, None
        env = make_env(
            self.env,
            self.env_config,
            render_mode=first or self.render_mode,
            wrappers=self.wrappers,
            num_envs=num_envs,
            vector_entry_point=self.vector_entry_point,
        )
        name = env_name(self.env)
        if isinstance(env, VectorEnv):
            return GymnasiumBatch(env, name, self.reset_options)
        if is_multi_agent_env(env):
            return MultiAgentEnvAdapter(env)
        if self.reset_options is not None and is_batched(env):
            raise ConfigError(
                f"reset_options: {name!r} is a natively batched environment, whose reset(seeds, mask) takes no "
                f"options. Put them into env_config, and let its maker pass them on."
            )
        if isinstance(env, gymnasium.Env):
            return SingleAgentEnv(env)
        return TurnBasedEnv(env, action_mask_key=self.action_mask_key) if isinstance(env, AECEnv) else env

    def parts(self) -> dict[str, Any]:
        """Returns the objects that must be sent to another process, by names for error messages."""
        return {
            "the environment": self.env,
            **{f"env_config[{key!r}]": value for key, value in self.env_config.items()},
            "reset_options": self.reset_options,
            **{f"wrappers[{i}]": wrapper for i, wrapper in enumerate(self.wrappers)},
        }

    @property
    def description(self) -> str:
        """The name of the environment, and where the class or function that makes it is defined, for messages."""
        place = "" if isinstance(self.env, str) else place_of_definition(self.env)
        return f"environment {env_name(self.env)!r}" + (f" ({place})" if place else "")

    def __getstate__(self) -> dict[str, Any]:
        name = self.env if isinstance(self.env, str) else ""
        return {
            "own": {**vars(self), "first_render_mode": None},
            "registered": {name: REGISTERED[name]} if name in REGISTERED else {},
            "gymnasium": {name: gymnasium.registry[name]} if name in gymnasium.registry else {},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        REGISTERED.update(state["registered"])
        for name, spec in state["gymnasium"].items():
            gymnasium.registry.setdefault(name, spec)
        vars(self).update(state["own"])


def agent_ids(env: Any, name: str = "", reset_options: Mapping[str, Any] | None = None) -> list[AgentID]:
    """Returns the possible agents of an environment, or its agents after a reset if it does not name them.

    Args:
        env: The environment.
        name: Its name in messages; ``""`` to use the name of its class.
        reset_options: The ``options`` of the reset; None for none.

    Raises:
        EnvError: If the environment's own code raises.
    """
    if isinstance(env, (gymnasium.Env, VectorEnv)):
        return [DEFAULT_AGENT_ID]
    name = name or type(env).__name__
    with errors_named(f"{name}: possible_agents, or without it reset() and agents,"):
        possible = getattr(env, "possible_agents", None)
        if not possible:
            with Watched(lambda: f"{name}: reset(seed=0)"):
                env.reset(seed=0, **({} if reset_options is None else {"options": dict(reset_options)}))
            possible = env.agents
        return list(possible)


def env_name(env: Any) -> str:
    """Returns a short name that can be used in a path: ``"simple_spread_v3"`` for ``"mpe2.simple_spread_v3"``."""
    if not isinstance(env, str):
        text = getattr(env, "__name__", type(env).__name__)
    elif env in REGISTERED or env in gymnasium.registry:
        text = env
    else:
        module_name, _, attribute = importable_name(env).partition(":")
        last = module_name.rpartition(".")[2]
        text = last if attribute in ("", "parallel_env", "env", "raw_env") else f"{last}-{attribute}"
    return re.sub(r"[^\w.-]+", "-", text).strip("-.") or "env"


def env_to_json(env: Any) -> dict[str, Any]:
    """Converts an environment to JSON data with its name.

    An environment without an importable name is marked, so that ``env_from_json`` asks the user to pass it again.
    """
    if isinstance(env, str):
        return {"type": "registered" if env in REGISTERED else "name", "name": env}
    name = qualified_name(env)
    if name is not None:
        return {"type": "object", "name": name}
    return {"type": "not_importable", "name": getattr(env, "__qualname__", type(env).__qualname__)}


def env_from_json(data: Any, names: Names | None = None) -> Any:
    """Returns the environment that ``env_to_json`` described, for ``make_env``.

    Args:
        data: The JSON data.
        names: Resolves names; None to import from any of the user's modules.

    Raises:
        CheckpointError: If the environment cannot be found from the description alone.
    """
    match data:
        case {"type": "name", "name": str(name)}:
            return _checked_name(name, names or Names())
        case {"type": "object", "name": name}:
            return (names or Names()).resolve(name, _MAKER, who=_WHO)
        case {"type": "registered", "name": str(name)}:
            if name in REGISTERED:
                return name
            raise CheckpointError(
                f"env: the checkpoint was made with {name!r}, a name given to register_env, which is not "
                f"registered now. Call register_env({name!r}, ...) first."
            )
        case {"type": "not_importable", "name": name}:
            raise CheckpointError(
                f"env: the checkpoint was made with {name!r}, which cannot be imported by name. "
                f"Pass the environment again, or define it at the top of a module."
            )
    raise CheckpointError(f"env: expected the description of an environment, but got {brief(data)}.")


_WHO = "env of the checkpoint"
_PARTS = ("parallel_env", "env", "raw_env")
_SUITE_PACKAGES = frozenset(package.partition(".")[0] for package in SUITES.values())
_MADE_FROM_ANOTHER = frozenset({"GymV21Environment-v0", "GymV26Environment-v0"})
"""Gymnasium's ids that make an environment of the package gym whose name is in ``env_config``."""


def _could_make(found: Any) -> bool:
    """Whether a user's class or callable could be an environment or make one."""
    if isinstance(found, type):
        return all(callable(getattr(found, method, None)) for method in ("reset", "step"))
    return callable(found)


def _is_known_maker(found: Any) -> bool:
    """Whether a function has one of the names that PettingZoo and ``marl_envs`` use for functions that make envs."""
    name = getattr(found, "__qualname__", "")
    return is_function(found) and (name in (*_PARTS, "batched_env") or name.startswith("parallel_wrapper_fn.<locals>."))


_MAKER = Expected(
    "an environment's class, or a function that makes one",
    bases=(gymnasium.Env, VectorEnv, ParallelEnv, AECEnv),
    own=_could_make,
    known=_is_known_maker,
    packages=_SUITE_PACKAGES | {"gymnasium", *GYMNASIUM_NAMESPACES.values()},
)


def _checked_name(text: str, names: Names) -> str:
    """Returns an environment's name from a checkpoint after checking that it refers to an environment.

    Otherwise an arbitrary function could be called. Gymnasium's ids and names that were registered in this process are
    not checked.
    """
    name = text.strip()
    if name in _MADE_FROM_ANOTHER and not names.trusted:
        raise CheckpointError(f"{_WHO}: trusted=False refuses {name!r}, which makes environments of another package.")
    if name in REGISTERED or name.startswith(VMAS) or name in gymnasium.registry:
        return text
    if name.partition("/")[0] in GYMNASIUM_NAMESPACES:
        return text
    module_name, colon, attribute = importable_name(name).partition(":")
    if colon and attribute.replace(".", "").isidentifier():
        names.resolve(f"{module_name}:{attribute}", _MAKER, who=_WHO)
        return text
    module = names.import_module(module_name, _MAKER, who=_WHO)
    found = next((vars(module)[part] for part in _PARTS[:2] if callable(vars(module).get(part))), None)
    if not colon and not names.accepts(found, _MAKER, package=module_name.partition(".")[0]):
        raise CheckpointError(f"{_WHO}: expected the name of an environment, but {text!r} is a module that has none.")
    return text


_UNEXPECTED_KEY = re.compile(r"(?:([\w.<>]+)\.)?\w+\(\) got an unexpected keyword argument '(\w+)'")


def _accepted_keys(maker: EnvMaker) -> tuple[list[str], bool]:
    """Returns the keywords that are known to be accepted, and whether others may be accepted too."""
    keys, open_ended = list(maker.extra_keys), False
    for fn in maker.declared_by:
        parameters = parameters_of(fn).values()
        keys += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not open_ended:
            break
    return keys, open_ended


def check_keys(maker: EnvMaker, config: Mapping[str, Any]) -> None:
    """Raises a ConfigError for a key that ``make`` is known not to accept, with the closest accepted one."""
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
    """Calls the class or function that makes an environment.

    Args:
        maker: The class or function, and how to call it.
        config: The settings of the environment.
        render_mode: The render mode. It is only passed if it is accepted.
        num_envs: The number of sub-environments. It is only passed if there is such a parameter, or with ``vector``.
        vector: Whether ``make`` returns all sub-environments at once, so that it always gets ``num_envs``.

    Returns:
        The object that ``make`` returns.

    Raises:
        EnvError: If ``make`` fails.
        ConfigError: If ``make`` does not accept a key.
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
    """Returns the known keywords, and those of the class that refused one if the function's module contains it."""
    keys, _ = _accepted_keys(maker)
    modules = [sys.modules.get(getattr(fn, "__module__", "")) for fn in maker.declared_by]
    for value in (value for module in modules if module is not None for value in vars(module).values()):
        if inspect.isclass(value) and value.__qualname__ == qualified:
            return keys + [name for name in parameters_of(value) if name != "kwargs"]
    return keys
