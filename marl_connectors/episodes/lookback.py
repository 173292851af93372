"""Index arithmetic of episodes, for lists and for arrays.

An episode's column holds ``lookback`` items from before the episode's first step, then ``length`` of its own:

>>> column = [4, 5, 6, 7, 8, 9]  # 4, 5 and 6 are lookback, 7 is the item of t=0
>>> gather(column, resolve(slice(-2, 1), 3, 3, neg_index_as_lookback=True))
[5, 6, 7]
>>> gather(column, resolve([-7, -1], 3, 3, fill=True), fill=0)
[0, 9]

:func:`resolve` turns a user's indices into *positions*, which count from the oldest kept item; :func:`gather` returns
the items there.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces

from marl_connectors.episodes.items import map_tree, row
from marl_connectors.errors import EpisodeError
from marl_connectors.typing import Tree

OUTSIDE: Final = -1
"""The position of an item that is neither in the lookback nor in the episode."""


class Padded(NamedTuple):
    """A run of items that reaches beyond the data.

    Attributes:
        before: The number of missing items on the left.
        inside: The positions of the items that exist.
        after: The number of missing items on the right.
    """

    before: int
    inside: slice
    after: int


Indices: TypeAlias = int | Sequence[int] | slice | None
Positions: TypeAlias = int | list[int] | slice | Padded


def resolve(
    indices: Indices,
    length: int,
    lookback: int,
    neg_index_as_lookback: bool = False,
    fill: bool = False,
) -> Positions:
    """Turns a user's indices into positions, which count from the oldest kept item.

    Args:
        indices: None for all but the lookback, an int, a list of ints, or a slice.
        length: The number of items without the lookback.
        lookback: The number of items before t=0.
        neg_index_as_lookback: Whether -1 means the last item before t=0 instead of the last one of all.
        fill: Whether positions out of range are allowed. They become ``OUTSIDE``, or part of a ``Padded``.

    Returns:
        An int for an int, a slice for None and for slices inside the range, a ``Padded`` for a run that reaches beyond
        the data, and a list for all others.

    Raises:
        IndexError: If an index is out of range and ``fill`` is False. Slices are clipped instead, as Python's are.
        TypeError: If ``indices`` are not integers.
    """
    total = lookback + length
    if indices is None:
        return slice(lookback, total)
    from_the_end = lookback if neg_index_as_lookback else total
    if isinstance(indices, slice):
        return _resolve_slice(indices, total, lookback, from_the_end, fill)
    if isinstance(indices, (list, tuple, range)) or (isinstance(indices, np.ndarray) and indices.ndim == 1):
        if not set(map(type, indices)) <= {int}:
            indices = [_integer(index) for index in indices]
        positions = [i + lookback if i >= 0 else i + from_the_end for i in indices]
        if positions and (min(positions) < 0 or max(positions) >= total):
            if not fill:
                index = next(i for i, where in zip(indices, positions, strict=True) if not 0 <= where < total)
                raise _out_of_range(index, length, lookback, neg_index_as_lookback)
            positions = [where if 0 <= where < total else OUTSIDE for where in positions]
        return positions
    index = _integer(indices)
    where = index + (lookback if index >= 0 else from_the_end)
    if 0 <= where < total:
        return where
    if fill:
        return OUTSIDE
    raise _out_of_range(index, length, lookback, neg_index_as_lookback)


def _integer(index: Any) -> int:
    try:
        if isinstance(index, (bool, np.bool_)):
            raise TypeError
        return operator.index(index)
    except TypeError:
        raise TypeError(f"indices must be None, an int, a list of ints or a slice, but {index!r} came.") from None


def _out_of_range(index: int, length: int, lookback: int, neg_index_as_lookback: bool) -> IndexError:
    return IndexError(
        f"index {index}{' (counted from t=0)' if neg_index_as_lookback else ''} is out of range for "
        f"{length} item(s) and a lookback of {lookback}. Pass fill= to pad, or keep a longer lookback."
    )


def _resolve_slice(
    indices: slice, total: int, lookback: int, from_the_end: int, fill: bool
) -> slice | list[int] | Padded:
    start, stop, step = indices.start, indices.stop, indices.step
    if step is None:
        step = 1
    elif _integer(step) == 0:
        raise EpisodeError(f"a slice needs a step other than 0, but {indices} came.")
    if start is None:
        start = lookback if step > 0 else total - 1
    else:
        start = _integer(start)
        start += lookback if start >= 0 else from_the_end
    if stop is None:
        stop = total if step > 0 else lookback - 1
    else:
        stop = _integer(stop)
        stop += lookback if stop >= 0 else from_the_end
    low, high = (0, total) if step > 0 else (-1, total - 1)
    if fill and not (low <= start <= high and low <= stop <= high):
        if step != 1:
            return [where if 0 <= where < total else OUTSIDE for where in range(start, stop, step)]
        if start < stop:
            first, last = min(max(start, 0), total), min(max(stop, 0), total)
            before, after = max(0, min(stop, 0) - start), max(0, stop - max(start, total))
            return Padded(before, slice(first, last), after)
    start, stop = min(max(start, low), high), min(max(stop, low), high)
    if (stop - start) * step <= 0:
        return slice(0, 0)
    return slice(start, None if stop < 0 else stop, step)


def gather(
    column: list | Tree,
    positions: Positions,
    fill: Any = None,
    space: spaces.Space | None = None,
    one_hot_discrete: bool = False,
    opaque: bool = False,
) -> Any:
    """Returns the items at some positions of a column.

    Args:
        column: A list of items, or an array or tree of arrays with one row for each item.
        positions: The positions, from :func:`resolve`.
        fill: The value at each ``OUTSIDE``, in an item's shape and, if that can hold it, in its dtype.
        space: The space of the items, if it is known.
        one_hot_discrete: Whether Discrete and MultiDiscrete parts become float32 one-hot vectors; filled ones are all
            zeros.
        opaque: Whether the items are no numbers, so that ``fill`` is used as it is.

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
        picked = gather(column, [positions], fill=fill, space=space, one_hot_discrete=one_hot_discrete, opaque=opaque)
        return picked[0] if isinstance(column, list) else row(picked, 0)
    if isinstance(column, list):
        return _gather_list(column, positions, fill, space, one_hot_discrete, opaque)
    if isinstance(positions, slice) and not one_hot_discrete:
        return column[positions] if type(column) is np.ndarray else map_tree(lambda leaf, _: leaf[positions], column)
    if isinstance(positions, Padded):
        before, inside, after = positions
    elif isinstance(positions, slice):
        before, inside, after = 0, positions, 0
    else:
        before, inside, after = 0, np.array(positions, np.int64), 0

    def pick(leaf: np.ndarray, part: spaces.Space | None) -> np.ndarray:
        padding, hole = fill, None
        if isinstance(inside, np.ndarray) and (inside < 0).any():
            hole = inside < 0
            picked = leaf[inside[~hole]]
        else:
            picked = leaf[inside]
        if one_hot_discrete and isinstance(part, (spaces.Discrete, spaces.MultiDiscrete)):
            picked, padding = one_hot(picked, part), 0.0
        if hole is None and not before and not after:
            return picked
        size = before + len(picked) + after if hole is None else len(hole)
        padded = np.empty((size, *picked.shape[1:]), _holding(picked.dtype, padding))
        padded[...] = padding
        if hole is None:
            padded[before : before + len(picked)] = picked
        else:
            padded[~hole] = picked
        return padded

    return map_tree(pick, column, space)


