"""Nested dicts and tuples of arrays, for nested spaces. A plain array is a tree of one leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optree

from marl_connectors.typing import Tree


def tree_map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Applies ``fn`` to each leaf and the leaves at the same place in the other trees, and returns the new tree."""
    if type(tree) is np.ndarray:
        return fn(tree, *others)
    return optree.tree_map(fn, tree, *others)


def read_only(tree: Tree) -> Tree:
    """Returns read-only views of arrays; all other leaves stay as they are."""
    return tree_map(_read_only, tree)


def _read_only(leaf: Any) -> Any:
    if type(leaf) is not np.ndarray:
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view


def leaves(tree: Tree) -> list[Any]:
    """Returns all leaves in a fixed order."""
    if type(tree) is np.ndarray:
        return [tree]
    return optree.tree_leaves(tree)


def copied(value: Any) -> Any:
    """Copies arrays, mappings, lists and tuples recursively. Other values are returned as they are."""
    if type(value) in (float, int, bool, str):  # asking whether these are mappings takes long
        return value
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [copied(part) for part in value]
        return parts if isinstance(value, list) else getattr(type(value), "_make", tuple)(parts)
    return value


def same_structure(a: Tree, b: Tree) -> bool:
    """Whether two trees have leaves at the same places."""
    return optree.tree_structure(a) == optree.tree_structure(b)


def tree_structure(tree: Tree) -> Any:
    """Returns where a tree has leaves, to compare it with others."""
    return optree.tree_structure(tree)


def unstack(values: Any) -> list:
    """Returns the items of an array, a tensor, or a tree of them, along the first axis. They are views if possible."""
    if isinstance(values, dict):
        parts = {key: unstack(part) for key, part in values.items()}
        return [dict(zip(parts, items, strict=True)) for items in zip(*parts.values(), strict=True)]
    if isinstance(values, tuple):
        return list(zip(*(unstack(part) for part in values), strict=True))
    return list(values)


def as_list(column: Any) -> list:
    """Returns a column's items as a list. A column may be a list already."""
    return column if isinstance(column, list) else unstack(column)


def in_parts_of(like: Tree, values: Tree) -> Tree:
    """Returns a batch of values in a tree with the structure of another one.

    If items were tuples of numbers, their batch is a tuple of ``n`` arrays ``[B]``. If they were arrays or lists, it is
    one array, ``[B, n]``. The structure of ``like`` shows which of them is needed.

    Args:
        like: Arrays, ``[B, ...]`` or ``[0, ...]``, in a tree with the structure to return.
        values: Arrays, ``[B, ...]``.

    Raises:
        ValueError: If the values have other parts.

    >>> in_parts_of((np.zeros(0), np.zeros(0)), np.array([[1, 2], [3, 4], [5, 6]]))
    (array([1, 3, 5]), array([2, 4, 6]))
    """
    if isinstance(like, dict):
        if isinstance(values, dict) and values.keys() == like.keys():
            return {key: in_parts_of(part, values[key]) for key, part in like.items()}
        raise ValueError(f"expected a dict with the parts {list(like)}, but {_structure_of(values)} came.")
    if isinstance(like, tuple):
        parts = list(np.moveaxis(values, 1, 0)) if isinstance(values, np.ndarray) and values.ndim > 1 else values
        if isinstance(parts, (tuple, list)) and len(parts) == len(like):
            return tuple([in_parts_of(part, own) for part, own in zip(like, parts, strict=True)])
        raise ValueError(f"expected a tuple of {len(like)} parts, but {_structure_of(values)} came.")
    if isinstance(values, dict):
        raise ValueError(f"expected an array, but {_structure_of(values)} came.")
    return _in_one_array(values)


def _in_one_array(values: Tree) -> Any:
    return np.stack([_in_one_array(part) for part in values], axis=1) if isinstance(values, tuple) else values


def _structure_of(values: Tree) -> str:
    if isinstance(values, dict):
        return f"one with {list(values)}"
    return f"{len(values)} parts" if isinstance(values, tuple) else f"a {type(values).__name__}"
