"""Settings of RLlib and others that have another name or place here, or that do not exist, for messages."""

from __future__ import annotations

import configparser
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

from marl_connectors.errors import ConfigError, did_you_mean


@functools.cache
def other_names(kind: str) -> Mapping[str, str]:
    """Returns what to use instead of names of other libraries, by name.

    Args:
        kind: The part of ``other_names.ini``, such as ``"renamed"``.
    """
    tables = configparser.RawConfigParser(delimiters=["="])
    tables.read_string(Path(__file__).with_name("other_names.ini").read_text(encoding="utf-8"))
    return {name: " ".join(text.split()) for names, text in tables[kind].items() for name in names.split()}


class UnknownSectionError(ConfigError, AttributeError):
    """A config has no attribute, setting or section of this name."""


def hint_at(name: str, known: Iterable[str]) -> str:
    """Returns a closing sentence about a setting that is not known where it was given.

    >>> hint_at("num_sgd_iter", ["num_epochs", "gamma"])
    'Use .training(num_epochs=...).'
    >>> hint_at("gama", ["num_epochs", "gamma"])
    "Did you mean 'gamma'?"

    Args:
        name: The unknown name.
        known: The settings that are known there.
    """
    if name in other_names("renamed"):
        return f"Use {other_names('renamed')[name]}."
    return other_names("not here").get(name) or did_you_mean(name, known)


def unknown_algorithm_attribute(algorithm: object, name: str) -> AttributeError:
    """Returns the error for an attribute that an algorithm does not have."""
    instead, who = other_names("attributes").get(name), type(algorithm).__name__
    hint = f". {instead}" if instead else ""
    return AttributeError(f"{who!r} object has no attribute {name!r}{hint}", name=name, obj=algorithm)


def unknown_attribute(config: object, name: str) -> UnknownSectionError:
    """Returns the error for an attribute that a config does not have."""
    who = type(config).__name__
    if instead := other_names("sections").get(name):
        return UnknownSectionError(f"{who}: there is no section .{name}(...). {instead}")
    known = [known for known in dir(config) if not known.startswith("_")]
    return UnknownSectionError(f"{who}: there is no {name!r}. {hint_at(name, known)}")
