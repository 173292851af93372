"""Items and columns: from lists of items to arrays, or trees of arrays, and back.

A *tree* is an array, or a dict or tuple of trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gym_spaces

from marl_connectors import spaces
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import leaves, same_structure, tree_map
from marl_connectors.typing import Tree

_VALUES = frozenset((int, float, bool))
"""Types of numbers, which have no parts and never change."""


# Trees.


def is_branch(tree: Any, space: Space | None = None) -> bool:
    """Whether ``tree`` has parts of its own; a tuple that is one value of, say, a MultiDiscrete space has none."""
    return isinstance(tree, (dict, tuple)) and (space is None or space.shape is None)


def part_of(whole: Any, key: Any) -> Any:
    """Returns the part of a space or tree that belongs to a tree's ``key``, or None."""
    if isinstance(whole, gym_spaces.Dict):
        return whole.spaces.get(key)
    if isinstance(whole, gym_spaces.Tuple):
        return whole.spaces[key] if key < len(whole.spaces) else None
    if isinstance(whole, dict):
        return whole.get(key)
    return whole[key] if isinstance(whole, tuple) and key < len(whole) else None


def map_tree(func: Callable[[Any, Any], Any], tree: Tree, space: Space | None = None) -> Tree:
    """Returns a tree of ``func(leaf, space of the leaf)``. ``optree`` cannot walk a tree and its space together."""
    if not is_branch(tree, space):
        return func(tree, space)
    if isinstance(tree, dict):
        return {key: map_tree(func, part, part_of(space, key)) for key, part in tree.items()}
    return tuple(map_tree(func, part, part_of(space, key)) for key, part in enumerate(tree))


def row(column: Tree, position: int) -> Any:
    """Returns one item of an array or tree of arrays."""
    return map_tree(lambda leaf, _: leaf[position], column)


def count(column: list | Tree) -> int:
    """Returns the number of items in a column."""
    if isinstance(column, (list, np.ndarray)):
        return len(column)
    return len(leaves(column)[0])


# Between items and columns.


def batch(items: list[Any], space: Space | None = None, like: Tree | None = None, name: str = "items") -> Tree:
    """Stacks items into one array (or tree of arrays) with a new first axis.

    Args:
        items: Numbers, arrays, or dicts and tuples of them, all of one shape.
        space: Their space, if it is known. Its dtype is used wherever the values keep their precision.
        like: An array or tree whose dtype is used in the same way where there is no space.
        name: The column's name, for messages.

    Raises:
        EpisodeError: If the items differ in shape or in keys.
    """
    if not items:
        return like if like is not None else np.zeros(0) if space is None else spaces.zeros(space, 0)
    first = items[0]
    if is_branch(first, space):
        keys = list(first) if isinstance(first, dict) else range(len(first))
        if any(type(item) is not type(first) or _keys(item) != _keys(first) for item in items):
            raise EpisodeError(f"episode: the {name!r} have different keys, so they do not fit in one tree of arrays.")
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
            f"episode: the {name!r} have different shapes ({', '.join(shapes)}), so they do not fit in one array. "
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
    """Returns the items of a column as a list that shares no memory with an array."""
    if type(column) is np.ndarray:
        return list(column.copy())
    if isinstance(column, list):
        return column[:]
    columns = map_tree(lambda leaf, _: leaf.copy(), column)
    return [row(columns, position) for position in range(count(columns))]


def joined(columns: Sequence[list | Tree]) -> list | Tree:
    """Concatenates columns."""
    if len(columns) == 1:
        return columns[0]
    if any(isinstance(column, list) for column in columns):
        return [item for column in columns for item in unbatch(column)]
    trees: list[Any] = list(columns)
    return tree_map(lambda *leaves: np.concatenate(leaves), *trees)


def head(column: Tree) -> Tree:
    """Returns an empty column with the dtypes and shapes of another."""
    if type(column) is np.ndarray:
        return np.empty((0, *column.shape[1:]), column.dtype)
    return map_tree(lambda leaf, _: np.empty((0, *leaf.shape[1:]), leaf.dtype), column)


def owned(item: Any, space: Space | None = None) -> Any:
    """Returns the item with copies of its arrays and lists, as its owner may write to them again.

    With a ``space``, the item gets the parts of the space: a dict with a Dict's keys in their order, a tuple for a
    Tuple, arrays for lists and tuples that are one value of, say, a MultiDiscrete space. An item with other parts keeps
    them.
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
        except (TypeError, ValueError):  # the item is not in the space, which is not checked here
            return batch([item])[0]
    return owned(item)


def owned_value(item: Any, space: Space | None) -> Any:
    """Returns a copy of an item that a setter got. An array is one value, whatever parts the space has.

    Connector pieces replace items with parts by flat vectors.
    """
    return owned(item, None if isinstance(item, np.ndarray) else space)


def owned_infos(infos: Any, who: str) -> dict[str, Any]:
    """Returns a copy of an info dict and of the arrays in it; an empty dict for None.

    Raises:
        EpisodeError: If ``infos`` is not a dict.
    """
    if infos is None:
        return {}
    if not isinstance(infos, Mapping):
        raise EpisodeError(f"{who}: infos must be a dict, but {type(infos).__name__} came.")
    return {key: owned(value) for key, value in infos.items()}


def lossless(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns the array in ``dtype`` if that holds its values (up to the rounding of floats), else unchanged."""
    if array.dtype == dtype or array.dtype.kind not in "biufc":
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
    if array.dtype.kind == "f" and cast.dtype.kind == "f":
        return cast if np.array_equal(np.isfinite(cast), np.isfinite(array)) else array
    return cast if np.array_equal(cast, array) else array


def alike(column: Tree, other: Tree) -> bool:
    """Whether the items of both columns fit in one array."""
    if not same_structure(column, other):
        return False
    pairs = zip(leaves(column), leaves(other), strict=True)
    return all(one.shape[1:] == two.shape[1:] and one.dtype == two.dtype for one, two in pairs)


def kind(column: Tree) -> str:
    """Returns dtypes and shapes of the items, for messages."""
    return " and ".join(f"{leaf.dtype}{list(leaf.shape[1:])}" for leaf in leaves(column))


def same_item(one: Any, other: Any) -> bool:
    """Whether two items are equal; not-a-number equals itself."""
    if is_branch(one) or is_branch(other):
        if type(one) is not type(other) or len(one) != len(other):
            return False
        keys = one if isinstance(one, dict) else range(len(one))
        return all((not isinstance(other, dict) or key in other) and same_item(one[key], other[key]) for key in keys)
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f")


def number(reward: Any, who: str) -> float:
    """Returns a reward as a float.

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


# Info dicts.


class InfoColumn(list[dict[str, Any]]):
    """A list of info dicts, one for each row, from which rows are selected as from a tensor.

    Tree functions do not know this type as a container, so none of them looks into the dicts.
    """

    __slots__ = ()
    device = "cpu"

    @overload
    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> InfoColumn: ...

    def __getitem__(self, index: Any) -> Any:
        picked = super().__getitem__(index)
        return InfoColumn(picked) if isinstance(index, slice) else picked

    def index_select(self, dim: int, index: Any) -> InfoColumn:
        """Returns the rows of a ``[B]`` tensor of row numbers."""
        return InfoColumn([self[i] for i in index.tolist()])

    def unflatten(self, dim: int, sizes: tuple[int, int]) -> list[InfoColumn]:
        """Splits the column into ``sizes[0]`` columns of equal length."""
        each = len(self) // sizes[0]
        return [self[i * each : (i + 1) * each] for i in range(sizes[0])]
