"""Functions for Gymnasium spaces: zeros, columns, membership and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from marl_connectors.errors import ConfigError
from marl_connectors.typing import Tree

_BLOCK = 65536
"""The number of numbers that are processed at a time, so that they fit into the CPU cache."""
WHOLE: Final = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
"""Space classes of whole numbers."""
_WITHOUT_PARTS = {spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary}
"""Space classes without parts. Looking them up here is faster than ``isinstance`` with Dict and Tuple."""


def is_leaf(space: spaces.Space) -> bool:
    """Whether a space has no parts, so that it is neither a Dict nor a Tuple."""
    return type(space) in _WITHOUT_PARTS or not isinstance(space, (spaces.Dict, spaces.Tuple))


def zeros(space: spaces.Space, *lead: int) -> Tree:
    """Returns a zero array, or a tree of them, of a space's shape and dtype, with the leading axes ``lead``.

    >>> zeros(spaces.Box(-1.0, 1.0, (3,)), 2).shape
    (2, 3)
    """
    if isinstance(space, spaces.Dict):
        return {key: zeros(part, *lead) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(zeros(part, *lead) for part in space.spaces)
    if space.shape is None or space.dtype is None:
        raise ConfigError(
            f"spaces: {space} has no fixed shape, so its values cannot stand in an array. "
            f"Wrap the environment so that it uses Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple."
        )
    return np.zeros((*lead, *space.shape), space.dtype)


def stack(items: Sequence[Any], space: spaces.Space | None = None) -> Tree:
    """Stacks items of a space to one array (or tree of arrays) with a new first axis, in the space's dtype.

    The tree follows the space, not the items: dicts in the space's order of keys for Dict parts, tuples for Tuple
    parts, arrays for all others, whether an item came as an array, a number, a list or a tuple. Floats are rounded to
    the space's dtype; nothing else is changed.

    Without a space, dicts and tuples have parts, and all other items (lists too) are values.
    >>> stack([((0.0, 10.0),), ((1.0, 20.0),)], spaces.Tuple([spaces.Box(0, 100, (2,), np.int64)]))
    (array([[ 0, 10],
           [ 1, 20]]),)

    Raises:
        TypeError: If the items are not numbers.
        ValueError: If the items do not have the parts or the shape of the space, or differ in them; or if the space's
            dtype cannot hold their values.
    """
    if space is None:
        return _stack_as_they_are(items)
    if not is_leaf(space):
        if isinstance(space, spaces.Dict):
            keys = space.spaces.keys()
            for item in items:
                if type(item) is not dict or item.keys() != keys:
                    parts_in(space, item)  # raises if it has other parts
            return {key: stack([item[key] for item in items], part) for key, part in space.spaces.items()}
        split = [parts_in(space, item) for item in items]  # type: ignore[arg-type]
        return tuple([stack([parts[i] for parts in split], part) for i, part in enumerate(space.spaces)])  # type: ignore[attr-defined]
    array = np.array(items)
    if array.shape[1:] != space.shape and space.shape is not None:
        if not len(items):
            return zeros(space, 0)
        raise ValueError(f"spaces: items of {describe(space)} have the shape {array.shape[1:]}.")
    if array.dtype == space.dtype:
        return array
    if array.dtype.kind == "f" and space.dtype in (np.int64, np.uint64):
        return _exact_integers(items, space.dtype)
    return in_dtype(array, space.dtype)


def _exact_integers(items: Sequence[Any], dtype: Any) -> np.ndarray:
    """Stacks large integers exactly. Numpy converts a mix of both 64-bit integer dtypes to floats."""
    numbers = np.array(items, object)
    try:
        array = np.array([int(x) for x in numbers.ravel()], dtype)
    except (OverflowError, ValueError) as error:
        raise ValueError(f"spaces: {dtype} cannot hold all of {items!r}.") from error
    wrong = [x for x, whole in zip(numbers.ravel(), array.tolist(), strict=True) if x != whole]
    if wrong:
        raise ValueError(f"spaces: {dtype} cannot hold {wrong[0]}.")
    return array.reshape(numbers.shape)


def _stack_as_they_are(items: Sequence[Any]) -> Tree:
    first = items[0]
    if isinstance(first, dict):
        if any(not isinstance(item, dict) or item.keys() != first.keys() for item in items):
            raise ValueError("spaces: the items differ in their keys.")
        return {key: _stack_as_they_are([item[key] for item in items]) for key in first}
    if isinstance(first, tuple):
        if any(not isinstance(item, tuple) or len(item) != len(first) for item in items):
            raise ValueError("spaces: the items differ in their numbers of parts.")
        return tuple([_stack_as_they_are([item[i] for item in items]) for i in range(len(first))])
    return np.array(items)


def parts_in(space: spaces.Dict | spaces.Tuple, item: Any) -> list[Any]:
    """Returns the parts of an item, or of a batch of items, in the space's order.

    An item of a Dict is a dict with the same keys in any order. An item of a Tuple is a tuple, a list or an array with
    as many parts.

    >>> parts_in(spaces.Dict([("b", spaces.Discrete(3)), ("a", spaces.Discrete(3))]), {"a": 1, "b": 2})
    [2, 1]

    Raises:
        ValueError: If the item has other parts.
    """
    if isinstance(space, spaces.Dict):
        if isinstance(item, Mapping) and item.keys() == space.spaces.keys():
            return [item[key] for key in space.spaces]
        came = f"the parts {list(item)}" if isinstance(item, Mapping) else f"a {type(item).__name__}"
        raise ValueError(f"spaces: expected a dict with the parts {list(space.spaces)}, but {came} came.")
    if isinstance(item, (tuple, list)) or (isinstance(item, np.ndarray) and item.ndim):
        if len(item) == len(space.spaces):
            return list(item)
        raise ValueError(f"spaces: expected a tuple of {len(space.spaces)} parts, but {len(item)} came.")
    raise ValueError(f"spaces: expected a tuple of {len(space.spaces)} parts, but a {type(item).__name__} came.")


def leaves_in(space: spaces.Space, item: Any) -> list[tuple[spaces.Space, Any]]:
    """Returns each leaf of an item, or of a batch of items, with its space; see ``parts_in``."""
    if is_leaf(space):
        return [(space, item)]
    pairs = zip(parts_of(space), parts_in(space, item), strict=True)  # type: ignore[arg-type]
    return [leaf for (_, part), own in pairs for leaf in leaves_in(part, own)]


def in_dtype(array: np.ndarray, dtype: Any) -> np.ndarray:
    """Converts numbers to another dtype. Floats are rounded to a float dtype.

    >>> in_dtype(np.array([1.0, 2.0]), np.int8)
    array([1, 2], dtype=int8)

    Raises:
        TypeError: If they are not numbers.
        ValueError: If the dtype cannot hold them.
    """
    if array.dtype.kind not in "biuf":
        raise TypeError(f"spaces: expected numbers, but {array.dtype} came.")
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
    if cast.dtype.kind != "f" and not np.can_cast(array.dtype, cast.dtype) and not np.array_equal(cast, array):
        raise ValueError(f"spaces: {cast.dtype} cannot hold {array[cast != array].reshape(-1)[0]}.")
    return cast


def fits(space: spaces.Space, item: Any) -> bool:
    """Whether an item can be stored in the space's arrays (``stack``). The bounds are not checked."""
    try:
        stack([item], space)
    except (TypeError, ValueError):
        return False
    return True


