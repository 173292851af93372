"""What pieces that work on items do to the order and number of rows, once these stand by module."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import item_key
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID


def in_item_order(by_module: dict[ModuleID, Any], batch: ColumnBatch) -> None:
    """Puts rows by module into the order in which items stand, in place: what shares a key stands together.

    Chunks of one episode and lives of one agent share a key, whatever stands between their episodes among rows.
    """
    for module_id, order in _orders(batch).items():
        _reorder(by_module, module_id, order)


def in_row_order(by_module: dict[ModuleID, Any], batch: ColumnBatch) -> None:
    """The way back."""
    for module_id, order in _orders(batch).items():
        _reorder(by_module, module_id, np.argsort(order))


def _orders(batch: ColumnBatch) -> dict[ModuleID, np.ndarray]:
    """For each module whose items stand in another order than its rows, which row each item is."""
    places: dict[ModuleID, dict[Any, list[int]]] = {}
    sizes: dict[ModuleID, int] = {}
    for group in batch.groups:
        rows = group.rows
        if rows.acted is None:
            continue  # one row for each episode
        counts = rows.counts
        if group.sequences is not None:  # episodes whose rows are gone have no sequences
            counts = [count for count in group.sequences.counts.tolist() if count]
        for episode, count in zip(rows.episodes, counts, strict=True):
            module_id = episode.module_id or DEFAULT_MODULE_ID
            begin = sizes.get(module_id, 0)
            sizes[module_id] = begin + count
            places.setdefault(module_id, {}).setdefault(item_key(episode), []).extend(range(begin, begin + count))
    orders = {m: np.array([row for own in by_key.values() for row in own], np.int64) for m, by_key in places.items()}
    return {module_id: order for module_id, order in orders.items() if (np.diff(order) < 0).any()}


def _reorder(by_module: dict[ModuleID, Any], module_id: ModuleID, order: np.ndarray) -> None:
    columns = by_module.get(module_id)
    if isinstance(columns, dict):
        by_module[module_id] = {name: _picked(column, order) for name, column in columns.items()}
    elif columns is not None:
        by_module[module_id] = _picked(columns, order)


def _picked(column: Any, order: np.ndarray) -> Any:
    if isinstance(column, list):
        return type(column)(column[i] for i in order.tolist()) if len(column) == len(order) else column
    return tree_map(lambda leaf: leaf[order] if len(leaf) == len(order) else leaf, column)


def drop_last_rows(batch: ColumnBatch, by_module: dict[ModuleID, dict[str, Any]]) -> None:
    """Lets the groups of a train batch go without last observations where a piece has taken them out of all columns."""
    for group in batch.groups:
        acted = group.rows.acted
        if acted is None or not acted.any() or group.splits != group.rows.splits:
            continue
        short = group.like()
        without_last_rows(short, acted)
        now, then = _counts(group), _counts(short)
        shortened = (_have(by_module.get(module_id, {}), count) for module_id, count in then.items() if count)
        if now != then and all(shortened):
            without_last_rows(group, acted)
            group.rows = group.rows.kept(np.flatnonzero(acted))


def without_last_rows(group: ColumnGroup, keep: np.ndarray) -> None:
    """Works out which rows and sequences each module has once only those of ``keep`` are left; columns stay."""
    before = np.concatenate([[0], np.cumsum(keep)])
    group.splits = tuple(before[list(group.splits)].tolist())
    sizes = set(np.diff(group.splits).tolist())
    group.rows_per_module = sizes.pop() if len(sizes) == 1 else None
    if group.sequences is not None:
        group.sequences = group.sequences.without(keep)


def _counts(group: ColumnGroup) -> dict[ModuleID, int]:
    """How many rows, or sequences, each module has."""
    splits = group.splits if group.sequences is None else group.sequences.splits
    return dict(zip(group.module_ids, np.diff(splits).tolist(), strict=True))


def _have(columns: dict[str, Any], count: int) -> bool:
    """Whether all of a module's columns have so many rows."""
    return bool(columns) and all(
        (len(column) if isinstance(column, list) else len(leaves(column)[0])) == count
        for name, column in columns.items()
        if name != Columns.INFOS
    )
