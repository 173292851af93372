"""Validators for the settings of a config, and the sections that take the settings.

A section is a method that takes settings by name, so its signature is the list of its settings.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from gymnasium import VectorizeMode

from marl_connectors.callbacks import Callbacks
from marl_connectors.connectors.defaults import num_arguments
from marl_connectors.environments.making.wrappers import checked_wrappers
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.policy_mapping import policy_mapping
from marl_connectors.rl_module.multi_rl_module_spec import MODULE_IDS, MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import SPACE, RLModule, RLModuleSpec
from marl_connectors.validators import (
    Unfit,
    Validator,
    dict_of,
    either,
    function,
    instance_of,
    list_of,
    one_of,
    optional,
    subclass_of,
    text,
)

# What the settings may be --------------------------------------------------------------------------------------------

ENVIRONMENT = optional(
    either(
        text("a name"),
        function(
            "a class or a function of env_config",
            hint="To use an environment that you have made, give a function that makes it.",
        ),
    )
)
WRAPPERS = Validator("a list of names and callables", checked_wrappers)
SPACES = optional(either(SPACE, dict_of(values=SPACE, expected="a dict {agent_id: space}")))
IN_THIS_PROCESS = one_of(
    0,
    hint="This version samples and learns in one process. Set 0, and more num_envs_per_env_runner for larger batches.",
)
LONGEST_WAIT_S = 2e6
"""About what an operating system can wait in one call: 23 days."""


_OFF = one_of(False)
MASK_KEY = optional(
    either(one_of("auto"), text("a key"), Validator(_OFF.alternatives, lambda given: _OFF.keep(given) or None))
)
"""``"auto"``, a key of observations or infos, or None; False stands for None."""


def or_empty(validator: Validator) -> Validator:
    """Accepts what a validator of dicts accepts, and None, which stands for an empty dict."""
    return Validator(validator.alternatives, lambda given: {} if given is None else validator.keep(given))


def _vectorize_mode(given: Any) -> str:
    value = given.value if isinstance(given, VectorizeMode) else given
    return _VECTORIZE_MODES.keep(value.lower() if isinstance(value, str) else value)


_VECTORIZE_MODES = one_of(*(mode.value for mode in VectorizeMode))
VECTORIZE_MODE = Validator(_VECTORIZE_MODES.alternatives, _vectorize_mode)


def _policies(given: Any) -> Any:
    if isinstance(given, str):
        raise Unfit(f"Write [{given!r}], or .multi_agent(policies={given!r}) for what such a text stands for there.")
    return _SPECS_OR_NONE.keep(given) if isinstance(given, Mapping) else MODULE_IDS.keep(given)


_SPECS_OR_NONE = dict_of(text(), optional(instance_of(RLModuleSpec, expected="an RLModuleSpec")))
POLICIES = optional(Validator("a collection of module ids, or a dict {module_id: RLModuleSpec or None}", _policies))


def callable_with(*arguments: str, at_least: int, expected: str) -> Validator:
    """Accepts a function of these positional arguments, or of the first ones of them.

    Args:
        *arguments: The names of the arguments, for messages.
        at_least: The number of arguments that the function has to take.
        expected: The ending of the sentence "expected ...".
    """

    def keep(given: Any) -> Any:
        function().keep(given)
        try:
            signature = inspect.signature(given)
        except ValueError:
            raise Unfit("It does not say which arguments it takes. Put it into a function of yours.") from None
        for number in range(at_least, len(arguments) + 1):
            with contextlib.suppress(TypeError):
                signature.bind(*arguments[:number])
                return given
        raise Unfit(f"The function takes {signature}, but it is called with ({', '.join(arguments)}).")

    return Validator(expected, keep)


POLICIES_TO_TRAIN = optional(
    either(
        MODULE_IDS, callable_with("module_id", "batch", at_least=1, expected="fn(module_id) or fn(module_id, batch)")
    )
)
_MAPPING_FN = callable_with("agent_id", "episode", at_least=2, expected="fn(agent_id, episode, **kwargs)")
POLICY_MAPPING = Validator(
    ("'shared'", "'independent'", "'pattern=module,...'", _MAPPING_FN.expected),
    lambda given: _MAPPING_FN.keep(policy_mapping(given)),
)


def builder(setting: str, num_given: int) -> Validator:
    """Accepts None, or a function of at most ``num_given`` arguments that makes connector pieces."""

    def keep(given: Any) -> Any:
        num_arguments(setting, given, num_given)
        return given

    return optional(Validator("a function that makes connector pieces", keep))


def _module_spec(given: Any) -> Any:
    if isinstance(given, type) and issubclass(given, RLModule):
        raise Unfit(f"Write RLModuleSpec({given.__name__}).")
    if not isinstance(given, (RLModuleSpec, MultiRLModuleSpec)):
        raise Unfit
    return given


MODULE_SPEC = optional(Validator("an RLModuleSpec or a MultiRLModuleSpec", _module_spec))


def _callbacks_class(given: Any) -> Any:
    cls = given.func if isinstance(given, functools.partial) else given
    _CALLBACKS_CLASS.keep(cls)
    try:
        inspect.signature(given).bind()
    except TypeError as error:
        raise Unfit(f"{cls.__name__} is made without arguments, but it has a {error}.") from None
    return given


_CALLBACKS_CLASS = subclass_of(Callbacks)
_CALLBACKS = either(
    Validator(_CALLBACKS_CLASS.expected, _callbacks_class),
    list_of(Validator(_CALLBACKS_CLASS.expected, _callbacks_class), "a list of them"),
)
CALLBACKS = Validator(_CALLBACKS.alternatives, lambda given: Callbacks if given is None else _CALLBACKS.keep(given))
FUNCTIONS = optional(either(function(), list_of(function(), "a list of functions")))


# Sections -----------------------------------------------------------------------------------------------------------


class HasSettings(Protocol):
    """The interface of a class that has sections."""

    def _store(self, settings: Mapping[str, Any], who: str) -> None: ...


_Config = TypeVar("_Config", bound="HasSettings")
_Settings = ParamSpec("_Settings")
UNSET: Any = object()
"""The default of every setting in a section's signature: leaves the setting as it is."""