def same(one: spaces.Space, other: spaces.Space, *, ordered: bool = True) -> bool:
    """Whether two spaces are the same to the last bit of their bounds.

    Gymnasium's ``==`` lets bounds differ by some rounding, and takes no notice of the order of a Dict's keys.

    Args:
        one: A space.
        other: Another one.
        ordered: Whether the keys of Dict spaces must have the same order, too.

    >>> same(spaces.Box(0, 1e-9), spaces.Box(0, 3e-9)), spaces.Box(0, 1e-9) == spaces.Box(0, 3e-9)
    (False, True)
    """
    if one is other:
        return True
    if type(one) is not type(other) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    if isinstance(one, (spaces.Dict, spaces.Tuple)):
        mine, others = dict(parts_of(one)), dict(parts_of(other))  # type: ignore[arg-type]
        like = list(mine) == list(others) if ordered else mine.keys() == others.keys()
        return like and all(same(part, others[key], ordered=ordered) for key, part in mine.items())
    if isinstance(one, spaces.Box):
        names = ("low", "high", "bounded_below", "bounded_above")
        return all(getattr(one, name).tobytes() == getattr(other, name).tobytes() for name in names)
    return one == other


def sort_key(space: spaces.Space) -> tuple[str, bytes]:
    """Returns a key that puts spaces in an order that is the same in every process.

    Spaces have equal keys where ``same(..., ordered=False)`` holds.

    Args:
        space: A space.

    Returns:
        A text with shapes and dtypes, and the bytes of all bounds.
    """
    if isinstance(space, spaces.Box):
        sides = (space.low, space.high, space.bounded_below, space.bounded_above)
        return describe(space), b"".join(side.tobytes() for side in sides)
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = [(repr(key), *sort_key(part)) for key, part in parts_of(space)]
        parts = sorted(parts) if isinstance(space, spaces.Dict) else parts
        text = ", ".join(f"{key}: {text}" for key, text, _ in parts)
        return f"{type(space).__name__}({text})", b"".join(bounds for *_, bounds in parts)
    return str(space), b""


