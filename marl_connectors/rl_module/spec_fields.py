"""The validators of what specs of modules and configs have in common: ids, spaces, model configs and folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from os import PathLike
from typing import Any

from marl_connectors.validators import Unfit, Validator, imported, instance_of, optional, text

NO_MODULE_ID = "Use a text that is not empty."
"""What error messages say about ids that are none."""


def is_module_id(given: Any) -> bool:
    """Whether a value can be the id of a module: a text with a visible character, which files can hold."""
    return isinstance(given, str) and bool(given.strip()) and given.encode(errors="replace").decode() == given


def _module_id(given: Any) -> str:
    if not is_module_id(given):
        raise Unfit(f"{given!r} is no module id. {NO_MODULE_ID}")
    return str(given)


def _module_ids(given: Any) -> Any:
    if not isinstance(given, Collection) or isinstance(given, (str, bytes, Mapping, *imported("numpy:ndarray"))):
        raise Unfit(f"Write [{given!r}]." if isinstance(given, str) else "")
    make: Any = type(given) if type(given) in (tuple, set, frozenset) else list
    return make(map(_module_id, given))


def _model_config(given: Any) -> Any:
    if not isinstance(given, Mapping) and (isinstance(given, type) or not dataclasses.is_dataclass(given)):
        raise Unfit
    return given


MODULE_ID = Validator("a module id", _module_id, text().schema)
MODULE_IDS = Validator("a collection of module ids", _module_ids, {"type": "array", "items": text().schema})
SPACE = instance_of("gymnasium:Space", expected="a gymnasium space")
MODEL_CONFIG = optional(
    Validator("a dict, or an object of a dataclass such as DefaultModelConfig", _model_config, {"type": "object"})
)
FOLDER = optional(instance_of(str, PathLike, expected="the path of a folder"))
