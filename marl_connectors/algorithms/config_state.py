"""A config, and the specs of modules, as plain JSON data."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.environments.make_env import env_from_json, env_to_json
from marl_connectors.environments.wrappers import wrappers_from_json, wrappers_to_json
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.policy_mapping import import_attribute, mapping_from_json, mapping_to_json, qualified_name

_PASS_CONFIG = (
    "Build the config as you did then and pass it: Algorithm.from_checkpoint(path, config=...), or "
    "load_policy(path, config=...)."
)


def config_to_state(config: AlgorithmConfig) -> dict[str, Any]:
    """All settings; functions and classes by their importable names, or marked as not importable."""
    settings = config.to_dict()
    return {
        "class": qualified_name(type(config)),
        "settings": {name: to_state(settings[name], name) for name in settings},
    }


def config_from_state(state: Mapping[str, Any], *, skip: Collection[str] = (), **instead: Any) -> AlgorithmConfig:
    """The config that ``config_to_state`` wrote.

    Args:
        state: What it wrote.
        skip: Settings that are not to be read, and keep their defaults.
        **instead: Values of settings that are not to be read.

    Raises:
        CheckpointError: If it holds a function or class that cannot be imported.
    """
    if state["class"] is None:
        raise CheckpointError(f"checkpoint: the class of its config cannot be imported by name. {_PASS_CONFIG}")
    config: AlgorithmConfig = import_attribute(state["class"], who="checkpoint, config class", error=CheckpointError)()
    config.action_mask_key = None  # as before there was such a setting
    for name, value in state["settings"].items():
        if not hasattr(config, name):
            raise CheckpointError(f"checkpoint: its config has a setting {name!r} that this version does not know.")
        if name not in instead and name not in skip:
            setattr(config, name, from_state(value, name))
    for name, value in instead.items():
        setattr(config, name, value)
    return config


def to_state(value: Any, setting: str = "") -> Any:
    """A setting's value as JSON data."""
    if setting == "env":
        return env_to_json(value)
    if setting == "wrappers":
        return wrappers_to_json(value)
    if setting == "policy_mapping_fn":
        return mapping_to_json(value)
    return _encode(value)


def from_state(data: Any, setting: str) -> Any:
    """The value that ``to_state`` described.

    Raises:
        CheckpointError: If it holds a function or class that cannot be imported.
    """
    if setting == "env":
        return env_from_json(data)
    if setting == "wrappers":
        return wrappers_from_json(data)
    if setting == "policy_mapping_fn":
        return mapping_from_json(data)
    return _decode(data, setting)


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = qualified_name(type(value))
        own = {field.name: _encode(getattr(value, field.name)) for field in dataclasses.fields(value) if field.init}
        return {
            "__kind__": "dataclass" if name else "not importable",
            "class": name,
            "value": own if name else repr(value),
        }
    if isinstance(value, Space):
        try:
            return {"__kind__": "space", "value": spaces.to_json(value)}
        except ConfigError:
            return {"__kind__": "not importable", "value": repr(value)}
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
    return {"__kind__": "import" if name else "not importable", "value": name or repr(value)}


def _decode(data: Any, setting: str) -> Any:
    if not isinstance(data, dict):
        return data
    kind, value = data["__kind__"], data["value"]
    match kind:
        case "dataclass":
            cls = import_attribute(data["class"], who=f"checkpoint, setting {setting!r}", error=CheckpointError)
            return cls(**{name: _decode(own, setting) for name, own in value.items()})
        case "space":
            return spaces.from_json(value)
        case "dict":
            return {_decode(k, setting): _decode(v, setting) for k, v in value}
        case "list" | "tuple" | "set" | "frozenset":
            make = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind]
            return make(_decode(item, setting) for item in value)
        case "import":
            return import_attribute(value, who=f"checkpoint, setting {setting!r}", error=CheckpointError)
    raise CheckpointError(
        f"checkpoint: its setting {setting!r} was {value}, which cannot be found again by name. {_PASS_CONFIG}"
    )
