"""``marl-connectors schema``: the JSON schema of files with the settings of a run, for editors and other programs."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from typing import Any

from marl_connectors.algorithms.config.sections import sections
from marl_connectors.cli.command_settings import CommandSettings
from marl_connectors.cli.known_algorithms import ALGORITHMS, config_class, known_sections
from marl_connectors.cli.layers import SEARCH, defaults
from marl_connectors.cli.tree import DICTS, MAPPING, MODEL, MODULES, RUN, places, short_forms
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.validators import Setting, any_of, settings_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_RANGE = {
    "type": "object",
    "properties": {"low": {"type": "number"}, "high": {"type": "number"}, "log": {"type": "boolean"}},
    "required": ["low", "high"],
    "additionalProperties": False,
}
_SEARCH = {
    "type": "object",
    "description": "The settings that sweep searches, with their values: a range, a list of choices, or a text.",
    "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 2}, _RANGE]},
}


def run(args: argparse.Namespace) -> int:
    """Prints the schema. Returns the exit status."""
    print(json.dumps(schema(), indent=2))
    return 0


def schema() -> dict[str, Any]:
    """Returns the JSON schema of a file for ``--config``.

    It is made from the settings, so it accepts what they accept in the form that ``to_file`` writes. It does not know
    texts that stand for numbers, nor rules such as increasing times in a schedule.
    """
    cls, own_defaults = config_class("ppo"), defaults("ppo")
    short = {}
    for key, (place, option) in short_forms(cls).items():
        default = {"default": own_defaults[place]} if place in own_defaults and key not in ("preset", "algo") else {}
        opposite = {"description": option.about} if option.is_opposite else {}
        short[key] = {**_described(place, [places(cls)[place]]), **opposite, **default}
    parts = {}
    for section in known_sections():
        declared: dict[str, list[Setting]] = {}
        for each in map(config_class, ALGORITHMS):
            for argument, own in sections(each).get(section, {}).items():
                declared.setdefault(argument, []).append(own)
        if section == RUN:
            declared |= {name: [own] for name, own in settings_of(CommandSettings).items()}
        parts[section] = {
            "type": ["object", "null"],
            "description": (getattr(cls, section).__doc__ or "").partition("\n")[0],
            "properties": {name: _described(f"{section}.{name}", own) for name, own in declared.items()},
            "additionalProperties": False,
        }
    config = {"type": ["string", "null"], "description": settings_of(CommandSettings)["config"].doc}
    return {
        "$schema": DIALECT,
        "title": "marl-connectors train --config",
        "type": "object",
        "properties": {"$schema": {"type": "string"}, "config": config, **short, **parts, SEARCH: _SEARCH},
        "additionalProperties": False,
    }


def _described(place: str, declarations: list[Setting]) -> dict[str, Any]:
    """Returns the schema of a setting, which several configs may declare with other ranges."""
    found: Any = any_of(*(_schema(place, own) for own in declarations))
    text = declarations[0].doc.replace("``", "") or documented(DefaultModelConfig).get(place.rpartition(".")[2], "")
    return {**dict(found), **({"description": text} if text else {})}


def _schema(place: str, own: Setting) -> Any:
    found = None if own.validator is None else own.validator.schema
    if place in (MODEL, f"{MODEL}_dict"):
        about = documented(DefaultModelConfig)
        properties = {
            name: {**((each.validator.schema if each.validator else None) or {}), "description": about.get(name, "")}
            for name, each in settings_of(DefaultModelConfig).items()
        }
        return any_of({"type": "object", "properties": properties}, {"type": "null"})
    if place == MODULES:
        return any_of(found, places(config_class("ppo"))[MAPPING].validator.schema)  # type: ignore[union-attr]
    return {"not": {}} if own.validator is not None and found is None and place not in DICTS else found or {}


def documented(obj: Any) -> dict[str, str]:
    """Returns the descriptions in the parts ``Args`` and ``Attributes`` of a docstring by name."""
    doc = inspect.getdoc(obj) or ""
    parts = re.split(r"^(?:Args|Attributes):\n", doc, maxsplit=1, flags=re.MULTILINE)
    found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", parts[-1] if len(parts) > 1 else "", re.MULTILINE)
    return {name: " ".join(text.replace("``", "").split()) for name, text in found}
