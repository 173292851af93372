"""JSON data of results and settings, for files and programs that people read."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from typing import Any, NoReturn, cast

from marl_connectors.names import qualified_name
from marl_connectors.policy_mapping import mapping_to_json


def jsonable(value: Any) -> Any:
    """Returns strict JSON data for people: numbers that are not finite become None, and objects become names.

    Keys become strings. Where a dict has both 3 and ``"3"``, such as agents with these ids, 3 becomes ``"int(3)"``.
    """
    import numpy as np

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, Mapping):
        return {_json_key(key, value): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item) for item in value]
    if callable(value) and not isinstance(value, type):
        found = mapping_to_json(cast(Any, value))
        if found["type"] != "not_importable" or not dataclasses.is_dataclass(value):
            return found
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return qualified_name(value) or repr(value)


def _json_key(key: Any, keys: Collection[Any]) -> str:
    text = str(key)
    return text if isinstance(key, str) or text not in keys else f"{type(key).__name__}({text})"


def parsed_json(data: bytes | str) -> Any:
    """Reads strict JSON, of any depth and size that Python can hold, in which no object has a key twice.

    Raises:
        ValueError: If it is something else. The message says what is wrong.
    """
    try:
        return json.loads(data, object_pairs_hook=_without_doubles, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"an object has the key {brief(next(key for key in found if keys.count(key) > 1))} twice")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def is_whole(value: Any, at_least: int = 0, at_most: float = math.inf) -> bool:
    """Whether a value is an integer, but not a bool, within bounds."""
    return isinstance(value, int) and not isinstance(value, bool) and at_least <= value <= at_most


def brief(value: Any) -> str:
    """Formats a value for an error message, on one line and shortened if it is long."""
    text = " ".join(repr(value).split()) if not isinstance(value, (dict, list)) or len(value) < 20 else ""
    if not text:
        return f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."
