"""A config, and the specs of modules, as plain JSON data."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config.sections import settings_of_algorithm
from marl_connectors.callbacks import CALLBACK_NAMES, Callbacks, Success
from marl_connectors.connectors.named_pieces import NamedPieces
from marl_connectors.environments.registry.factory import env_from_json, env_to_json
from marl_connectors.environments.registry.wrappers import wrappers_from_json, wrappers_to_json
from marl_connectors.errors import CheckpointError, ConfigError, did_you_mean
from marl_connectors.learner.learner import Learner
from marl_connectors.names import LIBRARY, Expected, Names, brief, is_function, qualified_name
from marl_connectors.policy_mapping import (
    IndependentPolicies,
    OneAgainst,
    PatternPolicies,
    SharedPolicy,
    mapping_from_json,
    mapping_to_json,
)
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec
from marl_connectors.state import State, fields_of, read_state
from marl_connectors.typing import ModuleID

_PASS_CONFIG = (
    "Build the config again and pass it: Algorithm.from_checkpoint(path, config=...), or load_policy(path, config=...)."
)
_OF_PIECES = ("env_to_module_connector", "module_to_env_connector", "learner_connector")
_PIECES = "pieces"
"""The kind of NamedPieces, which those settings can have."""


class ConfigState(State):
    """The state of a config.

    Attributes:
        class_name: The importable name of its class; None if it has none.
        settings: The settings as JSON data. Functions and classes are importable names, or marked as not importable.
    """

    class_name: str | None
    settings: dict[str, Any]


def config_to_state(config: AlgorithmConfig) -> ConfigState:
    """Returns all settings."""
    return _state_of(config, config.to_dict())


def _state_of(config: AlgorithmConfig, names: Iterable[str]) -> ConfigState:
    settings = {name: to_state(getattr(config, name), name) for name in names}
    return ConfigState(class_name=qualified_name(type(config)), settings=settings)


def config_class_of(state: ConfigState, names: Names) -> type[AlgorithmConfig]:
    """Returns the class of the config that ``config_to_state`` described.

    Raises:
        CheckpointError: If it cannot be imported, or is none of a config.
    """
    return names.resolve(state.class_name, _CONFIG_CLASS, who="checkpoint, config class")


def config_from_state(
    state: ConfigState, *, names: Names | None = None, skip: Collection[str] = (), **instead: Any
) -> AlgorithmConfig:
    """Returns the config that ``config_to_state`` described.

    Args:
        state: The description.
        names: Looks up the names in it; if None, the user's modules are imported.
        skip: Settings that are not read, and keep their defaults.
        **instead: Values for settings that are not read.

    Raises:
        CheckpointError: If the description names a function or class that cannot be imported or is of the wrong kind,
            or has a value that a setting cannot have.
    """
    names = names or Names()
    if state.class_name is None:
        raise CheckpointError(f"checkpoint: the class of its config cannot be imported by name. {_PASS_CONFIG}")
    config = config_class_of(state, names)()
    known = config.to_dict()
    for name, value in state.settings.items():
        if name not in known:
            raise CheckpointError(f"checkpoint: its config has a setting {name!r} that this version does not know.")
        if name not in instead and name not in skip:
            kept = from_state(value, name, names)
            try:
                setattr(config, name, kept)
            except ConfigError as error:
                raise CheckpointError(f"checkpoint: its config is damaged. {error}") from error
    for name, value in instead.items():
        setattr(config, name, value)
    return config


def to_state(value: Any, setting: str = "") -> Any:
    """Returns a setting's value as JSON data."""
    if setting in _OWN_FORMS:
        return _OWN_FORMS[setting][0](value)
    if isinstance(value, NamedPieces):
        return {"__kind__": _PIECES, "value": value.to_json()}
    return _encode(value)


def from_state(data: Any, setting: str, names: Names | None = None) -> Any:
    """Returns the value that ``to_state`` described.

    Args:
        data: The description.
        setting: The name of the setting, or of the field of a module's spec.
        names: Looks up the names in it; if None, the user's modules are imported.

    Raises:
        CheckpointError: If it is not such a description, or names a function or class that cannot be imported or is of
            the wrong kind.
    """
    names = names or Names()
    if setting in _OWN_FORMS:
        return _OWN_FORMS[setting][1](data, names)
    if setting in _OF_PIECES and isinstance(data, Mapping) and data.get("__kind__") == _PIECES:
        return NamedPieces.from_json(data.get("value"), names)
    return _Decoder(setting, names).decode(data, _EXPECTED.get(setting, _NOTHING))


