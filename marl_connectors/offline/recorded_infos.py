"""Info dicts of many rows as columns, in which infos with the same keys and types are stored together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from marl_connectors.state import Ints, State

_DTYPES: Final[dict[str, Any]] = {"bool": np.bool_, "int": np.int64, "float": np.float64}
_KINDS: Final = "biuf"
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


class InfoGroup(State):
    """The info dicts of one structure.

    Attributes:
        rows: The rows that have them.
        values: Their values as a column. That of dicts with the same keys is a dict of columns; of numpy's numbers of
            one type, or arrays of one type and shape, an array; of Python's numbers of one type, a tuple with an array;
            and of anything else, a list.
    """

    rows: Ints
    values: Any


def pack_infos(infos: Mapping[int, dict[str, Any]]) -> list[InfoGroup]:
    """Returns a group for each structure of info dicts.

    >>> (group,) = pack_infos({0: {"n": 1}, 3: {"n": 2}})
    >>> group.rows, group.values
    (array([0, 3]), {'n': (array([1, 2]),)})
    """
    groups: dict[Any, list[int]] = {}
    for row, info in infos.items():
        groups.setdefault(_structure(info), []).append(row)
    return [
        InfoGroup(np.array(rows, np.int64), _column(structure, [infos[row] for row in rows]))
        for structure, rows in groups.items()
    ]


def unpack_infos(groups: Sequence[InfoGroup]) -> dict[int, dict[str, Any]]:
    """Returns the info dicts that ``pack_infos`` got.

    Raises:
        Exception: Any, if it cannot have returned these groups.
    """
    found: dict[int, dict[str, Any]] = {}
    for group in groups:
        rows = group.rows.tolist()
        infos = _values(group.values, len(rows))
        if any(type(info) is not dict for info in infos):
            raise ValueError("an info is no dict")
        found.update(zip(rows, infos, strict=True))
    return found


def _values(column: Any, length: int) -> list[Any]:
    """Returns the values of a column of so many rows."""
    if isinstance(column, dict):
        parts = {key: _values(part, length) for key, part in column.items()}
        return [{key: items[i] for key, items in parts.items()} for i in range(length)]
    if isinstance(column, tuple):
        (numbers,) = column
        found = numbers.tolist()
    else:
        found = list(column if isinstance(column, list) else np.array(column))
    if len(found) != length:
        raise ValueError(f"there are {len(found)} values of infos for {length} rows")
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


def _column(structure: Any, values: list[Any]) -> Any:
    """Returns the values of a structure as ``InfoGroup`` has them."""
    kind = structure if isinstance(structure, str) else structure[0]
    if kind == "dict":
        return {key: _column(part, [value[key] for value in values]) for key, part in structure[1:]}
    if kind in _DTYPES:
        return (np.array(values, _DTYPES[kind]),)
    return values if kind == "items" else np.array(values)