def in_key_order(parts: Iterable[tuple[Any, spaces.Space]]) -> spaces.Dict:
    """Returns the Dict space whose keys are sorted. Keys that cannot be compared keep their order.

    Spaces and vectors that connector pieces make from a Dict space have this order. Gymnasium also sorts the keys of a
    plain dict, but other versions of it may not.
    """
    found = list(parts)
    with suppress(TypeError):
        found = sorted(found, key=itemgetter(0))
    return spaces.Dict(found)


def byte_scale(space: spaces.Box) -> float | None:
    """Returns the factor that scales 8-bit integers, such as those of images, to [0, 1]; None for other spaces.

    >>> byte_scale(spaces.Box(0, 4, (3,), np.uint8)), byte_scale(spaces.Box(0, 4, (3,)))
    (0.25, None)
    """
    return 1.0 / max(float(space.high.max(initial=1)), 1.0) if space.dtype == np.uint8 else None


def parts_of(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, spaces.Space]]:
    """Returns the key (of a Tuple, the index) and the space of each part."""
    return list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))


def values_per_choice(space: spaces.Space | None) -> list[int] | None:
    """Returns the number of values of each choice of an action; None for actions without choices.

    >>> values_per_choice(spaces.MultiDiscrete([3, 2]))
    [3, 2]
    >>> values_per_choice(spaces.Tuple([spaces.MultiBinary(1), spaces.Box(0, 1), spaces.Discrete(5)]))
    [2, 5]
    """
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.reshape(-1).tolist()
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape))
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return [n for _, part in parts_of(space) for n in values_per_choice(part) or ()] or None
    return None


def counted_from_0(space: spaces.Space) -> spaces.Space:
    """Returns the space of the actions that modules output: Discrete and MultiDiscrete values count from 0.

    >>> counted_from_0(spaces.Discrete(3, start=5))
    Discrete(3)
    """
    if not _has_start(space):
        return space
    if isinstance(space, spaces.Dict):
        return in_key_order((key, counted_from_0(part)) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([counted_from_0(part) for part in space.spaces])
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec, dtype=space.dtype.type)
    assert isinstance(space, spaces.Discrete)
    return spaces.Discrete(int(space.n))