def _gather_list(
    column: list, positions: Positions, fill: Any, space: spaces.Space | None, one_hot_discrete: bool, opaque: bool
) -> list:
    if isinstance(positions, (slice, Padded)):
        inside = positions.inside if isinstance(positions, Padded) else positions
        picked = column[inside]
        if one_hot_discrete:
            picked = [_shown(item, space) for item in picked]
        if isinstance(positions, Padded):
            missing = _filler(column, fill, space, one_hot_discrete, opaque)
            return [missing] * positions.before + picked + [missing] * positions.after
        return picked
    assert isinstance(positions, list)
    if OUTSIDE not in positions:
        picked = [column[p] for p in positions]
        return [_shown(item, space) for item in picked] if one_hot_discrete else picked
    missing = _filler(column, fill, space, one_hot_discrete, opaque)
    if one_hot_discrete:
        return [missing if p == OUTSIDE else _shown(column[p], space) for p in positions]
    return [missing if p == OUTSIDE else column[p] for p in positions]


def one_hot(values: Any, space: spaces.Discrete | spaces.MultiDiscrete) -> np.ndarray:
    """Returns discrete values as one-hot vectors.

    Args:
        values: ``[...]`` integers of a Discrete, or ``[..., *nvec.shape]`` of a MultiDiscrete space.
        space: The space, with the number of values and the first one.

    Returns:
        ``[..., n]`` float32, where ``n`` of a MultiDiscrete space is the sum of its ``nvec``.
    """
    if isinstance(space, spaces.MultiDiscrete):
        lead = np.shape(values)[: np.ndim(values) - space.nvec.ndim]
        parts = np.reshape(np.asarray(values, np.int64), (*lead, space.nvec.size))
        sizes, starts = space.nvec.ravel(), space.start.ravel()
        columns = [_one_hot(parts[..., i] - starts[i], int(sizes[i]), space) for i in range(len(sizes))]
        return np.concatenate(columns, axis=-1)
    return _one_hot(np.asarray(values, np.int64) - int(space.start), int(space.n), space)


