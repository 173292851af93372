"""Info dicts of many rows as columns, in which infos with the same keys and types are stored together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

_DTYPES: Final[dict[str, Any]] = {"bool": np.bool_, "int": np.int64, "float": np.float64}
_KINDS: Final = "biuf"
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def pack_infos(infos: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a group for each structure of info dicts: the rows that have it, and a column for each value.

    >>> pack_infos({0: {"n": 1}, 3: {"n": 2}})
    [{'rows': array([0, 3]), 'values': ['dict', {'n': ['int', array([1, 2])]}]}]
    """
    groups: dict[Any, list[int]] = {}
    for row, info in infos.items():
        groups.setdefault(_structure(info), []).append(row)
    return [
        {"rows": np.array(rows, np.int64), "values": _column(structure, [infos[row] for row in rows])}
        for structure, rows in groups.items()
    ]


def unpack_infos(groups: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Returns the info dicts that ``pack_infos`` got."""
    found: dict[int, dict[str, Any]] = {}
    for group in groups:
        rows = group["rows"].tolist()
        found.update(zip(rows, _items(group["values"], len(rows)), strict=True))
    return found


def unstorable(value: Any, path: str = "") -> tuple[str, str] | None:
    """Returns the path and the type of the first part of a value that no file can hold; None if there is none."""
    if type(value) in _PLAIN:
        return None
    if isinstance(value, (np.ndarray, np.generic)):
        is_fine = value.dtype.kind in _KINDS and value.dtype.itemsize <= 8
        return None if is_fine else (path, f"{type(value).__name__} of {value.dtype}")
    if type(value) in (list, tuple):
        return next((found for i, part in enumerate(value) if (found := unstorable(part, f"{path}[{i}]"))), None)
    if type(value) is dict:
        for key, part in value.items():
            if (found := unstorable(key, path) or unstorable(part, f"{path}[{key!r}]")) is not None:
                return found
        return None
    return path, type(value).__name__


def storable_part(info: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an info dict without the values that no file can hold."""
    return {key: value for key, value in info.items() if unstorable(key) is None and unstorable(value) is None}


def _structure(value: Any) -> Any:
    if type(value) is int:
        return "int" if -(2**63) <= value < 2**63 else "items"
    if type(value) in (bool, float):
        return type(value).__name__
    if isinstance(value, np.generic):
        return "scalar", value.dtype.str
    if type(value) is np.ndarray:
        return "array", value.dtype.str, value.shape
    if type(value) is dict and all(type(key) is str for key in value):
        return ("dict", *((key, _structure(part)) for key, part in value.items()))
    return "items"


def _column(structure: Any, values: list[Any]) -> list[Any]:
    kind = structure if isinstance(structure, str) else structure[0]
    if kind == "items":
        return [kind, values]
    if kind == "dict":
        return [kind, {key: _column(part, [value[key] for value in values]) for key, part in structure[1:]}]
    return [kind, np.array(values, _DTYPES.get(kind))]


def _items(column: Sequence[Any], length: int) -> list[Any]:
    kind, values = column
    if kind == "items":
        return list(values)
    if kind == "dict":
        parts = {key: _items(part, length) for key, part in values.items()}
        return [{key: items[i] for key, items in parts.items()} for i in range(length)]
    if kind == "array":
        return list(np.array(values))
    return list(values) if kind == "scalar" else values.tolist()