def from_start(space: spaces.Space, actions: Tree) -> Tree:
    """Adds each space's ``start`` to ``[B, ...]`` actions of modules. Without a ``start`` they are returned as is."""
    if not _has_start(space):
        return actions
    if isinstance(space, spaces.Dict):
        return {key: from_start(part, actions[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple([from_start(part, action) for part, action in zip(space.spaces, actions, strict=True)])
    return actions + space.start  # type: ignore[attr-defined]


def _has_start(space: spaces.Space) -> bool:
    """Whether the space has values that do not count from 0."""
    if isinstance(space, spaces.Dict):
        return any(map(_has_start, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return any(map(_has_start, space.spaces))
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)) and bool(np.any(space.start))


def all_within(space: spaces.Space, values: np.ndarray) -> bool:
    """Checks many values of a Box fast: True if all are finite and in bounds, False if ``outside`` must decide."""
    if type(space) is not spaces.Box or not values.size:
        return False
    low, high = space.low.max(), space.high.min()
    if values.dtype.kind == "f":  # ``outside`` must decide about infinity, whatever the bounds are
        finite = np.finfo(values.dtype)
        low, high = max(low, finite.min), min(high, finite.max)
    rows = max(1, _BLOCK * len(values) // values.size)  # so that a block is in the cache for both comparisons
    blocks = [values[begin : begin + rows] for begin in range(0, len(values), rows)]
    return all(block.min() >= low and block.max() <= high for block in blocks)


def outside(space: spaces.Space, values: Tree) -> tuple[np.ndarray, str]:
    """Finds the rows of a batch of values that are not in a space, and the reason.

    Args:
        space: A Box, Discrete, MultiDiscrete or MultiBinary space, or a Dict or Tuple of them.
        values: ``[B, ...]`` array, or a tree of such arrays.

    Returns:
        ``[B]`` bool, True where the row is not in the space, and a sentence about the first such row (``""`` if none).
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        bad, why = None, ""
        for key, part in parts:
            part_bad, part_why = outside(part, values[key])
            bad = part_bad if bad is None else bad | part_bad
            why = why or (f"in part {key!r}, {part_why}" if part_why else "")
        return (np.zeros(0, bool) if bad is None else bad), why
    if isinstance(space, spaces.Box):
        if all_within(space, values):
            return np.zeros(len(values), bool), ""  # the usual case, without a comparison for each number
        if values.dtype.kind == np.dtype(space.dtype).kind == "f":
            with np.errstate(over="ignore"):
                values = values.astype(space.dtype, copy=False)  # as columns keep them: rounded, they may be inside
        with np.errstate(invalid="ignore"):
            fine = (values >= space.low) & (values <= space.high)
        low, high = space.low, space.high
    elif isinstance(space, spaces.Discrete):
        low, high = space.start, space.start + space.n - 1
        fine = (values >= low) & (values <= high)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
        fine = (values >= low) & (values <= high)
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.zeros(space.shape, int), np.ones(space.shape, int)
        fine = (values == 0) | (values == 1)
    else:
        raise ConfigError(f"spaces: {space} is not a space whose membership can be checked in batches.")
    bad = ~fine.all(axis=tuple(range(1, fine.ndim)))
    return bad, _first_offender(values, fine, low, high) if bad.any() else ""


def unlike(space: spaces.Space, column: Tree, *, of_any_type: bool = True) -> str:
    """Returns why a column cannot be one of a space, by its structure, shapes and types; ``""`` if it can.

    Args:
        space: The space.
        column: ``[B, ...]`` array, or a tree of such arrays.
        of_any_type: Whether its numbers may be of any type.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        keys, kind = [key for key, _ in parts_of(space)], dict if isinstance(space, spaces.Dict) else tuple
        found = list(column) if isinstance(column, dict) else list(range(len(column)))
        if not isinstance(column, kind) or set(found) != set(keys):
            return f"are no {kind.__name__}s with the parts {keys}"
        reasons = ((key, unlike(part, column[key], of_any_type=of_any_type)) for key, part in parts_of(space))  # type: ignore[index,call-overload]
        return next((f"in part {key!r} {why}" for key, why in reasons if why), "")
    if isinstance(column, (dict, tuple)):
        return "have several parts"
    if space.shape is None or space.dtype is None:
        return ""
    if column.shape[1:] != space.shape:
        return f"have the shape {column.shape[1:]}"
    now, was = np.dtype(space.dtype), column.dtype
    is_like = (was == now) if now.kind == "f" else (was.kind in "biu")
    return "" if of_any_type or is_like else f"are {was}"


def parts_with_values(
    space: spaces.Space, values: Tree, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], spaces.Space, np.ndarray]]:
    """Yields the path, the space and the ``[B, ...]`` values of each leaf."""
    if not isinstance(space, (spaces.Dict, spaces.Tuple)):
        yield path, space, values
        return
    for key, part in parts_of(space):
        yield from parts_with_values(part, values[key], (*path, key))


def beyond_bounds(space: spaces.Box, values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, dict[int, int]]:
    """Finds the rows of a Box's values that are out of bounds, and the first such row of each component.

    Args:
        space: The Box.
        values: ``[B, ...]``, all finite.
        rows: ``[B]`` bool, the rows to check.

    Returns:
        ``[B]`` bool, and, by the flat number of a component that is out of bounds somewhere, the first such row.
    """
    found = np.zeros(len(values), bool)
    if not values.size or all_within(space, values):
        return found, {}
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    flat = values.reshape(len(values), -1)
    lowest, highest = _column_extremes(flat)
    suspects = np.flatnonzero((lowest < low) | (highest > high))
    first = np.full(len(suspects), -1)
    of_all = len(suspects) == len(low)
    low, high = low[suspects], high[suspects]
    block = max(1, _BLOCK // max(len(suspects), 1))
    for begin in range(0, len(values) if len(suspects) else 0, block):
        own = flat[begin : begin + block] if of_all else flat[begin : begin + block, suspects]
        bad = ((own < low) | (own > high)) & rows[begin : begin + block, None]
        found[begin : begin + block] = bad.any(axis=1)
        new = np.flatnonzero(bad.any(axis=0) & (first < 0))
        if len(new):
            first[new] = begin + bad[:, new].argmax(axis=0)
    return found, {int(suspects[i]): int(first[i]) for i in np.flatnonzero(first >= 0)}


def _column_extremes(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the lowest and the highest number of each column of ``[N, D]``. Short rows are joined for speed."""
    rows, columns = table.shape
    abreast = max(1, min(rows, 512 // max(columns, 1)))
    whole = rows - rows % abreast
    wide, rest = table[:whole].reshape(-1, abreast * columns), table[whole:]
    lowest = np.concatenate([wide.min(axis=0).reshape(abreast, columns), rest]).min(axis=0)
    return lowest, np.concatenate([wide.max(axis=0).reshape(abreast, columns), rest]).max(axis=0)


def _first_offender(values: np.ndarray, fine: np.ndarray, low: Any, high: Any) -> str:
    row, *rest = np.argwhere(~fine)[0].tolist()
    place = tuple(rest)
    low, high = np.broadcast_to(low, fine.shape[1:])[place], np.broadcast_to(high, fine.shape[1:])[place]
    component = f"component {', '.join(map(str, place))} " if place else ""
    return f"{component}is {values[(row, *place)]!s}, not in [{low}, {high}]"


def misfit(space: spaces.Space, item: Any) -> str:
    """Returns a short reason why an item is not in a space; ``""`` if it is.

    Any dtype that holds the values is accepted, and so are lists and tuples instead of arrays and tuples.

    >>> misfit(spaces.Discrete(3), 7)
    'it is 7, not in [0, 2]'
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = parts_of(space)
        try:
            found = parts_in(space, item)
        except ValueError:
            keys = _keys_of(space, item)
            if keys is None:
                return f"it is a {type(item).__name__}, not a {'dict' if isinstance(space, spaces.Dict) else 'tuple'}"
            return f"it has the parts {keys}, not {[key for key, _ in parts]}"
        why = ((key, misfit(part, own)) for (key, part), own in zip(parts, found, strict=True))
        return next((f"in part {key!r}, {reason}" for key, reason in why if reason), "")
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return "" if space.contains(item) else f"it is {item!r}"
    try:
        values = np.asarray(item)
    except ValueError:
        values = np.array(None)
    if values.dtype.kind not in "biuf":
        return f"it is {item!r}, which is not numbers"
    if values.shape != space.shape:
        return f"it has the shape {values.shape}, not {space.shape}"
    if np.dtype(space.dtype).kind in "iub" and not np.array_equal(values, np.round(values)):
        if isinstance(space, spaces.Box):
            return f"it has values that are not whole numbers, which {space.dtype} cannot hold"
        return f"it is {item!r}, not whole numbers"
    reason = outside(space, values[None])[1]
    if reason:
        return f"it {reason}" if reason.startswith("is") else reason
    is_whole = space.dtype.kind == "f" or np.array_equal(values, np.round(values))
    return "" if is_whole else f"it is {item!r}, not whole numbers"


def _keys_of(space: spaces.Dict | spaces.Tuple, item: Any) -> list[Any] | None:
    """Returns the keys or indices of an item's parts; None if its type cannot be an item of the space."""
    if isinstance(space, spaces.Dict):
        return list(item) if isinstance(item, Mapping) else None
    has_parts = isinstance(item, (tuple, list)) or (isinstance(item, np.ndarray) and item.ndim)
    return list(range(len(item))) if has_parts else None


def describe(space: spaces.Space) -> str:
    """Describes a space in a few words, for messages: ``Box(18,) float32``, ``Discrete(5)``."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape} {space.dtype}"
    if isinstance(space, spaces.Dict):
        return "Dict(" + ", ".join(f"{k}: {describe(s)}" for k, s in space.spaces.items()) + ")"
    return str(space)


def to_json(space: spaces.Space) -> dict[str, Any]:
    """Converts a space to JSON data. ``from_json`` restores it exactly, with the order of keys and all bounds."""
    match space:
        case spaces.Box():
            return {
                "type": "Box",
                "low": _bounds_to_json(space, space.low),
                "high": _bounds_to_json(space, space.high),
                "shape": list(space.shape),
                "dtype": str(space.dtype),
                **_unbounded_sides(space),
            }
        case spaces.Discrete():
            return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
        case spaces.MultiDiscrete():
            return {
                "type": "MultiDiscrete",
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
                "dtype": str(space.dtype),
            }
        case spaces.MultiBinary():
            return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Dict():
            return {"type": "Dict", "spaces": [[_key(key), to_json(part)] for key, part in space.spaces.items()]}
        case spaces.Tuple():
            return {"type": "Tuple", "spaces": [to_json(s) for s in space.spaces]}
    raise ConfigError(f"spaces: {space} cannot be written to JSON.")


def _key(key: Any) -> str | int:
    if not isinstance(key, (str, int)):
        raise ConfigError(f"spaces: the key {key!r} of a Dict space cannot be written to JSON. Use strings or ints.")
    return key


def _bounds_to_json(space: spaces.Box, bounds: np.ndarray) -> Any:
    """Converts bounds to JSON: one number if all are equal, and infinity, which JSON lacks, as ``"inf"``."""
    if bounds.dtype.itemsize > 8:
        raise ConfigError(f"spaces: {space} has bounds of {bounds.dtype}, which JSON cannot hold. Use float64.")
    plain = bounds.reshape(-1)
    flat = [str(x) if not np.isfinite(x) else x for x in plain.tolist()]
    return flat[0] if flat and plain.tobytes() == plain[:1].tobytes() * len(flat) else flat


def _unbounded_sides(space: spaces.Box) -> dict[str, Any]:
    """Returns the sides on which bounds of integers mean infinity. Bounds of floats are infinite themselves."""
    if space.dtype.kind == "f":
        return {}
    sides = {"bounded_below": space.bounded_below, "bounded_above": space.bounded_above}
    return {name: side.reshape(-1).tolist() for name, side in sides.items() if not side.all()}


def from_json(data: dict[str, Any]) -> spaces.Space:
    """Returns the space that ``to_json`` described."""
    match data["type"]:
        case "Box":
            return _box_from_json(data)
        case "Discrete":
            # Older versions of Gymnasium know int64 only, and take no dtype.
            other: dict[str, Any] = {} if data["dtype"] == "int64" else {"dtype": np.dtype(data["dtype"]).type}
            return spaces.Discrete(data["n"], start=data["start"], **other)
        case "MultiDiscrete":
            dtype = np.dtype(data["dtype"])
            nvec, start = (np.array(data[name], dtype) for name in ("nvec", "start"))
            return spaces.MultiDiscrete(nvec, start=start, dtype=dtype.type)
        case "MultiBinary":
            return spaces.MultiBinary(data["n"])
        case "Dict":  # pairs, as Gymnasium sorts the keys of a plain dict
            return spaces.Dict([(key, from_json(part)) for key, part in data["spaces"]])
        case "Tuple":
            return spaces.Tuple([from_json(s) for s in data["spaces"]])
    raise ConfigError(f"spaces: {data['type']!r} is not a kind of space that JSON can hold.")


def _box_from_json(data: dict[str, Any]) -> spaces.Box:
    shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
    low, high = (_from_flat(_bounds_from_json(data[side], dtype), shape) for side in ("low", "high"))
    space = spaces.Box(low, high, shape, dtype)  # type: ignore[arg-type]
    space.low, space.high = low, high  # not all versions of Gymnasium keep the bounds as they are
    for side in ("bounded_below", "bounded_above"):
        if side in data:
            setattr(space, side, _from_flat(np.array(data[side], bool), shape))
    return space


def _bounds_from_json(bounds: Any, dtype: np.dtype) -> np.ndarray:
    flat = bounds if isinstance(bounds, list) else [bounds]
    return np.array([float(x) for x in flat] if dtype.kind == "f" else flat, dtype)


def _from_flat(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Reshapes flat values; a single value is used for all places."""
    return np.full(shape, values[0], values.dtype) if values.shape == (1,) else values.reshape(shape)
