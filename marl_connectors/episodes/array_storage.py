"""Steps in arrays: a finished chunk of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.batching import alike, batch, head, kind
from marl_connectors.episodes.list_storage import ListStorage
from marl_connectors.episodes.lookback import count, map_tree
from marl_connectors.episodes.storage import STEP, WITH_LAST, ColumnStorage, EpisodeStorage
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import tree_map
from marl_connectors.typing import Tree


class ArrayStorage(ColumnStorage):
    """Arrays, or trees of arrays, one row each. Infos stay a list of dicts."""

    __slots__ = ("actions_from_0", "untyped")
    is_numpy = True

    def __init__(
        self,
        columns: dict[str, Any],
        *,
        lookback: int = 0,
        open_row: Mapping[str, Any] | None = None,
        untyped: frozenset[str] = frozenset(),
        actions_from_0: bool = False,
    ):
        """``untyped`` are empty columns that have the dtype float64 for want of a better one.

        ``actions_from_0`` says whether actions of a Discrete space are without its ``start``, as a runner records them.
        """
        super().__init__(columns, lookback=lookback, open_row=open_row)
        self.untyped = untyped
        self.actions_from_0 = actions_from_0

    @classmethod
    def from_lists(
        cls, lists: ListStorage, observation_space: Space | None, action_space: Space | None
    ) -> ArrayStorage:
        """Arrays in the spaces' dtypes; rewards are float64, the env steps int64."""
        known = {Columns.OBS: observation_space, Columns.ACTIONS: action_space}
        columns: dict[str, Any] = {}
        for name, items in lists.columns.items():
            if name == Columns.INFOS:
                columns[name] = items
            elif name in (Columns.T, Columns.REWARDS):
                columns[name] = np.array(items, np.int64 if name == Columns.T else np.float64)
            elif not items and lists.open_row is not None:
                columns[name] = head(batch([lists.open_row[name]], known.get(name), lists.heads.get(name), name))
            else:
                columns[name] = batch(items, known.get(name), lists.heads.get(name), name)
        typed = {*(name for name in known if known[name] is not None), *lists.heads, *(lists.open_row or ())}
        untyped = frozenset(name for name, items in lists.columns.items() if not items and name not in typed)
        return cls(
            columns,
            lookback=lists.lookback,
            open_row=lists.open_row,
            untyped=untyped,
            actions_from_0=lists.actions_from_0,
        )

    @classmethod
    def from_storage(cls, storage: EpisodeStorage, start: int, stop: int, lookback: int, open_row: Mapping | None):
        """A copy of the rows ``[start, stop)`` of an array-backed storage."""
        columns = {}
        for name in (*STEP, *storage.extra_keys()):
            column = storage.part(name, start, stop + (name in WITH_LAST))
            if type(column) is np.ndarray:
                columns[name] = column.copy()
            else:
                columns[name] = column if type(column) is list else map_tree(lambda leaf, _: leaf.copy(), column)
        return cls(
            columns,
            lookback=lookback,
            open_row=open_row,
            untyped=storage.untyped,
            actions_from_0=storage.actions_from_0,
        )

    def set_items(self, name: str, positions: Sequence[int], items: Sequence[Any]) -> None:
        column = self.columns[name]
        if isinstance(column, list):
            for position, item in zip(positions, items, strict=True):
                column[position] = item
        elif positions:
            values = batch(list(items), None, head(column), name)
            if sorted(positions) == list(range(count(column))):
                order = np.argsort(positions)
                self.columns[name] = map_tree(lambda leaf, _: leaf[order], values)
                return
            if not alike(column, values):
                raise EpisodeError(
                    f"episode: column {name!r} holds {kind(column)}, but {kind(values)} came for "
                    f"{len(positions)} of its {count(column)} item(s). Set all items (lookback included) at once to "
                    f"change the shape or type of a column."
                )
            where = np.array(positions, np.int64)
            tree_map(lambda leaf, value: leaf.__setitem__(where, value), column, values)

    def set_column(self, name: str, values: list | Tree) -> None:
        self._accept(name, values)
        if name == Columns.INFOS:
            self.columns[name] = list(values)
        elif isinstance(values, list):
            like = self.columns.get(name)
            self.columns[name] = batch(values, None, None if like is None else head(like), name)
        else:
            self.columns[name] = map_tree(lambda leaf, _: np.array(leaf), values)
