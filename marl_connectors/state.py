"""States: dataclasses of what objects remember, and the codec that writes and reads them.

The state of an object is a dataclass beside its class. Its types say what it may hold: numbers in a range, names,
arrays of a type and a number of axes, other states. ``read_state`` checks what comes from a file by these types alone.
``encode_state`` and ``decode_state`` are the form in which files hold states, without pickle.
"""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Hashable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, TypeVar, get_args, get_origin

import msgspec
import numpy as np
from msgspec import Meta

from marl_connectors.errors import CheckpointError
from marl_connectors.names import brief

STORED_KINDS: Final = "biuf"
"""The numpy kinds that files hold: bool, integers, floats."""


class State(msgspec.Struct, forbid_unknown_fields=True):
    """The base of all states: a dataclass, made with keyword arguments.

    A ``__post_init__`` may compare fields with one another. It raises ValueError for what no object can have returned.
    """


# What fields may be ------------------------------------------------------------------------------------------------

Index: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
"""A number of things that are in memory, or the place of one of them."""
Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**62)]
"""A number of steps, samples or bytes so far."""
Seed: TypeAlias = Annotated[int, Meta(ge=0)]
Finite: TypeAlias = Annotated[float, Meta(gt=-1e300, lt=1e300)]
"""A number that is neither infinite nor NaN."""
ID: TypeAlias = Hashable
"""The id of an agent, as ``is_id`` describes it."""
Floats: TypeAlias = np.ndarray[tuple[int], np.dtype[np.floating[Any]]]
Ints: TypeAlias = np.ndarray[tuple[int], np.dtype[np.integer[Any]]]
Bools: TypeAlias = np.ndarray[tuple[int], np.dtype[np.bool_]]
"""Arrays with one axis."""

if TYPE_CHECKING:
    Array: TypeAlias = Any
    Column: TypeAlias = Any
else:

    class _CheckedByHook(type):
        def __instancecheck__(cls, value):
            return True

    class Array(metaclass=_CheckedByHook):
        """A numpy array or a torch tensor of numbers, of any shape. Files have numpy arrays in the place of tensors."""

    class Column(metaclass=_CheckedByHook):
        """An ``Array`` with an axis of rows, or a dict or tuple of columns."""


# Reading -----------------------------------------------------------------------------------------------------------

_S = TypeVar("_S")


def read_state(kind: type[_S], data: Any) -> _S:
    """Returns a state that ``decode_state`` gave as dicts and lists, or the state itself if it is one.

    Args:
        kind: The dataclass.
        data: The state, or its fields in a dict.

    Raises:
        CheckpointError: If a field is missing or unknown, or is not of its type. It names the place.
    """
    try:
        return as_state(kind, data)
    except ValueError as error:
        raise CheckpointError(
            f"checkpoint: it is damaged, or of another version. {error}. Use another checkpoint, or the version that "
            f"wrote it."
        ) from error


def as_state(kind: type[_S], data: Any) -> _S:
    """Does the same as ``read_state``, for data that are not those of a checkpoint.

    Raises:
        ValueError: If a field is missing or unknown, or is not of its type. It names the place.
    """
    if isinstance(kind, type) and isinstance(data, kind):
        return data
    name = " or ".join(each.__qualname__ for each in (get_args(kind) if isinstance(kind, UnionType) else [kind]))
    try:
        return msgspec.convert(data, kind, dec_hook=_read_value)
    except msgspec.ValidationError as error:
        what, _, place = str(error).rpartition(" - at ")
        what, place = (what, place) if what else (place, "`$`")
        raise ValueError(f"{place.replace('$', name)}: {what}") from error
    except RecursionError as error:
        raise ValueError(f"{name}: Expected fewer levels") from error
    except AttributeError as error:  # msgspec takes an array for a mapping
        raise ValueError(f"{name}: Expected an object where an array is") from error


def fields_of(state: State) -> dict[str, Any]:
    """Returns the fields of a state by their names, and its tag if it has one. The values are not copied."""
    found, about = msgspec.structs.asdict(state), state.__struct_config__
    return found if about.tag_field is None else {about.tag_field: about.tag, **found}


def copied(value: Any) -> Any:
    """Returns a copy of a state, or of a part of one, that shares no arrays, lists, dicts and sets with it."""
    if isinstance(value, State):
        return type(value)(**{name: copied(getattr(value, name)) for name in value.__struct_fields__})
    if isinstance(value, dict):
        found = copy.copy(value)  # of the same type, such as Counter
        found.update((key, copied(part)) for key, part in value.items())
        return found
    if type(value) in (list, tuple, set):
        return type(value)(map(copied, value))
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.detach().clone() if _is_tensor(value) else value


def _read_value(kind: Any, value: Any) -> Any:
    """Checks a value of one of the types above that msgspec does not know.

    Raises:
        ValueError: If it is not of this type.
    """
    if kind is Hashable:
        is_right = is_id(value)
    elif kind is Array:
        is_right = _is_array(value)
    elif kind is Column:
        is_right = _is_column(value)
    elif get_origin(kind) is np.ndarray:
        axes, (dtype,) = get_args(kind)[0], get_args(get_args(kind)[1])
        is_right = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, get_origin(dtype) or dtype)
        is_right = is_right and value.ndim == len(get_args(axes))
    else:
        is_right = isinstance(value, kind)
    if not is_right:
        raise ValueError(f"Expected {_words(kind)}, got {brief(value)}")
    return value


