"""The algorithms that the command line trains: their configs, and the settings with which it trains them."""

from __future__ import annotations

import configparser
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from marl_connectors.cli.values import literal
from marl_connectors.errors import ConfigError
from marl_connectors.names import import_attribute

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig


class KnownAlgorithm(NamedTuple):
    """An algorithm of ``--algo``.

    Attributes:
        config: The name of its config's class.
        summary: What it is, in a few words.
        like: The algorithm whose settings it has; itself if they are its own.
        training: The settings with which the command line trains unless ``--set`` changes them.
    """

    config: str
    summary: str
    like: str
    training: Mapping[str, Any]


def _read(path: Path) -> dict[str, KnownAlgorithm]:
    tables = configparser.RawConfigParser(delimiters=["="])
    tables.read_string(path.read_text(encoding="utf-8"))
    found = {}
    for name in tables.sections():
        like = tables[name].get("like", name)
        training = {key: literal(text) for key, text in tables[like].items() if key not in KnownAlgorithm._fields}
        found[name] = KnownAlgorithm(tables[name]["config"], tables[name]["summary"], like, training)
    return found


ALGORITHMS: Final[Mapping[str, KnownAlgorithm]] = _read(Path(__file__).with_name("algorithms.ini"))
"""The algorithms by name."""
_INDEPENDENT: Final = {
    "idqn": ("DQN", "dqn"),
    "iql": ("Q-learning", "dqn"),
    "ippo": ("PPO", "ppo"),
    "isac": ("SAC", "sac"),
}
"""Names of algorithms that are algorithms here with certain settings."""
_MOST_LIKE: Final = {**dict.fromkeys(("a2c", "a3c", "appo", "impala"), "ppo"), "ddpg": "sac", "td3": "sac"}
"""Algorithms that do not exist here, and the ones that are most like them for any number of agents."""


def algorithm_instead(name: object) -> str:
    """Returns a closing sentence about a known algorithm that does not exist here; ``""`` for other names.

    >>> algorithm_instead("iql")
    "Independent Q-learning is algo 'dqn' with policies 'independent'."
    """
    name = str(name).lower()
    if name in _INDEPENDENT:
        what, algo = _INDEPENDENT[name]
        return f"Independent {what} is algo {algo!r} with policies 'independent'."
    return f"The most like it is algo {_MOST_LIKE[name]!r}." if name in _MOST_LIKE else ""


def summaries() -> str:
    """Returns a line on all algorithms, for a help text."""
    return "; ".join(f"{name}: {known.summary}" for name, known in ALGORITHMS.items())


def config_class(algo: str) -> type[AlgorithmConfig]:
    """Returns the class of an algorithm's config."""
    return import_attribute(ALGORITHMS[algo].config, who="--algo", error=ConfigError)


def algorithm_of(config: AlgorithmConfig) -> str:
    """Returns the name of a config's algorithm; one that ``--algo`` does not know has that of the config's class."""
    by_class = {known.config: name for name, known in ALGORITHMS.items()}
    names = (by_class.get(f"{cls.__module__}:{cls.__qualname__}") for cls in type(config).__mro__)
    own = type(config).__name__
    return next((name for name in names if name is not None), own.removesuffix("Config").lower() or own)


def are_alike(one: str, other: str) -> bool:
    """Whether settings that were tuned for one algorithm are also good ones for another."""
    return ALGORITHMS[one].like == ALGORITHMS[other].like


@functools.cache
def known_sections() -> dict[str, list[str]]:
    """Returns the sections of all algorithms' configs, with the names of their settings."""
    from marl_connectors.algorithms.config.sections import sections

    found: dict[str, dict[str, None]] = {}
    for algo in ALGORITHMS:
        for section, own in sections(config_class(algo)).items():
            found.setdefault(section, {}).update(dict.fromkeys(own))
    return {section: list(names) for section, names in found.items()}
