"""Stores the actions of an episode in a few bytes each, so that the episode can be replayed."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np

from marl_connectors.names import brief
from marl_connectors.state import ID, STORED_KINDS, Array, Ints, State

HISTORY_BYTES = 4 * 2**20
"""The largest size of one episode's history, some 2 million actions of a Discrete space.

The limit keeps an episode that never ends from filling the memory. A longer episode cannot be replayed.
"""

_Format: TypeAlias = tuple[str, tuple[int, ...], str]
"""The dtype and shape in which an action is stored, and its original form.

The form is ``"array"``, ``"plain"`` for a Python number, or the dtype of a numpy scalar.
"""

_TREES = 128
"""The smallest number in ``ActionHistory._order`` that stands for a tree, whose leaves follow."""


class ActionTree(State):
    """The structure of an action with parts.

    Attributes:
        kind: What the action is.
        parts: The key of each part, and its structure; None for a part without parts.
    """

    kind: Literal["dict", "tuple"]
    parts: tuple[tuple[ID, ActionTree | None], ...]


class ActionHistoryState(State):
    """The state of an ActionHistory.

    Attributes:
        counts: The number of actions of each step.
        order: For each action the index of its kind; 128 and more stand for trees, whose leaves follow.
        items: The actions of each kind.
        forms: The original form of each kind: ``"array"``, ``"plain"`` for a Python number, or the dtype of a numpy
            scalar.
        trees: The structures of actions with parts.
    """

    counts: Ints
    order: Ints
    items: list[Array]
    forms: list[str]
    trees: list[ActionTree]

    def __post_init__(self) -> None:
        order = self.order.astype(np.int64)
        numbers = np.bincount(order[order < _TREES], minlength=len(self.items)).tolist()
        if numbers != [len(items) for items in self.items] or len(self.forms) != len(self.items):
            raise ValueError(f"Expected actions of the numbers {numbers}, got {list(map(len, self.items))}")
        if order.max(initial=0) - _TREES >= len(self.trees):
            raise ValueError(f"Expected a tree for each kind of action that has parts, got {len(self.trees)}")
        if not self.trees and int(self.counts.sum()) != len(order):
            raise ValueError(f"Expected {int(self.counts.sum())} actions, got {len(order)}")
        for form in self.forms:
            if form not in ("array", "plain") and np.dtype(form).kind not in STORED_KINDS:
                raise ValueError(f"Expected the type of a number, got {brief(form)}")


class ActionHistory:
    """The steps of one sub-environment, each with the actions of all agents that acted, in their order.

    Actions are Python or numpy numbers, arrays, or dicts and tuples of these. Iterating returns them with their
    original types.

    >>> history = ActionHistory()
    >>> history.extend([[1, 2], [0]])
    >>> list(history)
    [[1, 2], [0]]
    """

    __slots__ = ("_counts", "_items", "_order", "_trees", "is_complete")

    def __init__(self) -> None:
        self._counts = array("I")  # actions of each step
        self._order = bytearray()  # for each action, the index of its kind in _items
        self._items: dict[_Format, bytearray] = {}
        self._trees: list[ActionTree] = []
        self.is_complete = True
        """Whether all steps are stored. It becomes False, and all steps are removed, beyond ``HISTORY_BYTES``."""

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def num_bytes(self) -> int:
        """The size of the history in bytes."""
        counts = self._counts.itemsize * len(self._counts)
        return counts + len(self._order) + sum(len(items) for items in self._items.values())

    def extend(self, steps: list[list[Any]]) -> None:
        """Adds steps: for each one, the list of the actions of all agents that acted."""
        if not self.is_complete:
            return
        actions = [action for step in steps for action in step]
        self._counts.extend(map(len, steps))
        leaves, order = self._taken_apart(actions)
        of_leaves = np.empty(len(leaves), np.uint8)
        for kind, (places, items) in _by_format(leaves).items():
            self._items.setdefault(kind, bytearray()).extend(items.tobytes())
            of_leaves[places] = list(self._items).index(kind)
        order[order < _TREES] = of_leaves
        self._order += order.tobytes()
        if self.num_bytes > HISTORY_BYTES:
            self._counts, self._order, self._items = array("I"), bytearray(), {}
            self.is_complete = False

    def _taken_apart(self, actions: list[Any]) -> tuple[list[Any], np.ndarray]:
        """Returns all leaves, and the order of leaves and trees: 0 for a leaf, the tree's number for a tree."""
        if not any(isinstance(action, (dict, tuple)) for action in actions):
            return actions, np.zeros(len(actions), np.uint8)
        leaves: list[Any] = []
        order: list[int] = []
        for action in actions:
            tree = _tree_of(action)
            if tree is not None:
                if tree not in self._trees:
                    self._trees.append(tree)
                order.append(_TREES + self._trees.index(tree))
            before = len(leaves)
            _add_leaves(action, leaves)
            order += [0] * (len(leaves) - before)
        return leaves, np.array(order, np.uint8)

    def __iter__(self) -> Iterator[list[Any]]:
        items = [
            iter(array.tolist() if form == "plain" else _rows(array, form))
            for (_, _, form), array in zip(self._items, self._arrays(), strict=True)
        ]
        order = iter(self._order)
        for count in self._counts:
            if not self._trees:
                yield [next(items[kind]) for kind in islice(order, count)]
                continue
            step = []
            for _ in range(count):
                kind = next(order)
                tree = self._trees[kind - _TREES] if kind >= _TREES else None
                step.append(next(items[kind]) if tree is None else _put_together(tree, order, items))
            yield step

    def _arrays(self) -> list[np.ndarray]:
        counts = np.bincount(np.frombuffer(self._order, np.uint8), minlength=len(self._items))[: len(self._items)]
        return [
            np.frombuffer(bytes(items), dtype).reshape(count, *shape).copy()
            for ((dtype, shape, _), items), count in zip(self._items.items(), counts.tolist(), strict=True)
        ]

    def get_state(self) -> ActionHistoryState:
        """Returns the steps, which must be complete."""
        return ActionHistoryState(
            counts=np.array(self._counts, np.uint32),
            order=np.frombuffer(bytes(self._order), np.uint8).copy(),
            items=self._arrays(),
            forms=[form for _, _, form in self._items],
            trees=list(self._trees),
        )

    @classmethod
    def from_state(cls, state: ActionHistoryState) -> ActionHistory:
        """Creates a history from what ``get_state`` returned."""
        history = cls()
        history._counts.extend(state.counts.tolist())
        history._order += state.order.astype(np.uint8).tobytes()
        history._trees = list(state.trees)
        for items, form in zip(state.items, state.forms, strict=True):
            history._items[items.dtype.str, items.shape[1:], form] = bytearray(items.tobytes())
        return history


