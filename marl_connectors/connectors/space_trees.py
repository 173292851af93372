"""Maps and checks nested spaces and batches of their values, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.spaces import in_key_order, is_leaf
from marl_connectors.typing import Tree


def fits(space: Space, values: Tree, *, with_dtypes: bool = False) -> bool:
    """Whether a batch has the structure and the item shapes of a space. The numbers are not checked.

    Args:
        space: The space.
        values: The batch.
        with_dtypes: Whether the arrays must have the dtypes of the space, too.
    """
    if is_leaf(space):
        is_alike = type(values) is np.ndarray and values.shape[1:] == space.shape
        return is_alike and not (with_dtypes and values.dtype != space.dtype)
    parts: Any = space.spaces  # type: ignore[attr-defined]
    if type(parts) is tuple:
        is_alike = isinstance(values, tuple) and len(values) == len(parts)
        return is_alike and all(map(partial(fits, with_dtypes=with_dtypes), parts, values))
    if not isinstance(values, dict) or len(values) != len(parts):
        return False
    for key, part in parts.items():
        if key not in values or not fits(part, values[key], with_dtypes=with_dtypes):
            return False
    return True


def map_space(change: Callable[[Space], Space], space: Space) -> Space:
    """Replaces each leaf space, which is no Dict or Tuple, by ``change(leaf)``; keys are sorted."""
    if isinstance(space, spaces.Dict):
        return in_key_order((key, map_space(change, part)) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([map_space(change, part) for part in space.spaces])
    return change(space)


def map_values(change: Callable[[Space, Any], Any], space: Space, values: Tree) -> Tree:
    """Replaces each array of the values by ``change(its leaf space, array)``."""
    if is_leaf(space):
        return change(space, values)
    if isinstance(space, spaces.Dict):
        return {key: map_values(change, part, values[key]) for key, part in space.spaces.items()}
    parts: Any = space.spaces  # type: ignore[attr-defined]
    return tuple([map_values(change, part, value) for part, value in zip(parts, values, strict=True)])


def leaf_spaces(space: Space) -> list[Space]:
    """Returns all leaf spaces, which are no Dict or Tuple, in order."""
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in leaf_spaces(part)]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in leaf_spaces(part)]
    return [space]


def shape_of(values: Tree) -> str:
    """Describes a batch of values without its first axis, for messages."""
    if isinstance(values, dict):
        return "Dict(" + ", ".join(f"{key}: {shape_of(part)}" for key, part in values.items()) + ")"
    if isinstance(values, tuple):
        return "Tuple(" + ", ".join(map(shape_of, values)) + ")"
    if type(values) is np.ndarray:
        return f"{values.dtype}{list(values.shape[1:])}"
    return type(values).__name__
