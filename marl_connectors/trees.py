"""Nested dicts and tuples of arrays, for nested spaces. A plain array is a tree of one leaf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from marl_connectors.typing import Tree


def tree_map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """``fn`` of each leaf, and of the leaves at the same place in the other trees."""
    if type(tree) is np.ndarray:
        return fn(tree, *others)
    return optree.tree_map(fn, tree, *others)


def leaves(tree: Tree) -> list[Any]:
    """All leaves, in a fixed order."""
    return optree.tree_leaves(tree)


def same_structure(a: Tree, b: Tree) -> bool:
    """Whether two trees have leaves at the same places."""
    return optree.tree_structure(a) == optree.tree_structure(b)