def _tree_of(action: Any) -> ActionTree | None:
    """Returns the structure of an action with parts; None for an action without parts."""
    if isinstance(action, dict):
        return ActionTree("dict", tuple([(key, _tree_of(part)) for key, part in action.items()]))
    if isinstance(action, tuple):
        return ActionTree("tuple", tuple([(i, _tree_of(part)) for i, part in enumerate(action)]))
    return None


def _add_leaves(action: Any, leaves: list[Any]) -> None:
    if isinstance(action, (dict, tuple)):
        for part in action.values() if isinstance(action, dict) else action:
            _add_leaves(part, leaves)
    else:
        leaves.append(action)


def _put_together(tree: ActionTree, order: Iterator[int], items: list[Iterator[Any]]) -> Any:
    found = {
        key: next(items[next(order)]) if part is None else _put_together(part, order, items) for key, part in tree.parts
    }
    return found if tree.kind == "dict" else tuple(found.values())


def _by_format(actions: list[Any]) -> dict[_Format, tuple[slice | list[int], np.ndarray]]:
    """Returns, for each kind of action, the places of the actions of this kind, and these actions as an array."""
    if set(map(type, actions)) == {int}:
        return {_format_of(array := _small(np.array(actions)), "plain"): (slice(None), array)}
    places: dict[_Format, list[int]] = {}
    for place, action in enumerate(actions):
        is_scalar = isinstance(action, np.generic)
        form = "array" if type(action) is np.ndarray else action.dtype.str if is_scalar else "plain"
        dtype = _number_type(action) if form == "plain" else action.dtype.str
        places.setdefault((dtype, np.shape(action), form), []).append(place)
    found = {}
    for (_, _, form), where in places.items():
        array = np.array([actions[place] for place in where])
        array = array if form == "array" else _small(array)
        found[_format_of(array, form)] = where, array
    return found


def _rows(array: np.ndarray, form: str) -> list[Any]:
    """Returns the rows in their original form. Rows of a one-dimensional array are scalars or arrays without axes."""
    if form != "array":
        return list(array.astype(form))
    return list(array) if array.ndim > 1 else [array[i, ...] for i in range(len(array))]


def _number_type(action: Any) -> str:
    kind = np.asarray(action).dtype.kind
    return "i" if kind == "u" else kind


def _format_of(array: np.ndarray, form: str) -> _Format:
    return array.dtype.str, array.shape[1:], form


def _small(array: np.ndarray) -> np.ndarray:
    """Converts whole numbers to one byte each if they fit."""
    fits = array.dtype.kind == "i" and len(array) and array.min() >= 0 and array.max() < 256
    return array.astype(np.uint8) if fits else array