def _words(kind: Any) -> str:
    known = {Hashable: "an id", Array: "an array", Column: "a column", Floats: "an array of floats with one axis"}
    known |= {Ints: "an array of whole numbers with one axis", Bools: "an array of booleans with one axis"}
    return known.get(kind, f"`{getattr(kind, '__name__', kind)}`")


def _is_array(value: Any) -> bool:
    array = _as_array(value)
    return array is not None and array.dtype.kind in STORED_KINDS


def _is_column(value: Any) -> bool:
    if isinstance(value, (dict, tuple)):
        return bool(value) and all(map(_is_column, value.values() if isinstance(value, dict) else value))
    return _is_array(value) and value.ndim > 0


def is_id(value: Any) -> bool:
    """Whether a value can be the id of an agent: ``load_state`` returns an equal one of the same type.

    Such values are strings, numbers, bytes, numpy's numbers, and tuples of all these and None.
    """
    if type(value) is tuple:
        return all(part is None or is_id(part) for part in value)
    if type(value) is str:
        return value.isascii() or value.encode(errors="replace").decode() == value
    if isinstance(value, np.generic):
        return value.dtype.kind in STORED_KINDS and value.dtype.itemsize <= 8 and bool(value == value)
    return type(value) in (int, bool, float, bytes) and value == value


# The form of files -------------------------------------------------------------------------------------------------


class _Tag:
    """The keys of dicts that stand for what JSON has not."""

    TENSOR, SCALAR, TUPLE = "__tensor__", "__scalar__", "__tuple__"
    DICT, FLOAT, BYTES = "__dict__", "__float__", "__bytes__"


def encode_state(value: Any, where: tuple[str, ...], tensors: dict[str, np.ndarray]) -> Any:
    """Converts a value to JSON data and adds its arrays to ``tensors``. ``where`` is its path in the state."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {_Tag.FLOAT: repr(value)}
    if isinstance(value, State):
        value = fields_of(value)
    if isinstance(value, Mapping):
        return _encode_mapping(value, where, tensors)
    if type(value) in (list, tuple):
        items = [encode_state(item, (*where, str(i)), tensors) for i, item in enumerate(value)]
        return items if type(value) is list else {_Tag.TUPLE: items}
    if type(value) is bytes:
        return {_Tag.BYTES: base64.b64encode(value).decode()}
    array = _as_array(value)
    if array is None or array.dtype.kind not in STORED_KINDS or array.dtype.itemsize > 8:
        kind = type(value).__name__ if array is None else f"array of {array.dtype}"
        raise CheckpointError(
            f"save_state: expected JSON values, arrays of numbers and tensors, but state[{'/'.join(where)}] is a "
            f"{kind}. Convert it first."
        )
    key = "/".join(where) or "state"
    while key in tensors:
        key += "'"
    tensors[key] = array
    return {_Tag.SCALAR if isinstance(value, np.generic) else _Tag.TENSOR: key}


def _encode_mapping(value: Mapping[Any, Any], where: tuple[str, ...], tensors: dict[str, np.ndarray]) -> Any:
    if all(type(key) is str and not key.startswith("__") for key in value):
        return {key: encode_state(item, (*where, key), tensors) for key, item in value.items()}
    pairs = [
        [encode_state(key, (*where, str(key), "key"), tensors), encode_state(item, (*where, str(key)), tensors)]
        for key, item in value.items()
    ]
    return {_Tag.DICT: pairs}


def _as_array(value: Any) -> np.ndarray | None:
    """Converts an array, scalar or torch tensor to a C-ordered array in native byte order; None for other values."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
    elif _is_tensor(value):
        tensor = value.detach().cpu()
        array = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    else:
        return None
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def arrays_of(data: Any) -> set[str]:
    """Returns the keys of the arrays that ``decode_state`` takes for such data."""
    match data:
        case {_Tag.TENSOR: str(key)} | {_Tag.SCALAR: str(key)}:
            return {key}
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return set().union(*map(arrays_of, parts))


def decode_state(data: Any, tensors: dict[str, np.ndarray]) -> Any:
    """Returns the value that was passed to ``encode_state``, and removes its arrays from ``tensors``.

    Raises:
        KeyError, TypeError, ValueError: If ``encode_state`` cannot have returned the data.
    """
    if isinstance(data, list):
        return [decode_state(item, tensors) for item in data]
    if not isinstance(data, dict):
        return data
    match data:
        case {_Tag.TENSOR: str(key)} if len(data) == 1:
            return tensors.pop(key)
        case {_Tag.SCALAR: str(key)} if len(data) == 1 and tensors[key].shape == ():
            return tensors.pop(key)[()]
        case {_Tag.TUPLE: list(items)} if len(data) == 1:
            return tuple(decode_state(item, tensors) for item in items)
        case {_Tag.DICT: list(pairs)} if len(data) == 1:
            found = {decode_state(key, tensors): decode_state(item, tensors) for key, item in pairs}
            if len(found) != len(pairs):
                raise ValueError("a dict has a key twice")
            return found
        case {_Tag.FLOAT: "inf" | "-inf" | "nan" as text} if len(data) == 1:
            return float(text)
        case {_Tag.BYTES: str(text)} if len(data) == 1:
            return base64.b64decode(text, validate=True)
    for key in data:
        if key.startswith("__"):
            raise ValueError(f"{brief(key)} is not a key that is written there")
    return {key: decode_state(item, tensors) for key, item in data.items()}
