"""Episode data as nested dicts of numbers, strings, bytes, lists and numpy arrays, which are stored without pickle."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from marl_connectors.errors import EpisodeError
from marl_connectors.state import STORED_KINDS, State, as_state

_PLAIN = (str, bytes, int, float, bool, type(None))
_PLAIN_TYPES = frozenset(_PLAIN)


_S = TypeVar("_S", bound=State)


def episode_state(kind: type[_S], state: Any) -> _S:
    """Returns the state of an episode.

    Args:
        kind: Its dataclass.
        state: The state, or its fields in a dict.

    Raises:
        EpisodeError: If a field is missing or unknown, or is not of its type.
    """
    try:
        return as_state(kind, state)
    except ValueError as error:
        raise EpisodeError(f"episode: get_state() did not return this state. {error}.") from error


def encode(value: Any, where: str = "value") -> Any:
    """Returns ``value`` as plain data; tuples, numpy scalars, and dicts whose keys are not strings, are marked.

    Arrays in a list are not copied.

    Args:
        value: Numbers, strings, bytes, None, arrays, and dicts, lists and tuples of them.
        where: The name of the value, for messages.

    Raises:
        EpisodeError: If the value has parts of any other type.

    >>> encode({"goal": (1, 2)})
    {'goal': {'__tuple__': [1, 2]}}
    """
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, np.generic):
        return {"__scalar__": np.array([value])}
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise EpisodeError(f"episode: {where} is an array of Python objects, which no state can hold. Use numbers.")
        return value.copy()
    if type(value) in _PLAIN:
        return value
    if isinstance(value, list):
        kinds = set(map(type, value))
        if kinds <= _PLAIN_TYPES or (kinds == {dict} and not any(value)):
            return list(value) if kinds <= _PLAIN_TYPES else [{} for _ in value]
        if len(kinds) == 1 and issubclass(next(iter(kinds)), np.number):
            return {"__scalars__": np.array(value)}
        if kinds == {np.ndarray} and not any(dtype.hasobject for dtype in {item.dtype for item in value}):
            return list(value)
        return [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"__tuple__": [encode(item, f"{where}[{i}]") for i, item in enumerate(value)]}
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("__") for key in value):
            return {key: encode(item, f"{where}[{key!r}]") for key, item in value.items()}
        return {
            "__items__": [[encode(key, where), encode(item, f"{where}[{key!r}]")] for key, item in value.items()],
        }
    raise EpisodeError(
        f"episode: {where} is a {type(value).__name__}, which no state can hold. Keep numbers, strings, arrays, and "
        f"dicts, lists and tuples of them in observations, infos and custom_data, or remove it before get_state()."
    )


def decode(value: Any) -> Any:
    """Returns the value that :func:`encode` turned into plain data."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return list(value) if set(map(type, value)) <= _PLAIN_TYPES else [decode(item) for item in value]
    if isinstance(value, dict):
        if "__scalar__" in value:
            return value["__scalar__"][0]
        if "__scalars__" in value:
            return list(value["__scalars__"])
        if "__tuple__" in value:
            return tuple(decode(item) for item in value["__tuple__"])
        if "__items__" in value:
            return {decode(key): decode(item) for key, item in value["__items__"]}
        return {key: decode(item) for key, item in value.items()}
    return value


def storable(value: Any) -> Any:
    """Encodes ``value`` as plain data and numeric arrays, for ``decode``.

    Args:
        value: Any value.

    Returns:
        The encoded value. None if it cannot be encoded.

    >>> storable({"goal": (1, 2)})
    {'goal': {'__tuple__': [1, 2]}}
    >>> storable({"goal": {1, 2}}) is None
    True
    """
    try:
        data = encode(value)
    except EpisodeError:
        return None
    return data if _is_numeric(data) else None


def fits_in_file(array: np.ndarray) -> bool:
    """Returns whether a tensor file can store an array."""
    return array.dtype.kind in STORED_KINDS and array.dtype.itemsize <= 8


def _is_numeric(data: Any) -> bool:
    if isinstance(data, np.ndarray):
        return fits_in_file(data)
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return all(map(_is_numeric, parts))
