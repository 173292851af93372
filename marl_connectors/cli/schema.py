"""``marl-connectors schema``: the JSON schema of files with the settings of a run, for editors and other programs."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
from typing import Any

from marl_connectors.algorithms.config.sections import sections
from marl_connectors.cli.config_files import OF_COMMAND, OWN_FIELDS, SAME, SCHEMA_KEY, SEARCH
from marl_connectors.cli.known_algorithms import ALGORITHMS, config_class, known_sections
from marl_connectors.cli.run_settings import RunSettings
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.validators import Setting, any_of, declared

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OF_COMMAND = {
    "seeds": "The seeds, if the run is trained once with each of them.",
    "parallel": "The number of runs that are trained at a time, with seeds or in a sweep.",
    "out": "The folder of the run, of the runs with several seeds, or of the sweep.",
}
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

    It is made from the validators of the settings, so it accepts what they accept, except for the few rules that
    JSON schema cannot say, such as increasing times in a schedule.
    """
    about, defaults = documented(RunSettings), RunSettings("")
    fields: dict[str, Any] = {}
    for name, validator in OWN_FIELDS.items():
        own = _model() if name == "model" else validator.schema
        default = {} if name in ("env", "preset", "config") else {"default": getattr(defaults, name)}
        fields[name] = {**(own or {}), **_described(about.get(name, "")), **default}
    for name, validator in OF_COMMAND.items():
        fields[name] = {**(validator.schema or {}), **_described(_OF_COMMAND[name])}
    fields["preset"]["description"] = "Whether the run begins with the zoo's settings for the environment."
    parts = {name: _section(name) for name in known_sections()}
    return {
        "$schema": DIALECT,
        "title": "marl-connectors train --config",
        "type": "object",
        "properties": {SCHEMA_KEY: {"type": "string"}, **fields, **parts, SEARCH: _SEARCH},
        "additionalProperties": False,
    }


def _section(name: str) -> dict[str, Any]:
    """Returns the schema of a section of the configs."""
    declared_by_any: dict[str, list[Setting]] = {}
    for cls in _configs():
        for argument, own in sections(cls).get(name, {}).items():
            declared_by_any.setdefault(argument, []).append(own)
    return {
        "type": ["object", "null"],
        **_described((getattr(_configs()[0], name).__doc__ or "").partition("\n")[0]),
        "properties": {
            argument: {**_setting(argument, each), **_described(each[0].doc.replace("``", ""))}
            for argument, each in declared_by_any.items()
        },
        "additionalProperties": False,
    }


def _setting(name: str, declarations: list[Setting]) -> dict[str, Any]:
    """Returns the schema of a setting of the configs, which several of them may declare with other ranges."""
    validators = [OWN_FIELDS[name] if name in SAME else own.validator for own in declarations]
    schemas = [{} if each is None else dict(each.schema or {"not": {}}) for each in validators]
    different = [schema for number, schema in enumerate(schemas) if schema not in schemas[:number]]
    found = different[0] if len(different) == 1 else dict(any_of(*different) or {})
    if name == "policies":
        return dict(any_of(found, declared(_configs()[0])["policy_mapping_fn"].schema) or {})  # type: ignore[union-attr]
    return {"anyOf": [_model(), {"type": "null"}]} if name == "model_config" else found


def _configs() -> list[Any]:
    return [config_class(algo) for algo in ALGORITHMS]


def _model() -> dict[str, Any]:
    """Returns the schema of the settings of modules. Those of a user's own modules may have other names."""
    about = documented(DefaultModelConfig)
    known = declared(DefaultModelConfig)
    properties = {
        field.name: {**((validator.schema if (validator := known[field.name]) else None) or {})}
        | _described(about.get(field.name, ""))
        for field in dataclasses.fields(DefaultModelConfig)
    }
    return {"type": "object", "properties": properties}


def _described(text: str) -> dict[str, Any]:
    return {"description": text} if text else {}


def documented(obj: Any) -> dict[str, str]:
    """Returns the descriptions in the parts ``Args`` and ``Attributes`` of a docstring by name."""
    doc = inspect.getdoc(obj) or ""
    parts = re.split(r"^(?:Args|Attributes):\n", doc, maxsplit=1, flags=re.MULTILINE)
    found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", parts[-1] if len(parts) > 1 else "", re.MULTILINE)
    return {name: " ".join(text.replace("``", "").split()) for name, text in found}
