"""Index arithmetic of episodes, in one place for lists and for arrays.

An episode's column holds ``lookback`` items from before the episode's first step, then ``length`` of its own:

>>> column = [4, 5, 6, 7, 8, 9]  # 4, 5 and 6 are lookback, 7 is the item of t=0
>>> gather(column, resolve(slice(-2, 1), length=3, lookback=3, neg_index_as_lookback=True))
[5, 6, 7]
>>> gather(column, resolve([-7, -1], length=3, lookback=3, fill=True), fill=0)
[0, 9]

:func:`resolve` turns what a user writes into *positions*, counted from the oldest kept item; :func:`gather` picks them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from gymnasium import spaces

from marl_connectors.errors import EpisodeError
from marl_connectors.trees import leaves
from marl_connectors.typing import Tree

OUTSIDE: Final = -1
"""The position of an item that is neither in the lookback nor in the episode."""

Indices: TypeAlias = int | Sequence[int] | slice | None
Positions: TypeAlias = int | list[int] | slice


def resolve(
    indices: Indices,
    *,
    length: int,
    lookback: int,
    neg_index_as_lookback: bool = False,
    fill: bool = False,
    who: str = "episode",
) -> Positions:
    """What a user's indices mean, as positions counted from the oldest kept item.

    Args:
        indices: None for all but the lookback, an int, a list of ints, or a slice.
        length: Items without the lookback.
        lookback: Items before t=0.
        neg_index_as_lookback: -1 means the last item before t=0 instead of the last one of all.
        fill: Whether positions out of range are allowed; they come back as ``OUTSIDE``.
        who: Names the caller in messages.

    Returns:
        An int for an int, a slice (to be applied as it is) for None and for slices inside the range, else a list.

    Raises:
        IndexError: If an index is out of range and ``fill`` is False. Slices are clipped instead, as Python's are.
        TypeError: If ``indices`` are not integers.
    """
    total = lookback + length
    if indices is None:
        return slice(lookback, total)

    def absolute(index: int) -> int:
        return lookback + index if index >= 0 or neg_index_as_lookback else total + index

    def position(index: Any) -> int:
        try:
            index = operator.index(index)
        except TypeError:
            raise TypeError(
                f"{who}: indices must be None, an int, a list of ints or a slice, but {index!r} came."
            ) from None
        where = absolute(index)
        if 0 <= where < total:
            return where
        if fill:
            return OUTSIDE
        raise IndexError(
            f"{who}: index {index}{' (counted from t=0)' if neg_index_as_lookback else ''} is out of range for "
            f"{length} item(s) and a lookback of {lookback}. Pass fill= to pad, or keep a longer lookback."
        )

    if isinstance(indices, slice):
        return _resolve_slice(indices, absolute, total=total, lookback=lookback, fill=fill, who=who)
    if isinstance(indices, (list, tuple, range, np.ndarray)) and np.ndim(indices) == 1:
        return [position(index) for index in indices]
    return position(indices)


def _resolve_slice(
    indices: slice, absolute: Callable[[int], int], *, total: int, lookback: int, fill: bool, who: str
) -> slice | list[int]:
    step = 1 if indices.step is None else indices.step
    if step == 0:
        raise EpisodeError(f"{who}: a slice needs a step other than 0, but {indices} came.")
    if step > 0:
        start = lookback if indices.start is None else absolute(indices.start)
        stop = total if indices.stop is None else absolute(indices.stop)
        low, high = 0, total
    else:
        start = total - 1 if indices.start is None else absolute(indices.start)
        stop = lookback - 1 if indices.stop is None else absolute(indices.stop)
        low, high = -1, total - 1
    if fill:
        wanted = range(start, stop, step)
        if wanted and not (min(wanted[0], wanted[-1]) >= 0 and max(wanted[0], wanted[-1]) < total):
            return [where if 0 <= where < total else OUTSIDE for where in wanted]
    start, stop = min(max(start, low), high), min(max(stop, low), high)
    if not range(start, stop, step):
        return slice(0, 0)
    return slice(start, None if stop < 0 else stop, step)


def gather(
    column: list | Tree,
    positions: Positions,
    *,
    fill: Any = None,
    space: spaces.Space | None = None,
    one_hot_discrete: bool = False,
    opaque: bool = False,
) -> Any:
    """The items at some positions of a column.

    Args:
        column: A list of items, or an array or tree of arrays with one row for each item.
        positions: What :func:`resolve` returned.
        fill: Stands at each ``OUTSIDE``, in an item's shape and, if that can hold it, in its dtype.
        space: The space of the items, if known.
        one_hot_discrete: Makes Discrete and MultiDiscrete parts float32 one-hot vectors; filled ones are all zeros.
        opaque: The items are not numbers, and ``fill`` is used as it is.

    Returns:
        One item for an int; otherwise a list from a list, and arrays from arrays.

    Raises:
        EpisodeError: If one-hot vectors are wanted and the space is unknown, or an item is not in it.
    """
    if one_hot_discrete and space is None:
        raise EpisodeError("episode: one_hot_discrete=True needs the items' space. Give the episode its space.")
    if isinstance(positions, int):
        if not one_hot_discrete and positions != OUTSIDE:
            return column[positions] if type(column) in (list, np.ndarray) else row(column, positions)
        if isinstance(column, list):
            return gather(
                column, [positions], fill=fill, space=space, one_hot_discrete=one_hot_discrete, opaque=opaque
            )[0]
        return row(gather(column, [positions], fill=fill, space=space, one_hot_discrete=one_hot_discrete), 0)
    if isinstance(column, list):
        picked = column[positions] if isinstance(positions, slice) else positions
        if isinstance(positions, list):
            missing = _filler(column, fill, space, one_hot_discrete, opaque) if OUTSIDE in positions else None
            picked = [missing if p == OUTSIDE else _shown(column[p], space, one_hot_discrete) for p in positions]
        elif one_hot_discrete:
            picked = [_shown(item, space, True) for item in picked]
        return picked
    if isinstance(positions, slice) and not one_hot_discrete:
        return column[positions] if type(column) is np.ndarray else map_tree(lambda leaf, _: leaf[positions], column)
    if isinstance(positions, slice):
        positions = list(range(*positions.indices(count(column))))
    where = np.array(positions, np.int64)
    inside = where >= 0

    def pick(leaf: np.ndarray, part: spaces.Space | None) -> np.ndarray:
        picked, padding = leaf[where[inside]], fill
        if one_hot_discrete and isinstance(part, (spaces.Discrete, spaces.MultiDiscrete)):
            picked, padding = one_hot(picked, part), 0.0
        if len(picked) == len(where):
            return picked
        padded = np.full((len(where), *picked.shape[1:]), padding, _holding(picked.dtype, padding))
        padded[inside] = picked
        return padded

    return map_tree(pick, column, space)


def one_hot(values: Any, space: spaces.Discrete | spaces.MultiDiscrete) -> np.ndarray:
    """Discrete values as one-hot vectors.

    Args:
        values: ``[...]`` integers of a Discrete, or ``[..., *nvec.shape]`` of a MultiDiscrete space.
        space: Says how many values there are, and which is the first.

    Returns:
        ``[..., n]`` float32, where ``n`` of a MultiDiscrete space is the sum of its ``nvec``.
    """
    if isinstance(space, spaces.MultiDiscrete):
        lead = np.shape(values)[: np.ndim(values) - space.nvec.ndim]
        parts = np.reshape(np.asarray(values, np.int64), (*lead, -1))
        sizes, starts = space.nvec.ravel(), space.start.ravel()
        columns = [_one_hot(parts[..., i] - starts[i], int(sizes[i]), space) for i in range(len(sizes))]
        return np.concatenate(columns, axis=-1)
    return _one_hot(np.asarray(values, np.int64) - int(space.start), int(space.n), space)


def _one_hot(values: np.ndarray, n: int, space: spaces.Space) -> np.ndarray:
    if np.any((values < 0) | (values >= n)):
        raise EpisodeError(f"episode: one_hot_discrete=True needs values of {space}, but an item is outside of it.")
    return (values[..., None] == np.arange(n)).astype(np.float32)


def _shown(item: Any, space: spaces.Space | None, one_hot_discrete: bool) -> Any:
    if not one_hot_discrete:
        return item

    def show(leaf: Any, part: spaces.Space | None) -> Any:
        return one_hot(leaf, part) if isinstance(part, (spaces.Discrete, spaces.MultiDiscrete)) else leaf

    return map_tree(show, item, space)


def _filler(column: list, fill: Any, space: spaces.Space | None, one_hot_discrete: bool, opaque: bool) -> Any:
    """One filled item that looks like those of a list."""
    if opaque:
        return fill

    def padding(leaf: Any, part: spaces.Space | None) -> Any:
        if one_hot_discrete and isinstance(part, spaces.Discrete):
            return np.zeros(int(part.n), np.float32)
        if one_hot_discrete and isinstance(part, spaces.MultiDiscrete):
            return np.zeros(int(part.nvec.sum()), np.float32)
        shape = np.shape(leaf)
        if part is not None and part.dtype is not None and part.shape == shape:
            return np.full(shape, fill, _holding(part.dtype, fill))[()]
        if isinstance(leaf, (np.ndarray, np.generic)):
            return np.full(shape, fill, _holding(leaf.dtype, fill))[()]
        return fill if shape == () else np.full(shape, fill)

    if column:
        return map_tree(padding, column[-1], space)
    return fill if space is None else map_tree(padding, _zeros(space), space)


def _zeros(space: spaces.Space) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _zeros(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_zeros(part) for part in space.spaces)
    return np.zeros(space.shape or (), space.dtype)


def _holding(dtype: np.dtype, fill: Any) -> np.dtype:
    """The dtype itself if it can hold ``fill``, else one that can."""
    if dtype.kind in "fc":
        return dtype
    if dtype.kind in "biu" and np.ndim(fill) == 0 and np.isfinite(fill) and fill == int(fill):
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if low <= fill <= high:
            return dtype
        return np.result_type(dtype, np.min_scalar_type(int(fill)))
    return np.result_type(dtype, fill, np.float32)


# Trees: an array, or a dict or tuple of trees.


def is_branch(tree: Any, space: spaces.Space | None = None) -> bool:
    """Whether ``tree`` has parts of its own; a tuple that is one value of, say, a MultiDiscrete space has not."""
    return isinstance(tree, (dict, tuple)) and (space is None or space.shape is None)


def part_of(whole: Any, key: Any) -> Any:
    """The part of a space or tree that belongs to a tree's ``key``, or None."""
    if isinstance(whole, spaces.Dict):
        return whole.spaces.get(key)
    if isinstance(whole, spaces.Tuple):
        return whole.spaces[key] if key < len(whole.spaces) else None
    if isinstance(whole, dict):
        return whole.get(key)
    return whole[key] if isinstance(whole, tuple) and key < len(whole) else None


def map_tree(func: Callable[[Any, Any], Any], tree: Tree, space: spaces.Space | None = None) -> Tree:
    """``func(leaf, space of the leaf)`` for each leaf. ``optree`` cannot walk a tree and its space together."""
    if not is_branch(tree, space):
        return func(tree, space)
    if isinstance(tree, dict):
        return {key: map_tree(func, part, part_of(space, key)) for key, part in tree.items()}
    return tuple(map_tree(func, part, part_of(space, key)) for key, part in enumerate(tree))


def row(column: Tree, position: int) -> Any:
    """One item of an array or tree of arrays."""
    return map_tree(lambda leaf, _: leaf[position], column)


def count(column: list | Tree) -> int:
    """How many items a column has."""
    if isinstance(column, (list, np.ndarray)):
        return len(column)
    return len(leaves(column)[0])
