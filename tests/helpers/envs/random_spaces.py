"""Random nested spaces, items of them, and the many ways in which an environment may give one."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from gymnasium import spaces

FLOATS = [np.float16, np.float32, np.float64]
INTS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
SHAPES = [(), (1,), (2,), (3,), (2, 3), (0,)]


def random_space(rng, depth=2, *, keys="any", empty=True):
    """A space of any kind, with parts inside parts ``depth`` deep.

    Args:
        rng: Where it comes from.
        depth: How deep.
        keys: ``"any"`` for strings, ints and both in one Dict; ``"str"``.
        empty: Whether there may be parts without numbers.
    """
    kind = rng.choice(["dict", "tuple", "leaf"], p=[0.4, 0.3, 0.3]) if depth else "leaf"
    if kind == "leaf":
        return _random_leaf(rng, empty)
    count = int(rng.integers(0 if empty else 1, 4))
    parts = [random_space(rng, depth - 1, keys=keys, empty=empty) for _ in range(count)]
    if kind == "tuple":
        return spaces.Tuple(parts)
    names = {"str": ["b", "a", "z", "C", "10", "9"], "int": [10, 9, -1, 0], "both": ["1", 1, "b", 0]}
    of = names["str" if keys == "str" else str(rng.choice(list(names)))]
    chosen = [of[i] for i in rng.permutation(len(of))[:count]]
    return spaces.Dict(list(zip(chosen, parts, strict=True)))


def _random_leaf(rng, empty):
    kind = rng.choice(["box", "discrete", "multi discrete", "multi binary"], p=[0.55, 0.15, 0.15, 0.15])
    if kind == "discrete":
        n, start = [(3, 0), (2, -7), (2**40, 2**61), (5, 2**62)][rng.integers(4)]
        return spaces.Discrete(n, start=start)
    if kind == "multi discrete":
        shape = [(1,), (2,), (2, 2)][rng.integers(3)]
        dtype = [np.int8, np.int32, np.int64][rng.integers(3)]
        return spaces.MultiDiscrete(rng.integers(2, 9, shape), start=rng.integers(-5, 5, shape), dtype=dtype)
    if kind == "multi binary":
        return spaces.MultiBinary([3, [3], [2, 2], 1][rng.integers(4)])
    return random_box(rng, SHAPES if empty else SHAPES[:-1])


def random_box(rng, shapes=SHAPES):
    """A Box of any dtype, whose bounds are any that it can hold, to the last bit."""
    shape = shapes[rng.integers(len(shapes))]
    dtype = np.dtype([*FLOATS, *INTS, np.bool_][rng.integers(len(FLOATS) + len(INTS) + 1)])
    if dtype.kind in "fi" and rng.random() < 0.2:
        return spaces.Box(-np.inf, np.inf, shape, dtype.type)
    low, high = numbers(rng, dtype, shape), numbers(rng, dtype, shape)
    low, high = np.where(low <= high, low, high).astype(dtype), np.where(low <= high, high, low).astype(dtype)
    if dtype.kind == "f":
        low, high = np.where(rng.random(shape) < 0.2, -np.inf, low), np.where(rng.random(shape) < 0.2, np.inf, high)
    return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)


def numbers(rng, dtype, shape):
    """Numbers of a dtype: small ones, the largest and smallest, and for floats the smallest above 0 and -0.0."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind == "f":
        special = [np.finfo(dtype).max, np.finfo(dtype).min, np.finfo(dtype).smallest_subnormal, -0.0, 0.0, 1 / 3]
        some = np.array(special, dtype)[rng.integers(len(special), size=shape)]
        return np.where(rng.random(shape) < 0.5, some, rng.normal(size=shape).astype(dtype)).astype(dtype)
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    special = [least, most, most - 1, least + 1, 0, 1]
    some = np.array(special, dtype)[rng.integers(len(special), size=shape)]
    return np.where(rng.random(shape) < 0.5, some, rng.integers(0, 100, shape).astype(dtype)).astype(dtype)


