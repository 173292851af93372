"""A config as plain JSON data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.environments.make_env import env_from_json, env_to_json
from marl_connectors.environments.wrappers import wrappers_from_json, wrappers_to_json
from marl_connectors.errors import CheckpointError
from marl_connectors.policy_mapping import import_attribute, mapping_from_json, mapping_to_json, qualified_name
from marl_connectors.rl_module.default_model_config import DefaultModelConfig


def config_to_state(config: AlgorithmConfig) -> dict[str, Any]:
    """All settings; functions and classes by their importable names, or marked as not importable."""
    state = {name: _encode(value) for name, value in config.to_dict().items()}
    state["env"] = env_to_json(config.env)
    state["wrappers"] = wrappers_to_json(config.wrappers)
    state["policy_mapping_fn"] = mapping_to_json(config.policy_mapping_fn)
    return {"class": qualified_name(type(config)), "settings": state}


def config_from_state(state: Mapping[str, Any]) -> AlgorithmConfig:
    """The config that ``config_to_state`` wrote.

    Raises:
        CheckpointError: If it holds a function or class that cannot be imported.
    """
    if state["class"] is None:
        raise CheckpointError(
            "checkpoint: the class of its config cannot be imported by name. Build the config as you did then and pass "
            "it: Algorithm.from_checkpoint(path, config=...)."
        )
    config: AlgorithmConfig = import_attribute(state["class"], who="checkpoint, config class", error=CheckpointError)()
    for name, value in state["settings"].items():
        if name == "env":
            config.env = env_from_json(value)
        elif name == "wrappers":
            config.wrappers = wrappers_from_json(value)
        elif name == "policy_mapping_fn":
            config.policy_mapping_fn = mapping_from_json(value)
        elif hasattr(config, name):
            setattr(config, name, _decode(value, name))
        else:
            raise CheckpointError(f"checkpoint: its config has a setting {name!r} that this version does not know.")
    return config


def _encode(value: Any) -> Any:
    if isinstance(value, DefaultModelConfig):
        return {"__kind__": "DefaultModelConfig", "class": qualified_name(type(value)), "value": value.to_dict()}
    if isinstance(value, Space):
        return {"__kind__": "space", "value": spaces.to_json(value)}
    if isinstance(value, dict):
        return {"__kind__": "dict", "value": [[_encode(k), _encode(v)] for k, v in value.items()]}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return {"__kind__": type(value).__name__, "value": [_encode(item) for item in items]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    name = qualified_name(value)
    return {"__kind__": "import" if name else "not importable", "value": name or repr(value)}


def _decode(data: Any, setting: str) -> Any:
    if not isinstance(data, dict):
        return data
    kind, value = data["__kind__"], data["value"]
    match kind:
        case "DefaultModelConfig":
            name = data.get("class") or qualified_name(DefaultModelConfig)
            return import_attribute(name, who=f"checkpoint, setting {setting!r}", error=CheckpointError).of(value)
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
        f"checkpoint: its setting {setting!r} was {value}, which cannot be found again by name. Build the config as "
        f"you did then and pass it: Algorithm.from_checkpoint(path, config=...)."
    )