def _algorithms_to_state(configs: Mapping[str, AlgorithmConfig]) -> list[Any]:
    """Returns the configs of several algorithms as JSON data: the settings that each has for itself."""
    return [
        [pattern, fields_of(_state_of(config, sorted(settings_of_algorithm(type(config)))))]
        for pattern, config in configs.items()
    ]


def _algorithms_from_state(data: Any, names: Names) -> dict[str, AlgorithmConfig]:
    match data:
        case list(pairs) if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            of_run: dict[str, Any] = {"action_mask_key": AlgorithmConfig.action_mask_key}
            return {
                pattern: config_from_state(read_state(ConfigState, own), names=names, **of_run)
                for pattern, own in pairs
            }
    raise CheckpointError(f"checkpoint, setting 'algorithm_configs': expected pairs, but it is {brief(data)}.")


_OWN_FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Names], Any]]] = {
    "env": (env_to_json, env_from_json),
    "wrappers": (wrappers_to_json, wrappers_from_json),
    "policy_mapping_fn": (mapping_to_json, mapping_from_json),
    "algorithm_configs": (_algorithms_to_state, _algorithms_from_state),
}
"""The settings with a JSON form of their own: what writes it, and what reads it."""


def arguments_from_state(data: Any, who: str, names: Names) -> Any:
    """Returns arguments of a constructor that ``to_state`` described: plain values, spaces, your classes and functions.

    Raises:
        CheckpointError: If it is no such description, or names something that cannot be imported.
    """
    return _Decoder(who, names).decode(data, _VALUE)


# Modules.


class ModuleMade(State, tag_field="kind", tag="module"):
    """How a module was made.

    Attributes:
        spec: Its spec as JSON data.
    """

    spec: dict[str, Any]

    @classmethod
    def of(cls, module: RLModule) -> ModuleMade:
        """Describes a module."""
        return cls(spec=to_state(RLModuleSpec.from_module(module)))

    def made(self, names: Names) -> RLModule:
        """Returns a module that is made in the same way."""
        return self.restored_spec(names).build()

    def restored_spec(
        self, names: Names, module_id: ModuleID | None = None, instead: RLModuleSpec | None = None
    ) -> RLModuleSpec:
        """Returns the spec, without a path of parameters.

        Args:
            names: Looks up the names in it.
            module_id: The module's id for messages, if it is one of several.
            instead: Has values for the fields that cannot be imported by name.

        Raises:
            CheckpointError: If it is not such a description, or cannot be imported by name.
        """
        of = "the module" if module_id is None else f"module {module_id!r}"
        cls, own = _Decoder(f"spec of {of}", names).dataclass(self.spec, _NOTHING)
        if cls is not RLModuleSpec:
            raise CheckpointError(f"checkpoint: expected {of} to have an RLModuleSpec.")
        found: dict[str, Any] = {}
        for name, value in own.items():
            try:
                found[name] = _Decoder(f"{name} of {of}", names).decode(value, _EXPECTED.get(name, _NOTHING))
            except CheckpointError as error:
                found[name] = getattr(instead, name, None)
                if found[name] is None:
                    saved = value.get("value") if isinstance(value, dict) else value
                    how = "Make it yourself, and call its restore_from_path(path)."
                    if module_id is not None:
                        how = (
                            f"Pass a config that has it: .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs="
                            f"{{{module_id!r}: RLModuleSpec({name}=...)}}))."
                        )
                    raise CheckpointError(
                        f"checkpoint: the {name} of {of} was {brief(saved)}, which cannot be imported by name. {how} "
                        f"({error})"
                    ) from error
        return RLModuleSpec(**{**found, "load_state_path": None})


