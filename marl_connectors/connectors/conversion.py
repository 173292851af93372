"""Between the two forms of a batch: columns, and the nested dicts of items that a piece's ``__call__`` works on.

Used only around pieces that work on items; see ``Phase`` for what their batch looks like at which point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from marl_connectors import spaces
from marl_connectors.connectors.connector_v2 import item_key, unstack
from marl_connectors.episodes.column_batch import ColumnBatch, Phase, slice_tree
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.module_columns import columns_by_module, set_columns_by_module


def to_items(batch: ColumnBatch) -> dict[str, Any]:
    """A batch as the pieces of its phase expect it."""
    if batch.phase is Phase.ITEMS:
        items: dict[str, Any] = {}
        for group in batch.groups:
            for name, column in group.items():
                by_key = items.setdefault(name, {})
                begin = 0
                for episode, count in zip(group.rows.episodes, group.rows.counts, strict=True):
                    by_key.setdefault(item_key(episode), []).extend(unstack(slice_tree(column, begin, begin + count)))
                    begin += count
        return items
    by_module = columns_by_module(batch)
    if batch.phase is Phase.MODULE_ITEMS:
        return {m: {name: unstack(column) for name, column in columns.items()} for m, columns in by_module.items()}
    return by_module


def to_columns(items: dict[str, Any], like: ColumnBatch, who: str) -> ColumnBatch:
    """A batch of items as columns again, in the row order of ``like``.

    Args:
        items: What a piece gave.
        like: The batch in columns that the piece's input was made from.
        who: The piece, for the error message.

    Raises:
        ConnectorError: If items are missing, or do not have one shape.
    """
    batch = ColumnBatch([group.like() for group in like.groups], like.phase)
    if like.phase is not Phase.ITEMS:
        set_columns_by_module(batch, items)
        return batch
    for name, by_key in items.items():
        remaining = {key: list(values) for key, values in by_key.items()} if isinstance(by_key, dict) else None
        for group in batch.groups:
            rows = group.rows
            flat: list[Any] = []
            if remaining is None:
                flat = list(by_key)
            else:
                for episode, count in zip(rows.episodes, rows.counts, strict=True):
                    here = remaining.get(item_key(episode), [])
                    flat += _as_many(here[:count], count, name, episode, who)
                    del here[:count]
            if len(flat) != len(rows):
                raise ConnectorError(f"{who}: {len(flat)} items of {name!r}, but the batch has {len(rows)} rows.")
            group[name] = _stacked(flat, name, who)
    return batch


def _as_many(items: list, count: int, name: str, episode: Any, who: str) -> list:
    if len(items) == count:
        return items
    raise ConnectorError(
        f"{who}: {len(items)} items of {name!r} for episode {item_key(episode)}, expected {count}. A piece adds one item "
        f"for each acting agent before a forward pass; for a train batch one for each step and one more, for the "
        f"episode's last observation."
    )


def _stacked(items: list, name: str, who: str) -> Any:
    try:
        return torch.stack(items) if isinstance(items[0], torch.Tensor) else spaces.stack(items)
    except (ValueError, RuntimeError) as error:
        shapes = sorted({str(np.shape(item)) for item in items})
        raise ConnectorError(
            f"{who}: the items of {name!r} differ in shape ({', '.join(shapes[:4])}), so they cannot stand in one batch."
        ) from error