def _one_hot(values: np.ndarray, n: int, space: spaces.Space) -> np.ndarray:
    if np.any((values < 0) | (values >= n)):
        raise EpisodeError(f"episode: one_hot_discrete=True needs values of {space}, but an item is outside of it.")
    return (values[..., None] == np.arange(n)).astype(np.float32)


def _shown(item: Any, space: spaces.Space | None) -> Any:
    def show(leaf: Any, part: spaces.Space | None) -> Any:
        return one_hot(leaf, part) if isinstance(part, (spaces.Discrete, spaces.MultiDiscrete)) else leaf

    return map_tree(show, item, space)


def _filler(column: list, fill: Any, space: spaces.Space | None, one_hot_discrete: bool, opaque: bool) -> Any:
    """Returns one filled item in the form of a list's items."""
    if opaque:
        return fill
    if not column:
        return fill if space is None else _filler([_zeros(space)], fill, space, one_hot_discrete, opaque)
    newest = column[-1]
    if space is None and type(newest) in (int, float):
        return float(fill) if type(newest) is float else fill
    if space is None and type(newest) is np.ndarray:
        filled = np.empty(newest.shape, _holding(newest.dtype, fill))
        filled[...] = fill
        return filled

    def padding(leaf: Any, part: spaces.Space | None) -> Any:
        if one_hot_discrete and isinstance(part, spaces.Discrete):
            return np.zeros(int(part.n), np.float32)
        if one_hot_discrete and isinstance(part, spaces.MultiDiscrete):
            return np.zeros(int(part.nvec.sum()), np.float32)
        shape = np.shape(leaf)
        if part is not None and part.dtype is not None and part.shape == shape:
            dtype = _holding(part.dtype, fill)
        elif isinstance(leaf, (np.ndarray, np.generic)):
            dtype = _holding(leaf.dtype, fill)
        elif shape == ():
            return fill
        else:
            dtype = None
        filled = np.empty(shape, np.asarray(fill).dtype if dtype is None else dtype)
        filled[...] = fill
        return filled[()]

    return map_tree(padding, newest, space)


def _zeros(space: spaces.Space) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _zeros(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_zeros(part) for part in space.spaces)
    return np.zeros(space.shape or (), space.dtype)


def _holding(dtype: np.dtype, fill: Any) -> np.dtype:
    """Returns the dtype itself if it can hold ``fill``, else one that can."""
    if dtype.kind in "fc":
        return dtype
    if dtype.kind in "biu" and np.ndim(fill) == 0 and np.isfinite(fill) and fill == int(fill):
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if low <= fill <= high:
            return dtype
        return np.result_type(dtype, np.min_scalar_type(int(fill)))
    return np.result_type(dtype, fill, np.float32)