class ModulesMade(State, tag_field="kind", tag="modules"):
    """How the modules of a MultiRLModule were made.

    Attributes:
        multi_rl_module: Its spec as JSON data, without those of its modules.
        specs: The spec of each module as JSON data.
    """

    multi_rl_module: dict[str, Any]
    specs: dict[ModuleID, dict[str, Any]]

    @classmethod
    def of(cls, modules: MultiRLModule) -> ModulesMade:
        """Describes modules."""
        multi = MultiRLModuleSpec.from_module(modules)
        specs: Any = multi.rl_module_specs
        return cls(
            multi_rl_module=to_state(dataclasses.replace(multi, rl_module_specs={})),
            specs={module_id: to_state(spec) for module_id, spec in specs.items()},
        )

    def module(self, module_id: ModuleID) -> ModuleMade:
        """Returns how one of the modules was made."""
        return ModuleMade(spec=self.specs[module_id])

    def made(self, names: Names) -> MultiRLModule:
        """Returns modules that are made in the same way."""
        return self.restored_spec(names).build()

    def restored_spec(self, names: Names, specs: Mapping[ModuleID, RLModuleSpec] | None = None) -> MultiRLModuleSpec:
        """Returns the spec, without a path of parameters. ``specs`` replaces those of its modules."""
        if specs is None:
            specs = {module_id: self.module(module_id).restored_spec(names, module_id) for module_id in self.specs}
        multi = from_state(self.multi_rl_module, "rl_module_spec", names)
        if not isinstance(multi, MultiRLModuleSpec):
            raise CheckpointError(f"checkpoint: expected the spec of a MultiRLModule, but it is {brief(multi)}.")
        return dataclasses.replace(multi, rl_module_specs=specs, load_state_path=None)


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = qualified_name(type(value))
        own = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {
            "__kind__": "dataclass" if name else "not importable",
            "class": name,
            "value": own if name else _described(value),
        }
    if isinstance(value, Space):
        try:
            return {"__kind__": "space", "value": spaces.to_json(value)}
        except ConfigError:
            return {"__kind__": "not importable", "value": _described(value)}
    if isinstance(value, dict):
        return {"__kind__": "dict", "value": [[_encode(k), _encode(v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return {"__kind__": type(value).__name__, "value": [_encode(item) for item in items]}
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    name = qualified_name(value)
    return {"__kind__": "import" if name else "not importable", "value": name or _described(value)}


def _described(value: Any) -> str:
    """Returns the repr without memory addresses, so that the checkpoints of two equal runs are the same."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


# What names may stand for.

_CONFIG_CLASS = Expected("a subclass of AlgorithmConfig", bases=(AlgorithmConfig,))
_FUNCTION = Expected("a function", own=is_function)
_NOTHING = Expected("a plain value")
"""Accepts no object, for places where no name is expected."""


_VALUE = Expected(
    "a class or function of yours, or a layer, an optimizer or a number type",
    bases=(torch.nn.Module, torch.optim.Optimizer, np.generic),
    own=lambda found: isinstance(found, type) or is_function(found),
)
"""The names in settings that users fill freely: env_config, model_config, reset_options."""


def _is_measure_of_zoo(found: Any) -> bool:
    return is_function(found) and found.__module__.startswith("marl_connectors.zoo.")


_SPEC = Expected("an RLModuleSpec or MultiRLModuleSpec", bases=(RLModuleSpec, MultiRLModuleSpec))
_EXPECTED: dict[str, Expected] = {
    "callbacks_class": Expected("a subclass of Callbacks", bases=(Callbacks,)),
    "catalog_class": Expected("a class of yours", own=lambda found: isinstance(found, type)),
    "env_config": _VALUE,
    "env_to_module_connector": _FUNCTION,
    "measure": Expected("a function of an environment and an episode", own=is_function, known=_is_measure_of_zoo),
    "learner_class": Expected("a subclass of Learner", bases=(Learner,)),
    "learner_config_dict": _VALUE,
    "learner_connector": _FUNCTION,
    "model_config": _VALUE,
    "module_class": Expected("a subclass of RLModule", bases=(RLModule,)),
    "module_to_env_connector": _FUNCTION,
    "multi_rl_module_class": Expected("a subclass of MultiRLModule", bases=(MultiRLModule,)),
    "policies": _SPEC,
    "policies_to_train": _FUNCTION,
    "policy_mapping_fn": _FUNCTION,
    "reset_options": _VALUE,
    "rl_module_spec": _SPEC,
    **{f"callbacks_{name}": _FUNCTION for name in CALLBACK_NAMES},
}
"""The objects that names may stand for, by setting or field of a module's spec. Others must not contain names."""

_DATACLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        DefaultModelConfig,
        IndependentPolicies,
        MultiRLModuleSpec,
        OneAgainst,
        PatternPolicies,
        RLModuleSpec,
        SharedPolicy,
        Success,
    )
}
"""This library's dataclasses that settings may hold, by their names, so that their modules can move."""


def _is_dataclass(found: Any) -> bool:
    return isinstance(found, type) and dataclasses.is_dataclass(found)


_DATACLASS = Expected("a dataclass of yours", bases=(DefaultModelConfig,), own=_is_dataclass)
_CALLABLE_DATACLASS = Expected(
    "a dataclass of yours with a method __call__",
    own=lambda found: _is_dataclass(found) and any("__call__" in vars(base) for base in found.__mro__),
)
_TORCH_FUNCTIONS = {module.__name__: module for module in (torch.nn.functional, torch.nn.init)}
_PLAIN_TYPES: dict[str, type] = {
    f"builtins:{cls.__name__}": cls for cls in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple)
}
_COLLECTIONS: dict[str, type] = {cls.__name__: cls for cls in (list, tuple, set, frozenset)}


class _Decoder:
    """Reads the description of one setting that ``_encode`` wrote."""

    def __init__(self, setting: str, names: Names):
        self._setting = setting
        self._names = names
        self._who = f"checkpoint, setting {setting!r}"

    def decode(self, data: Any, expected: Expected) -> Any:
        """Returns the described value. ``expected`` says what names in it may stand for."""
        if data is None or isinstance(data, (bool, int, float, str)):
            return data
        match data:
            case {"__kind__": "dataclass"}:
                cls, own = self.dataclass(data, expected)
                return cls(**{name: self.decode(value, self._inside(name, expected)) for name, value in own.items()})
            case {"__kind__": "space", "value": value}:
                return spaces.from_json(value)
            case {"__kind__": "dict", "value": list(pairs)}:
                return dict(self._item(pair, expected) for pair in pairs)
            case {"__kind__": str(kind), "value": list(items)} if kind in _COLLECTIONS:
                return _COLLECTIONS[kind](self.decode(item, expected) for item in items)
            case {"__kind__": "import", "value": name}:
                return self._named(name, expected)
            case {"__kind__": "not importable", "value": value}:
                raise CheckpointError(
                    f"checkpoint: its setting {self._setting!r} was {brief(value)}, which cannot be imported by "
                    f"name. {_PASS_CONFIG}"
                )
        raise CheckpointError(f"{self._who}: expected the description of a value, but it is {brief(data)}.")

    def dataclass(self, data: Any, expected: Expected) -> tuple[type, dict[str, Any]]:
        """Returns the class and the encoded fields of a described dataclass."""
        match data:
            case {"__kind__": "dataclass", "class": str(name), "value": dict(own)}:
                pass
            case _:
                raise CheckpointError(f"{self._who}: expected the description of a dataclass, but it is {brief(data)}.")
        package = name.partition(":")[0].partition(".")[0]
        cls: Any = _DATACLASSES.get(name.rpartition(":")[2]) if package in LIBRARY else None
        if cls is None:
            kind = _DATACLASS if expected is _VALUE else _CALLABLE_DATACLASS if expected is _FUNCTION else expected
            cls = self._names.resolve(name, kind, who=self._who)
        if not _is_dataclass(cls):
            raise CheckpointError(f"{self._who}: expected a dataclass, but {name!r} is another class.")
        known = [field.name for field in dataclasses.fields(cls) if field.init]
        for key in own:
            if key not in known:
                raise CheckpointError(f"{self._who}: {cls.__name__} has no field {key!r}. {did_you_mean(key, known)}")
        return cls, own

    def _item(self, pair: Any, expected: Expected) -> tuple[Any, Any]:
        key, value = pair
        key = self.decode(key, _NOTHING)
        return key, self.decode(value, self._inside(key, expected))

    @staticmethod
    def _inside(name: Any, expected: Expected) -> Expected:
        """Returns the objects that names under a key or in a field may stand for."""
        return expected if expected is _VALUE else _EXPECTED.get(name, expected)

    def _named(self, name: Any, expected: Expected) -> Any:
        if expected is _VALUE and isinstance(name, str):
            module_name, _, attribute = name.partition(":")
            if name in _PLAIN_TYPES:
                return _PLAIN_TYPES[name]
            if module_name == "numpy" and isinstance(found := vars(np).get(attribute), type):
                if issubclass(found, np.generic):
                    return found
            elif module_name in _TORCH_FUNCTIONS and not attribute.startswith("_"):
                found = vars(_TORCH_FUNCTIONS[module_name]).get(attribute)
                if is_function(found) and found.__module__ == module_name:
                    return found
        return self._names.resolve(name, expected, who=self._who)