def random_item(rng, space):
    """A tree of arrays in the space's structure, order, shapes and dtypes; its bounds do not matter."""
    if isinstance(space, spaces.Dict):
        return {key: random_item(rng, part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(random_item(rng, part) for part in space.spaces)
    return np.asarray(numbers(rng, space.dtype, space.shape))


def in_another_form(rng, space, item):
    """The same item as an environment may give it: lists, tuples, numbers, other dtypes, other orders of keys."""
    if isinstance(space, spaces.Dict):
        keys = list(space.spaces)
        order = [keys[i] for i in rng.permutation(len(keys))]
        pairs = [(key, in_another_form(rng, space[key], item[key])) for key in order]
        return OrderedDict(pairs) if rng.random() < 0.5 else dict(pairs)
    if isinstance(space, spaces.Tuple):
        parts = [in_another_form(rng, part, own) for part, own in zip(space.spaces, item, strict=True)]
        return parts if rng.random() < 0.5 else tuple(parts)
    form = rng.choice(["array", "list", "tuple", "wider", "scalar"])
    if form == "list":
        return item.tolist()
    if form == "tuple":
        return tupled(item.tolist())
    if form == "wider" and item.dtype.kind == "f":
        return item.astype(np.float64)
    if form == "wider" and item.dtype.kind in "iu" and item.dtype != np.uint64:
        return item.astype(np.int64)
    return item[()] if form == "scalar" else item.copy()


def tupled(value):
    """Lists as tuples."""
    return tuple(map(tupled, value)) if isinstance(value, list) else value


def stacked(space, items):
    """What stacking is, one number after another."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(part, [item[key] for item in items]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(part, [item[i] for item in items]) for i, part in enumerate(space.spaces))
    column = np.zeros((len(items), *space.shape), space.dtype)
    for row, item in enumerate(items):
        for place in np.ndindex(*space.shape):
            column[(row, *place)] = item[place]
    return column


def assert_identical(found, expected):
    """The same tree, keys in the same order, with arrays of the same dtypes, shapes and bits."""
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_identical(found[key], expected[key])
    elif isinstance(expected, tuple):
        assert len(found) == len(expected)
        for mine, other in zip(found, expected, strict=True):
            assert_identical(mine, other)
    else:
        assert found.dtype == expected.dtype and found.shape == expected.shape, (found, expected)
        assert found.tobytes() == expected.tobytes(), (found, expected)


# Spaces in which one can act and learn.

LEAVES = [
    lambda: spaces.Box(-1, 1, (2,), np.float32),
    lambda: spaces.Box(-3, 5, (), np.float64),
    lambda: spaces.Discrete(3),
    lambda: spaces.Discrete(2, start=4),
    lambda: spaces.MultiDiscrete([2, 3], start=[1, -1]),
    lambda: spaces.MultiBinary(2),
    lambda: spaces.Box(0, 9, (2,), np.uint8),
]
ACTIONS = [*LEAVES[:6], lambda: spaces.Box(np.array([0, -2], np.float32), np.array([1, 3], np.float32))]
NAMES = ["zeta", "alpha", "Mid", "10", "9", 3, 1]


def dict_space(rng, leaves, depth=1):
    """A Dict space whose keys are in no order, with Dicts and Tuples in it."""
    parts = []
    for i in rng.permutation(len(NAMES))[: rng.integers(2, 5)]:
        kind = rng.random() if depth else 1.0
        if kind < 0.25:
            part = dict_space(rng, leaves, depth - 1)
        elif kind < 0.5:
            part = spaces.Tuple([leaves[j]() for j in rng.integers(len(leaves), size=2)])
        else:
            part = leaves[rng.integers(len(leaves))]()
        parts.append((NAMES[i], part))
    return spaces.Dict(parts)


def arrays(space, item):
    """A sample as a tree of arrays."""
    if isinstance(space, spaces.Dict):
        return {key: arrays(part, item[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(arrays(part, own) for part, own in zip(space.spaces, item, strict=True))
    return np.asarray(item)
