"""``marl-connectors schema``: the JSON schema of files with the settings of a run, for editors and other programs."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import re
from typing import Any

from marl_connectors.algorithms.config.algorithm_config import TrainingSettings
from marl_connectors.algorithms.mappo.config import MAPPOConfig, MAPPOTrainingSettings
from marl_connectors.algorithms.ppo.config import PPOTrainingSettings
from marl_connectors.callbacks import CALLBACK_NAMES
from marl_connectors.cli.config_files import OWN_FIELDS, SAME, SCHEMA_KEY, SEARCH, known_sections
from marl_connectors.cli.run_settings import RunSettings
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.validators import any_of, declared, one_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_OTHER_NAMES = {"model_config_dict": "model_config", **{name: f"callbacks_{name}" for name in CALLBACK_NAMES}}
"""Settings of sections that are stored under other names."""
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
    fields["preset"]["description"] = "Whether the run begins with the zoo's settings for the environment."
    parts = {name: _section(name, settings) for name, settings in known_sections().items()}
    return {
        "$schema": DIALECT,
        "title": "marl-connectors train --config",
        "type": "object",
        "properties": {SCHEMA_KEY: {"type": "string"}, **fields, **parts, SEARCH: _SEARCH},
        "additionalProperties": False,
    }


def _section(name: str, settings: list[str]) -> dict[str, Any]:
    """Returns the schema of a section of the config."""
    method = getattr(MAPPOConfig, name)
    about = documented(method)
    if name == "training":
        for each in (TrainingSettings, PPOTrainingSettings, MAPPOTrainingSettings):
            about |= documented(each)
    return {
        "type": ["object", "null"],
        **_described((inspect.getdoc(method) or "").partition("\n")[0]),
        "properties": {each: {**_setting(each), **_described(about.get(each, ""))} for each in settings},
        "additionalProperties": False,
    }


def _setting(name: str) -> dict[str, Any]:
    """Returns the schema of a setting of the config."""
    fields = {each: OWN_FIELDS[each] for each in SAME}
    validators = {**declared(MAPPOConfig), "framework": one_of("torch"), **fields}
    validator = validators[_OTHER_NAMES.get(name, name)]
    found = {} if validator is None else dict(validator.schema or {"not": {}})
    if name == "policies":
        return dict(any_of(found, validators["policy_mapping_fn"].schema) or {})  # type: ignore[union-attr]
    return {"anyOf": [_model(), {"type": "null"}]} if name == "model_config" else found


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
