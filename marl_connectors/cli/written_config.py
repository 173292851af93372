"""Files with the settings of an AlgorithmConfig, which ``train --config`` reads."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_connectors.algorithms.config.algorithm_config import is_same
from marl_connectors.cli.known_algorithms import ALGORITHMS, algorithm_of, config_class
from marl_connectors.cli.layers import FILES, defaults
from marl_connectors.cli.tree import (
    BATCH_SIZE,
    ENV,
    MAPPING,
    MINIBATCH_SIZE,
    MODEL,
    MODULES,
    NUM_ENVS_EACH,
    PIECES,
    RUN,
    SEED,
    nested,
    places,
)
from marl_connectors.cli.values import require_extras
from marl_connectors.connectors.named_pieces import NamedPieces
from marl_connectors.environments.registry.registry import REGISTERED
from marl_connectors.errors import ConfigError
from marl_connectors.names import brief, qualified_name
from marl_connectors.policy_mapping import IndependentPolicies, PatternPolicies, SharedPolicy
from marl_connectors.programs import PROGRAM, command
from marl_connectors.rl_module.default_model_config import DefaultModelConfig

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

_ALWAYS = {ENV, NUM_ENVS_EACH, BATCH_SIZE, MINIBATCH_SIZE, MODEL, MAPPING, MODULES}
"""Settings that are written whatever they are, because they would depend on others."""


class _NoData(Exception):
    """A value that a file with settings cannot hold."""


def write_config(config: AlgorithmConfig, path: str | os.PathLike[str]) -> Path:
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
    target.write_text(_text(_data_of(config, algo, who, target), target), encoding="utf-8")
    return target


def _data_of(config: AlgorithmConfig, algo: str, who: str, path: Path) -> dict[str, Any]:
    """Returns the content of the file: what differs from the class's defaults, and what the command line changes.

    Raises:
        ConfigError: If settings cannot be written. Names all of them.
    """
    cls, is_json, tree, wrong = type(config), path.suffix.lower() == ".json", {}, {}
    changed = {place for place in defaults(algo) if not place.startswith(f"{RUN}.")}
    for place, own in places(cls).items():
        if own.name not in vars(config) or (place == SEED and config.seed is None):
            continue
        value = getattr(config, own.name)
        if place in _ALWAYS or place in changed or not is_same(value, getattr(cls, own.name)):
            try:
                tree[place] = _as_data(place, value, is_json)
            except _NoData:
                wrong[own.name] = value
    if wrong:
        shown = ", ".join(f"{name}={brief(value)}" for name, value in wrong.items())
        raise ConfigError(
            f"{who}: a file cannot hold {shown}. It holds data, and the names of classes and functions at the top of "
            f"modules that can be imported; only YAML has infinity, and keys that are not text. {_in_python()}"
        )
    return {"algo": algo, "preset": False, "env": tree.pop(ENV), **nested(tree)}


def _text(data: Mapping[str, Any], path: Path) -> str:
    if path.suffix.lower() == ".json":
        return json.dumps(data, indent=2) + "\n"
    require_extras("yaml")
    import yaml

    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)


def _as_data(place: str, value: Any, is_json: bool) -> Any:
    """Returns the data that stands for the value of a setting in a file.

    Raises:
        _NoData: If there is none.
    """
    if place == ENV and value in REGISTERED:
        raise _NoData  # by this process alone
    if place == MODEL:
        if not isinstance(value, Mapping | DefaultModelConfig | None):
            raise _NoData  # of a user's class
        own, usual = dict(value or {}) if isinstance(value, Mapping | None) else vars(value), vars(DefaultModelConfig())
        always = {name: usual[name] for name in ("fcnet_hiddens", "fcnet_activation", "vf_share_layers")}
        value = always | {name: each for name, each in own.items() if name not in usual or each != usual[name]}
    match value:
        case None | bool() | int() | str() if type(value) in (type(None), bool, int, str):
            return value
        case float() | np.generic():
            number = value.item() if isinstance(value, np.generic) else value
            if is_json and isinstance(number, float) and not math.isfinite(number):
                raise _NoData
            return number
        case os.PathLike():
            return os.fspath(value)
        case NamedPieces():
            return list(value.names)
        case SharedPolicy() if value == SharedPolicy():
            return "shared"
        case IndependentPolicies():
            return "independent"
        case PatternPolicies():
            return ",".join(f"{pattern}={module}" for pattern, module in value.patterns)
        case Mapping():
            if is_json and not all(isinstance(key, str) for key in value):
                raise _NoData
            return {_as_data("", key, is_json): _as_data("", own, is_json) for key, own in value.items()}
        case set() | frozenset():
            return sorted(value)
        case list() | tuple():
            return [_as_data("", own, is_json) for own in value]
    found = qualified_name(value) if callable(value) else None
    if found is None:
        raise _NoData
    return [found] if place in PIECES else found


def _in_python() -> str:
    return (
        f"Train from the Python file that makes the config instead: {command(PROGRAM, 'train', '--config', 'FILE.py')}"
    )
