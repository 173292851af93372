"""Search spaces of sweeps: the values that each searched setting may have."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from marl_connectors.cli.values import literal
from marl_connectors.errors import ConfigError
from marl_connectors.json_data import brief

_FORMS = "such as 1e-4..1e-2, 1e-4..1e-2:log, 2..10 or tanh,relu"


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``, both included, and whole ones if both are."""

    low: float
    high: float
    log: bool = False

    def suggest(self, trial: Any, name: str) -> Any:
        """Returns the value that an Optuna trial chooses."""
        is_whole = isinstance(self.low, int) and isinstance(self.high, int)
        return (trial.suggest_int if is_whole else trial.suggest_float)(name, self.low, self.high, log=self.log)

    def value_of(self, param: Any) -> Any:
        """Returns the value of a parameter of an Optuna trial."""
        return param

    def ends(self) -> list[Any]:
        """Returns values that are tried before a sweep begins."""
        return [self.low, self.high]

    def to_json(self) -> Any:
        return {"low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, slots=True)
class Choices:
    """A few values. Lists and other values that Optuna does not know are JSON texts there."""

    values: tuple[Any, ...]

    def suggest(self, trial: Any, name: str) -> Any:
        """Returns the value that an Optuna trial chooses."""
        return self.value_of(trial.suggest_categorical(name, list(self._by_param())))

    def value_of(self, param: Any) -> Any:
        """Returns the value of a parameter of an Optuna trial."""
        return self._by_param().get(param, param)

    def _by_param(self) -> dict[Any, Any]:
        return {each if isinstance(each, (bool, int, float, str)) else json.dumps(each): each for each in self.values}

    def ends(self) -> list[Any]:
        """Returns values that are tried before a sweep begins."""
        return list(self.values)

    def to_json(self) -> Any:
        return list(self.values)


def search_option(text: str) -> tuple[str, Range | Choices]:
    """Reads a searched setting of the command line.

    >>> search_option("lr=1e-4..1e-2:log")
    ('lr', Range(low=0.0001, high=0.01, log=True))
    >>> search_option("hidden=[64,64],[128]")
    ('hidden', Choices(values=([64, 64], [128])))
    """
    name, equals, values = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"expected SETTING=VALUES, {_FORMS}, but got {text!r}")
    try:
        return name.strip(), searched(values.strip())
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{name.strip()}: {error}") from None


def searched(given: Any) -> Range | Choices:
    """Returns the values of a searched setting.

    Args:
        given: A text as on the command line; a list of choices; or a dict with ``low``, ``high`` and maybe ``log``.

    Raises:
        ValueError: If it is something else. The message says what is expected.
    """
    match given:
        case str():
            found = re.fullmatch(r"(.+?)\.\.(.+?)(:log)?", given)
            if found:
                return _range(literal(found[1]), literal(found[2]), bool(found[3]))
            return searched([literal(part.strip()) for part in _parts(given)])
        case list() if len(given) > 1:
            return Choices(tuple(given))
        case Mapping() if {"low", "high"} <= given.keys() <= {"low", "high", "log"}:
            return _range(given["low"], given["high"], given.get("log", False))
    raise ValueError(f"expected a range or several choices, {_FORMS}, but got {brief(given)}")


def search_space(given: Any, who: str) -> dict[str, Range | Choices]:
    """Returns the search space of a file.

    Raises:
        ConfigError: If it is something else. The message begins with ``who``.
    """
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{who}: expected settings with their values, {_FORMS}, but got {brief(given)}.")
    found = {}
    for name, values in given.items():
        try:
            found[name] = searched(values)
        except ValueError as error:
            raise ConfigError(f"{who}: {name}: {error}.") from None
    return found


def _range(low: Any, high: Any, log: Any) -> Range:
    numbers = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in (low, high))
    if not numbers or not isinstance(log, bool) or not low < high or (log and low <= 0):
        raise ValueError(
            f"expected a range from a lower to a higher number{', both above 0 for :log' if log else ''}, {_FORMS}, "
            f"but got {brief(low)} and {brief(high)}"
        )
    return Range(low, high, log)


def _parts(text: str) -> list[str]:
    """Splits a text at its commas, except for those in brackets.

    >>> _parts("[1,2],x")
    ['[1,2]', 'x']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[({") - (character in "])}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts
