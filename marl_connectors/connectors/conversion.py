"""Between the two forms of a batch: columns, and the nested dicts of items that a piece's ``__call__`` works on.

Used only around pieces that work on items; see ``Phase`` for what their batch looks like at which point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import item_key, unstack
from marl_connectors.episodes.column_batch import ColumnBatch, Phase, slice_tree
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
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


def to_columns(items: dict[str, Any], like: ColumnBatch) -> ColumnBatch:
    """A batch of items as columns again, in the row order of ``like``.

    Args:
        items: What a piece gave.
        like: The batch in columns that the piece's input was made from.

    Raises:
        ConnectorError: If items are missing, or do not have one shape.
    """
    batch = ColumnBatch([group.like() for group in like.groups], like.phase)
    if like.phase is not Phase.ITEMS:
        set_columns_by_module(batch, items)
        return batch
    for name, by_key in items.items():
        remaining = _by_episode(name, by_key, batch) if isinstance(by_key, dict) else {}
        for group in batch.groups:
            if isinstance(by_key, dict):
                flat = [item for episode in group.rows.episodes for item in remaining[id(episode)]]
            else:
                flat = list(by_key)
            if len(flat) != len(group.rows):
                raise ConnectorError(f"{len(flat)} items of {name!r}, but the batch has {len(group.rows)} rows.")
            group[name] = _stacked(flat, name)
    return batch


def _by_episode(name: str, by_key: dict[Any, list], batch: ColumnBatch) -> dict[int, list]:
    """The items of a column for each episode (by its ``id``); chunks of one episode, and an agent's lives, share a key.

    In a train batch, an episode's last row stands for its last observation, and other columns mean nothing there. So
    a piece may give one item for each step; the last of them is repeated.
    """
    sharing: dict[Any, list[tuple[SingleAgentEpisode, int, bool]]] = {}
    for group in batch.groups:
        for episode, count in zip(group.rows.episodes, group.rows.counts, strict=True):
            has_last = group.rows.acted is not None and count > 1 and name != Columns.OBS
            sharing.setdefault(item_key(episode), []).append((episode, count, has_last))
    found: dict[int, list] = {}
    for key, parts in sharing.items():
        given = by_key.get(key, [])
        wanted = sum(count for _, count, _ in parts)
        steps = sum(count - has_last for _, count, has_last in parts)
        if len(given) not in (wanted, steps):
            raise ConnectorError(
                f"{len(given)} items of {name!r} for episode {key}, expected {wanted}. A piece adds one item for each "
                f"acting agent before a forward pass; for a train batch one for each step, and one more of 'obs' for "
                f"the episode's last observation."
            )
        begin = 0
        for episode, count, has_last in parts:
            repeat = has_last and len(given) == steps
            own = given[begin : begin + count - repeat]
            begin += len(own)
            found[id(episode)] = [*own, own[-1]] if repeat else own
    return found


def _stacked(items: list, name: str) -> Any:
    try:
        return torch.stack(items) if isinstance(items[0], torch.Tensor) else spaces.stack(items)
    except (ValueError, RuntimeError) as error:
        shapes = sorted({str(np.shape(item)) for item in items})
        raise ConnectorError(
            f"the items of {name!r} differ in shape ({', '.join(shapes[:4])}), so they cannot stand in one batch."
        ) from error
