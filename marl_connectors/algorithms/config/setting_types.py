"""The validators of config settings that accept more than a range or a list of values."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Mapping
from enum import Enum
from typing import Any

from marl_connectors.callbacks import Callbacks
from marl_connectors.connectors.builder_arguments import num_arguments
from marl_connectors.environments.registry.wrapper_names import checked_wrappers
from marl_connectors.policy_mapping import policy_mapping
from marl_connectors.rl_module.spec_fields import MODULE_ID, MODULE_IDS, SPACE
from marl_connectors.validators import (
    IMPORTABLE,
    Unfit,
    Validator,
    any_of,
    dict_of,
    either,
    function,
    imported,
    instance_of,
    list_of,
    number,
    one_of,
    optional,
    subclass_of,
    text,
)

_MODULE = "marl_connectors.rl_module.rl_module:RLModule"
_SPEC = "marl_connectors.rl_module.rl_module:RLModuleSpec"
_SPEC_OF_SEVERAL = "marl_connectors.rl_module.multi_rl_module:MultiRLModuleSpec"

ENVIRONMENT = optional(
    either(
        text("a name"),
        function(
            "a class or a function of env_config",
            hint="To use an environment object, pass a function that makes it.",
        ),
    )
)


def _path(given: Any) -> str:
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    return text().keep(given)


_PATH = Validator("a path", _path, text().schema)
PATH = optional(_PATH)


def _paths(given: Any) -> list[str]:
    if isinstance(given, (str, os.PathLike)):
        return [_path(given)]
    found = list(list_of(_PATH, "a list of paths").keep(given))
    if not found:
        raise Unfit("The list is empty.")
    return found


PATHS = optional(
    Validator(
        "a path or a list of paths",
        _paths,
        any_of(text().schema, {"type": "array", "items": text().schema, "minItems": 1}),
    )
)
ALWAYS_EPISODES = one_of(
    True, hint="Files hold episodes. to_parquet and from_parquet exchange tables of steps with other programs."
)
NAMES = {"type": "array", "items": text().schema}
WRAPPERS = Validator("a list of names and callables", checked_wrappers, any_of(NAMES, {"type": "null"}))
SPACES = optional(either(SPACE, dict_of(values=SPACE, expected="a dict {agent_id: space}")))
LONGEST_WAIT_S = 2e6
"""About the longest time that an operating system can wait in one call: 23 days."""


_OFF = one_of(False)
MASK_KEY = optional(
    either(
        one_of("auto"),
        text("a key"),
        Validator(_OFF.alternatives, lambda given: _OFF.keep(given) or None, _OFF.schema),
    )
)
"""``"auto"``, a key of observations or infos, or None; False stands for None."""


def or_empty(validator: Validator) -> Validator:
    """Accepts what a validator of dicts accepts, and None, which stands for an empty dict."""
    schema = any_of(validator.schema, {"type": "null"})
    return Validator(validator.alternatives, lambda given: {} if given is None else validator.keep(given), schema)


CUSTOM_RESOURCES = or_empty(dict_of(text(), number(above=0), expected="a dict {name of a resource: quantity}"))


def _vectorize_mode(given: Any) -> str:
    value = given.value if isinstance(given, Enum) else given
    return _VECTORIZE_MODES.keep(value.lower() if isinstance(value, str) else value)


_VECTORIZE_MODES = one_of("async", "sync", "vector_entry_point")  # the values of gymnasium.VectorizeMode
VECTORIZE_MODE = Validator(_VECTORIZE_MODES.alternatives, _vectorize_mode, _VECTORIZE_MODES.schema)


def _policies(given: Any) -> Any:
    if isinstance(given, str):
        raise Unfit(f"Write [{given!r}], or .multi_agent(policies={given!r}) for the shorthand of that name.")
    return _SPECS_OR_NONE.keep(given) if isinstance(given, Mapping) else MODULE_IDS.keep(given)


_SPECS_OR_NONE = dict_of(MODULE_ID, optional(instance_of(_SPEC, expected="an RLModuleSpec")))
POLICIES = optional(
    Validator(
        "a collection of module ids, or a dict {module_id: RLModuleSpec or None}",
        _policies,
        any_of(MODULE_IDS.schema, {"type": "object", "additionalProperties": {"type": "null"}}),
    )
)


def callable_with(*arguments: str, at_least: int, expected: str) -> Validator:
    """Accepts a function of these positional arguments, or of the first ones of them.

    Args:
        *arguments: The names of the arguments, for messages.
        at_least: The number of arguments that the function has to accept.
        expected: The ending of the sentence "expected ...".
    """

    def keep(given: Any) -> Any:
        function().keep(given)
        try:
            signature = inspect.signature(given)
        except ValueError:
            raise Unfit("Its signature is unknown. Put it into a function of yours.") from None
        for count in range(at_least, len(arguments) + 1):
            with contextlib.suppress(TypeError):
                signature.bind(*arguments[:count])
                return given
        raise Unfit(f"The function accepts {signature}, but it is called with ({', '.join(arguments)}).")

    return Validator(expected, keep, IMPORTABLE)


POLICIES_TO_TRAIN = optional(
    either(
        MODULE_IDS, callable_with("module_id", "batch", at_least=1, expected="fn(module_id) or fn(module_id, batch)")
    )
)
_MAPPING_FN = callable_with("agent_id", "episode", at_least=2, expected="fn(agent_id, episode, **kwargs)")
POLICY_MAPPING = Validator(
    ("'shared'", "'independent'", "'pattern=module,...'", _MAPPING_FN.expected),
    lambda given: _MAPPING_FN.keep(policy_mapping(given)),
    any_of({"enum": ["shared", "independent"]}, {"type": "string", "pattern": "="}, IMPORTABLE),
)


def builder(setting: str, num_given: int) -> Validator:
    """Accepts None, or a function of at most ``num_given`` arguments that makes connector pieces.

    In data, a list of names of pieces stands for the function.
    """

    def keep(given: Any) -> Any:
        num_arguments(setting, given, num_given)
        return given

    return optional(Validator("a function that makes connector pieces", keep, NAMES))


def _module_spec(given: Any) -> Any:
    if isinstance(given, type) and issubclass(given, imported(_MODULE)):
        cls: Any = given
        spec = "MultiRLModuleSpec" if cls.holds_modules else "RLModuleSpec"
        raise Unfit(f"Write {spec}({cls.__name__}).")
    if not isinstance(given, imported(_SPEC, _SPEC_OF_SEVERAL)):
        raise Unfit
    return given


MODULE_SPEC = optional(Validator("an RLModuleSpec or a MultiRLModuleSpec", _module_spec, IMPORTABLE))


def _callbacks_class(given: Any) -> Any:
    cls = given.func if isinstance(given, functools.partial) else given
    _CALLBACKS_CLASS.keep(cls)
    try:
        inspect.signature(given).bind()
    except TypeError as error:
        raise Unfit(f"{cls.__name__} is constructed without arguments, but it has a {error}.") from None
    return given


_CALLBACKS_CLASS = subclass_of(Callbacks)
_CALLBACKS = either(
    Validator(_CALLBACKS_CLASS.expected, _callbacks_class, IMPORTABLE),
    list_of(Validator(_CALLBACKS_CLASS.expected, _callbacks_class, IMPORTABLE), "a list of them"),
)
CALLBACKS = Validator(
    _CALLBACKS.alternatives,
    lambda given: Callbacks if given is None else _CALLBACKS.keep(given),
    any_of(_CALLBACKS.schema, {"type": "null"}),
)
FUNCTIONS = optional(either(function(), list_of(function(), "a list of functions")))
