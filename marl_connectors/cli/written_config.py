"""Files with the settings of an AlgorithmConfig, which ``train --config`` reads."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors.algorithms.config.sections import sections
from marl_connectors.algorithms.config.settings import RunSettings
from marl_connectors.cli.config_files import FILES, layer_of, parsed
from marl_connectors.cli.config_settings import PIECES, SHORT_FORMS, policies_of
from marl_connectors.cli.known_algorithms import ALGORITHMS, algorithm_of, config_class
from marl_connectors.cli.presets import new_settings
from marl_connectors.cli.values import require_extras
from marl_connectors.connectors.named_pieces import NamedPieces
from marl_connectors.environments.making.registry import REGISTERED
from marl_connectors.errors import ConfigError
from marl_connectors.names import brief, qualified_name
from marl_connectors.policy_mapping import IndependentPolicies, PatternPolicies, SharedPolicy
from marl_connectors.programs import PROGRAM, command
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.validators import declared


class _NoData(Exception):
    """A value that a file with settings cannot hold."""


def write_config(config: Any, path: str | os.PathLike[str]) -> Path:
    """Writes a config, as ``AlgorithmConfig.to_file`` describes it."""
    target, who = Path(path), f"{type(config).__name__}.to_file"
    if target.suffix.lower() not in FILES:
        raise ConfigError(f"{who}: expected a path that ends in {', '.join(FILES)}, but got {str(target)!r}.")
    algo = algorithm_of(config)
    if algo not in ALGORITHMS or type(config) is not config_class(algo):
        raise ConfigError(
            f"{who}: a file can name {', '.join(ALGORITHMS)}, but not a {type(config).__name__}. {_in_python()}"
        )
    if config.env is None:
        raise ConfigError(f"{who}: the config has no environment. Call .environment(env=...).")
    of_run = declared(RunSettings)
    names = {"env", *(name for name in of_run if not _is_like(name, getattr(config, name), getattr(RunSettings, name)))}
    while True:  # what a setting is unless it is written may depend on others
        text = _text(_data_of(config, algo, names, who, target), target)
        read = new_settings(layer_of(parsed(text, target), target)).make_own_config()
        compared = config.to_dict().keys() - of_run
        differ = {name for name in compared if not _is_like(name, getattr(read, name), getattr(config, name))}
        if not differ:
            target.write_text(text, encoding="utf-8")
            return target
        if differ <= names:
            raise _unwritable(who, {name: getattr(config, name) for name in sorted(differ)})
        names |= differ


def _data_of(config: Any, algo: str, names: Collection[str], who: str, path: Path) -> dict[str, Any]:
    """Returns the content of the file with some settings of the config, in the order of its sections.

    Raises:
        ConfigError: If settings cannot be written. Names all of them.
    """
    is_json, wrong = path.suffix.lower() == ".json", {}
    found: dict[str, Any] = {"algo": algo, "preset": False}
    places = {own.name: (part, arg) for part, args in sections(type(config)).items() for arg, own in args.items()}
    for name in (each for each in declared(type(config)) if each in names):
        value = getattr(config, name)
        try:
            section, argument = places[name]
            place = found if name == "env" else found.setdefault(section, {})
            place[argument] = _as_data(name, value, is_json)
        except (KeyError, _NoData):
            wrong[name] = value
    if wrong:
        raise _unwritable(who, wrong)
    return found


def _text(data: Mapping[str, Any], path: Path) -> str:
    if path.suffix.lower() == ".json":
        return json.dumps(data, indent=2) + "\n"
    require_extras("yaml")
    import yaml

    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _as_data(name: str, value: Any, is_json: bool) -> Any:
    """Returns the data that stands for the value of a setting in a file.

    Raises:
        _NoData: If there is none.
    """
    if name == "env" and value in REGISTERED:
        raise _NoData  # by this process alone
    if (value is None and name != "model_config") or type(value) in (bool, int, str):
        return value
    if isinstance(value, (float, np.generic)):
        number = value.item() if isinstance(value, np.generic) else value
        if is_json and isinstance(number, float) and not math.isfinite(number):
            raise _NoData
        return number
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, NamedPieces):
        return list(value.names)
    if isinstance(value, (SharedPolicy, IndependentPolicies, PatternPolicies)) and "policies" in policies_of(value):
        return policies_of(value)["policies"]
    if name == "model_config":
        own = _model(value)
        value = {key: own.get(key, getattr(DefaultModelConfig(), key)) for key in (*SHORT_FORMS, *own)}
        name = ""
    if isinstance(value, Mapping):
        if is_json and not all(isinstance(key, str) for key in value):
            raise _NoData
        return {_as_data(name, key, is_json): _as_data(name, own, is_json) for key, own in value.items()}
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if isinstance(value, (list, tuple)):
        return [_as_data(name, own, is_json) for own in value]
    found = qualified_name(value) if callable(value) else None
    if found is None:
        raise _NoData
    return [found] if name in PIECES else found


def _is_like(name: str, one: Any, other: Any) -> bool:
    """Whether two values of a setting mean the same."""
    if name == "seed" and other is None:
        return True  # a run of the command line has a seed
    try:
        return _comparable(name, one) == _comparable(name, other)
    except (TypeError, ValueError, _NoData):
        return False


def _comparable(name: str, value: Any) -> Any:
    if name == "model_config":
        value = _model(value)
    if name == "policies" and isinstance(value, Mapping) and not any(value.values()):
        value = list(value)
    if isinstance(value, Mapping):
        return {key: _comparable("", own) for key, own in value.items()}
    if isinstance(value, (set, frozenset)):
        value = sorted(value)
    if isinstance(value, (list, tuple)):
        return [_comparable(name if name == "wrappers" else "", own) for own in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, NamedPieces):
        return list(value.names)
    if name in PIECES and value is not None:
        return [qualified_name(value)]
    if name in ("env", "wrappers") and callable(value):
        return qualified_name(value)
    return value


def _model(value: Any) -> dict[str, Any]:
    """Returns the settings of modules that differ from the defaults.

    Raises:
        _NoData: If they are in an object of a user's class.
    """
    if not (value is None or isinstance(value, (Mapping, DefaultModelConfig))):
        raise _NoData
    own = dict(value or {}) if value is None or isinstance(value, Mapping) else vars(value)
    default = DefaultModelConfig()
    return {
        key: each
        for key, each in own.items()
        if not hasattr(default, key) or _comparable("", each) != _comparable("", getattr(default, key))
    }


def _unwritable(who: str, settings: Mapping[str, Any]) -> ConfigError:
    shown = ", ".join(f"{name}={brief(value)}" for name, value in settings.items())
    return ConfigError(
        f"{who}: a file cannot hold {shown}. It holds data, and the names of classes and functions at the top of "
        f"modules that can be imported; only YAML has infinity, and keys that are not text. {_in_python()}"
    )


def _in_python() -> str:
    return (
        f"Train from the Python file that makes the config instead: {command(PROGRAM, 'train', '--config', 'FILE.py')}"
    )
