"""Between lists of items and arrays, or trees of arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gym_spaces

from marl_connectors import spaces
from marl_connectors.episodes.lookback import count, is_branch, map_tree, part_of, row
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import leaves, same_structure, tree_map
from marl_connectors.typing import Tree

_VALUES = frozenset((int, float, bool))
"""Numbers, which have no parts, and which nobody can write to."""


def batch(items: list[Any], space: Space | None = None, like: Tree | None = None, name: str = "items") -> Tree:
    """Items as one array (or tree of arrays) with a new first axis.

    Args:
        items: Numbers, arrays, or dicts and tuples of them, all of one shape.
        space: Their space, if known. Its dtype is used wherever it loses nothing.
        like: An array or tree whose dtype is used in the same way where there is no space.
        name: Stands in messages.

    Raises:
        EpisodeError: If the items differ in shape or in keys.
    """
    if not items:
        return like if like is not None else np.zeros(0) if space is None else spaces.zeros(space, 0)
    first = items[0]
    if is_branch(first, space):
        keys = list(first) if isinstance(first, dict) else range(len(first))
        if any(type(item) is not type(first) or _keys(item) != _keys(first) for item in items):
            raise EpisodeError(
                f"episode: the {name!r} have different keys, so they do not stand in one tree of arrays."
            )
        parts = {
            key: batch([item[key] for item in items], part_of(space, key), part_of(like, key), f"{name}/{key}")
            for key in keys
        }
        return parts if isinstance(first, dict) else tuple(parts.values())
    try:
        array = np.array(items)
    except ValueError as error:
        shapes = sorted({str(np.shape(item)) for item in items})
        raise EpisodeError(
            f"episode: the {name!r} have different shapes ({', '.join(shapes)}), so they do not stand in one array. "
            f"Write items of one shape for all steps."
        ) from error
    if space is not None and space.dtype is not None and space.shape == array.shape[1:]:
        is_mixed = array.dtype.kind == "f" and space.dtype.kind in "iu"  # 64-bit integers of both kinds, perhaps
        return spaces.stack(items, space) if is_mixed and _fit(items, space) else lossless(array, space.dtype)
    return lossless(array, like.dtype) if isinstance(like, np.ndarray) else array


def _fit(items: list[Any], space: Space) -> bool:
    return all(spaces.fits(space, item) for item in items)


def _keys(branch: dict | tuple) -> Any:
    return branch.keys() if isinstance(branch, dict) else len(branch)


def unbatch(column: list | Tree) -> list[Any]:
    """The items of a column as a list that shares nothing with an array."""
    if type(column) is np.ndarray:
        return list(column.copy())
    if isinstance(column, list):
        return column[:]
    columns = map_tree(lambda leaf, _: leaf.copy(), column)
    return [row(columns, position) for position in range(count(columns))]


def joined(columns: Sequence[list | Tree]) -> list | Tree:
    """Columns one after the other."""
    if len(columns) == 1:
        return columns[0]
    if any(isinstance(column, list) for column in columns):
        return [item for column in columns for item in unbatch(column)]
    trees: list[Any] = list(columns)
    return tree_map(lambda *leaves: np.concatenate(leaves), *trees)


def head(column: Tree) -> Tree:
    """The column without its items: dtypes and shapes."""
    if type(column) is np.ndarray:
        return np.empty((0, *column.shape[1:]), column.dtype)
    return map_tree(lambda leaf, _: np.empty((0, *leaf.shape[1:]), leaf.dtype), column)


def owned(item: Any, space: Space | None = None) -> Any:
    """The item, its arrays and lists copied: whoever gave it may write to them again.

    With a ``space``, the item gets its parts: a dict with a Dict's keys in their order, a tuple for a Tuple, arrays for
    lists and tuples that are one value of, say, a MultiDiscrete space. What has other parts stays as it is.
    """
    kind = type(item)
    if kind is np.ndarray and (space is None or space.shape is not None):
        return item.copy()
    if space is None or kind in _VALUES:
        if kind is list:
            return [owned(part) for part in item]
        return map_tree(lambda leaf, _: owned(leaf), item) if is_branch(item) else item
    if isinstance(space, (gym_spaces.Dict, gym_spaces.Tuple)):
        try:
            parts = spaces.parts_in(space, item)
        except ValueError:
            return owned(item)
        own = {key: owned(part, of) for (key, of), part in zip(spaces.parts_of(space), parts, strict=True)}
        return own if isinstance(space, gym_spaces.Dict) else tuple(own.values())
    if kind in (list, tuple) and space.shape is not None:
        try:
            return spaces.stack([item], space)[0]
        except (TypeError, ValueError):  # it is not in the space, but nobody asked
            return batch([item])[0]
    return owned(item)


def owned_value(item: Any, space: Space | None) -> Any:
    """``owned``, of what somebody writes back: an array is one value, whatever parts the space has.

    Connector pieces write flat vectors in the place of items with parts.
    """
    return owned(item, None if isinstance(item, np.ndarray) else space)


def owned_infos(infos: Any, who: str) -> dict[str, Any]:
    """A copy of an info dict and of the arrays in it; an empty one for None.

    Raises:
        EpisodeError: If it is not a dict.
    """
    if infos is None:
        return {}
    if not isinstance(infos, Mapping):
        raise EpisodeError(f"{who}: infos must be a dict, but {type(infos).__name__} came.")
    return {key: owned(value) for key, value in infos.items()}


def lossless(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array in ``dtype`` if that holds its values (rounding of floats aside), else as it is."""
    if array.dtype == dtype or array.dtype.kind not in "biufc":
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
    if array.dtype.kind == "f" and cast.dtype.kind == "f":
        return cast if np.array_equal(np.isfinite(cast), np.isfinite(array)) else array
    return cast if np.array_equal(cast, array) else array


def alike(column: Tree, other: Tree) -> bool:
    """Whether items of both can stand in one array."""
    if not same_structure(column, other):
        return False
    pairs = zip(leaves(column), leaves(other), strict=True)
    return all(one.shape[1:] == two.shape[1:] and one.dtype == two.dtype for one, two in pairs)


def kind(column: Tree) -> str:
    """Dtypes and shapes of the items, for messages."""
    return " and ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in leaves(column))


def same_item(one: Any, other: Any) -> bool:
    """Whether two items are equal, not-a-number in the same places included."""
    if is_branch(one) or is_branch(other):
        if type(one) is not type(other) or len(one) != len(other):
            return False
        keys = one if isinstance(one, dict) else range(len(one))
        return all((not isinstance(other, dict) or key in other) and same_item(one[key], other[key]) for key in keys)
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f")


def number(reward: Any, who: str) -> float:
    """A reward as a float.

    Raises:
        EpisodeError: If it is not a finite number.
    """
    try:
        value = math.nan if isinstance(reward, (str, bytes)) else float(reward)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise EpisodeError(
            f"{who}: a reward must be one finite number, but {reward!r} came. Look at what env.step() returns."
        )
    return value