def section(
    method: Callable[Concatenate[_Config, _Settings], dict[str, Any] | None],
) -> Callable[Concatenate[_Config, _Settings], _Config]:
    """Makes a method that takes settings, stores them under their own names, and gives the config back.

    The method's signature lists the settings. Its body only handles settings that need more than storing, and returns
    a dict of names and values to store instead (or None).
    """
    return _section(method, inspect.signature(method))


def section_of(
    settings: type,
) -> Callable[
    [Callable[Concatenate[_Config, _Settings], dict[str, Any] | None]],
    Callable[Concatenate[_Config, _Settings], _Config],
]:
    """Like ``section``, for a method ``(self, **settings: Unpack[...])`` whose TypedDict lists the settings.

    A TypedDict that extends another one has the settings of both. So algorithms do not repeat inherited settings.
    """
    signature = inspect.Signature(
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=UNSET, annotation=kind.__forward_arg__)
                for name, kind in settings.__annotations__.items()
            ),
        ]
    )
    return lambda method: _section(method, signature)


def _section(
    method: Callable[Concatenate[_Config, _Settings], dict[str, Any] | None], signature: inspect.Signature
) -> Callable[Concatenate[_Config, _Settings], _Config]:
    own = [parameter for name, parameter in signature.parameters.items() if name != "self"]
    names = [parameter.name for parameter in own]
    positional = [parameter.name for parameter in own if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]

    @functools.wraps(method)
    def wrapper(self: _Config, *args: _Settings.args, **given: _Settings.kwargs) -> _Config:
        who = f"{type(self).__name__}.{method.__name__}"
        for name in given:
            if name not in names:
                raise ConfigError(f"{who}: unknown setting {name!r}. {did_you_mean(name, names)}")
        if len(args) > len(positional) or any(name in given for name in positional[: len(args)]):
            first = f"only {positional[0]!r} may come without its name, and once" if positional else "all need a name"
            raise ConfigError(f"{who}: of its settings {first}. Write {method.__name__}({names[0]}=..., ...).")
        settings: dict[str, Any] = {**dict(zip(positional, args, strict=False)), **given}
        instead = method(self, **settings) or {}  # type: ignore[call-arg]
        self._store({name: v for name, v in {**settings, **instead}.items() if v is not UNSET}, who)
        return self

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    return wrapper
