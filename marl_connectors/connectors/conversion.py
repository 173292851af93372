"""Between the two forms of a batch: columns, and the nested dicts of items that a piece's ``__call__`` works on.

Used only around pieces that work on items; see ``Phase`` for what their batch looks like at which point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import item_key, unstack
from marl_connectors.connectors.conversion_by_module import drop_last_rows, in_item_order, in_row_order
from marl_connectors.connectors.failures import progress
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup, Phase
from marl_connectors.episodes.info_column import InfoColumn
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.module_columns import columns_by_module, set_columns_by_module
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, ModuleID


def to_items(batch: ColumnBatch) -> dict[str, Any]:
    """A batch as the pieces of its phase expect it."""
    if batch.phase is Phase.ITEMS:
        items: dict[str, Any] = {}
        for group in batch.groups:
            if group.sequences is not None:
                _share_out(items, group, _sequence_items(group), group.sequences.counts.tolist())
            else:
                _share_out(items, group, {n: unstack(column) for n, column in group.items()}, group.rows.counts)
        return items
    by_module = columns_by_module(_without_infos(batch))
    for module_id, infos in _infos_by_module(batch).items():
        by_module[module_id][Columns.INFOS] = infos
    in_item_order(by_module, batch)
    if batch.phase is Phase.MODULE_ITEMS:
        return {m: {name: unstack(column) for name, column in columns.items()} for m, columns in by_module.items()}
    return by_module


def to_columns(items: dict[str, Any], like: ColumnBatch) -> ColumnBatch:
    """A batch of items as columns again, in the row order of ``like``.

    Args:
        items: What a piece gave.
        like: The batch in columns that the piece's input was made from; its phase is that of ``items``.

    Raises:
        ConnectorError: If items are missing, or do not have one shape.
    """
    batch = ColumnBatch([group.like() for group in like.groups], like.phase)
    for group, source in zip(batch.groups, like.groups, strict=True):
        group.action_dist_cls = source.action_dist_cls  # their log-probabilities are still to be computed
        group.holders = source.holders
    if like.phase is not Phase.ITEMS:
        infos = {m: list(columns[Columns.INFOS]) for m, columns in items.items() if Columns.INFOS in columns}
        others = {m: {n: c for n, c in columns.items() if n != Columns.INFOS} for m, columns in items.items()}
        drop_last_rows(batch, others)
        for by_module in (infos, others):
            in_row_order(by_module, batch)
        set_columns_by_module(batch, others, fills_up=any(group.holders for group in like.groups))
        _set_infos(batch, infos)
        return batch
    for group, source in zip(batch.groups, like.groups, strict=True):
        sequences = group.sequences = source.sequences or _sequences_made(items, group)
        if sequences is not None:
            _from_sequence_items(items, group, sequences)
            if Columns.INFOS in source:
                group[Columns.INFOS] = source[Columns.INFOS]
            continue
        keys = {item_key(episode) for episode in group.rows.episodes}
        for name, by_key in items.items():
            if isinstance(by_key, dict):
                if name != Columns.OBS and keys.isdisjoint(by_key):
                    continue  # a column of other groups, such as states
                own = _by_episode(name, _filled_up(name, by_key, source), group)
                flat = [item for episode in group.rows.episodes for item in own[id(episode)]]
            else:
                flat = list(by_key)
            if len(flat) != len(group.rows):
                raise ConnectorError(f"{len(flat)} items of {name!r}, but the batch has {len(group.rows)} rows.")
            group[name] = _stacked(flat, name)
    return batch


def _share_out(items: dict[str, Any], group: ColumnGroup, columns: Mapping[str, list], counts: Sequence[int]) -> None:
    """Puts a group's items, of which each agent episode has so many, under the episodes' keys."""
    for name, column in columns.items():
        by_key = items.setdefault(name, {})
        begin = 0
        for episode, count in zip(group.rows.episodes, counts, strict=True):
            if name not in group.holders or group.is_of(_module_of(episode), name):
                by_key.setdefault(item_key(episode), []).extend(column[begin : begin + count])
            begin += count


def _filled_up(name: str, by_key: dict[Any, list], source: ColumnGroup) -> dict[Any, list]:
    """The items of a column by key, with blank ones for the modules that had none."""
    if name not in source.holders or not any(by_key.values()):
        return by_key
    blank = tree_map(lambda leaf: leaf * 0, next(items[0] for items in by_key.values() if items))
    found = dict(by_key)
    for episode, count in zip(source.rows.episodes, source.rows.counts, strict=True):
        if not source.is_of(_module_of(episode), name):
            found.setdefault(item_key(episode), [blank] * count)
    return found


def _module_of(episode: SingleAgentEpisode) -> ModuleID:
    return episode.module_id or DEFAULT_MODULE_ID


def _sequence_items(group: ColumnGroup) -> dict[str, list]:
    """Each sequence of a group is an item, ``[L, ...]``."""
    found: dict[str, list] = {}
    for _, columns in group.module_columns():
        for name in columns:
            if name != Columns.INFOS:
                found.setdefault(name, []).extend(unstack(columns[name]))
    return found


def _sequences_made(items: dict[str, Any], group: ColumnGroup) -> Sequences | None:
    """The sequences that a piece has just made of a group's rows; None if it has not.

    Raises:
        ConnectorError: If they do not have all rows of each chunk.
    """
    lengths_by_key = {key: list(lengths) for key, lengths in items.get(Columns.SEQ_LENS, {}).items()}
    if group.rows.acted is None or lengths_by_key.keys().isdisjoint(map(item_key, group.rows.episodes)):
        return None
    lengths: list[int] = []
    counts: list[int] = []
    longest: dict[ModuleID, int] = {}
    for episode, rows in zip(group.rows.episodes, group.rows.counts, strict=True):
        key, before = item_key(episode), len(lengths)
        rest = lengths_by_key.get(key, [])
        longest[episode.module_id or DEFAULT_MODULE_ID] = len(leaves(items[Columns.OBS][key][0])[0])
        missing = rows
        while missing > 0 and rest:
            lengths.append(int(rest.pop(0)))
            missing -= lengths[-1]
        if missing:
            raise ConnectorError(
                f"the sequences for episode {key} have {rows - missing} steps, expected {rows}: one for each step of "
                f"a chunk, and one for its last observation. Put AddOneTsToEpisodesAndTruncate first in the pipeline."
            )
        counts.append(len(lengths) - before)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    return Sequences(
        starts,
        np.array(lengths, np.int64),
        counts=np.array(counts),
        splits=tuple(np.searchsorted(starts, group.splits).tolist()),
        max_lens=tuple(longest[module_id] for module_id in group.module_ids),
    )


def _from_sequence_items(items: dict[str, Any], group: ColumnGroup, sequences: Sequences) -> None:
    """Rows of what pieces have made of ``_sequence_items``."""
    sharing: dict[Any, int] = {}
    by_module: dict[ModuleID, dict[str, list]] = {module_id: {} for module_id in group.module_ids}
    for episode, count in zip(group.rows.episodes, sequences.counts.tolist(), strict=True):
        key = item_key(episode)
        begin = sharing.get(key, 0)
        sharing[key] = begin + count
        for name, by_key in items.items():
            own = by_key.get(key, [])[begin : begin + count]
            if name != Columns.INFOS and len(own) != count:
                raise ConnectorError(f"{len(own)} sequences of {name!r} for episode {key}, expected {count}.")
            by_module[episode.module_id or DEFAULT_MODULE_ID].setdefault(name, []).extend(own)
    part = ColumnBatch([group], Phase.ITEMS)
    set_columns_by_module(
        part, {m: {n: _stacked(own, n) for n, own in c.items() if n != Columns.INFOS} for m, c in by_module.items()}
    )


def _without_infos(batch: ColumnBatch) -> ColumnBatch:
    """The other columns: no array is made of info dicts."""
    if not any(Columns.INFOS in group for group in batch.groups):
        return batch
    groups = [group.like() for group in batch.groups]
    for group, source in zip(groups, batch.groups, strict=True):
        group.update({name: column for name, column in source.items() if name != Columns.INFOS})
        group.holders = source.holders
    return ColumnBatch(groups, batch.phase)


def _infos_by_module(batch: ColumnBatch) -> dict[ModuleID, InfoColumn]:
    found: dict[ModuleID, InfoColumn] = {}
    for group in batch.groups:
        if Columns.INFOS in group:
            for module_id, begin, end in zip(group.module_ids, group.splits, group.splits[1:], strict=False):
                found.setdefault(module_id, InfoColumn()).extend(group[Columns.INFOS][begin:end])
    return found


def _set_infos(batch: ColumnBatch, by_module: dict[ModuleID, list]) -> None:
    for group in batch.groups:
        if not all(module_id in by_module for module_id in group.module_ids):
            continue
        own = group[Columns.INFOS] = InfoColumn()
        for module_id, begin, end in zip(group.module_ids, group.splits, group.splits[1:], strict=False):
            own.extend(by_module[module_id][: end - begin])
            by_module[module_id] = by_module[module_id][end - begin :]
        if len(own) != group.splits[-1]:
            raise ConnectorError(
                f"{len(own)} info dicts, but the batch has {group.splits[-1]} rows. Give each row one."
            )


def _by_episode(name: str, by_key: dict[Any, list], group: ColumnGroup) -> dict[int, list]:
    """The items of a column for each episode (by its ``id``); chunks of one episode, and an agent's lives, share a key.

    In a train batch, an episode's last row stands for its last observation, and other columns mean nothing there. So
    a piece may give one item for each step; the last of them is repeated.
    """
    sharing: dict[Any, list[tuple[SingleAgentEpisode, int, bool]]] = {}
    for episode, count in zip(group.rows.episodes, group.rows.counts, strict=True):
        has_last = group.rows.acted is not None and count > 1
        sharing.setdefault(item_key(episode), []).append((episode, count, has_last))
    found: dict[int, list] = {}
    for key, parts in sharing.items():
        given = by_key.get(key, [])
        wanted = sum(count for _, count, _ in parts)
        steps = sum(count - has_last for _, count, has_last in parts)
        short = len(given) == steps != wanted and name != Columns.OBS
        if len(given) != wanted and not short:
            raise ConnectorError(_wrong_number(name, key, len(given), wanted, steps))
        begin = 0
        for episode, count, has_last in parts:
            repeat = has_last and short
            own = given[begin : begin + count - repeat]
            begin += len(own)
            found[id(episode)] = [*own, own[-1]] if repeat else own
    return found


def _wrong_number(name: str, key: Any, given: int, wanted: int, steps: int) -> str:
    """What went wrong with the items of an episode, and what to do."""
    message = f"{given} items of {name!r} for episode {key}, expected {wanted}"
    if wanted == steps:
        return (
            f"{message}. Before a forward pass, add one item for each episode that single_agent_episode_iterator("
            f"episodes) gives: add_batch_item(batch, {name!r}, item, episode)."
        )
    also = "" if name == Columns.OBS else f" (or {steps}, without the last observation)"
    return (
        f"{message}{also}: a train batch has one for each of the {steps} steps and one for the last observation. "
        f"Behind AddOneTsToEpisodesAndTruncate, which is first in the default learner pipeline, add one for each i in "
        f"range(len(episode)) of every episode that single_agent_episode_iterator(episodes, "
        f"agents_that_stepped_only=False) gives. Without that piece, add one more of 'obs', for "
        f"episode.get_observations(-1)."
    )


def _stacked(items: list, name: str) -> Any:
    if name == Columns.INFOS:
        return InfoColumn(items)
    try:
        return torch.stack(items) if isinstance(items[0], torch.Tensor) else spaces.stack(items)
    except (ValueError, RuntimeError) as error:
        progress.unlike = (name, items)
        shapes = sorted({str(np.shape(item)) for item in items})
        raise ConnectorError(
            f"the items of {name!r} differ in shape ({', '.join(shapes[:4])}), so they cannot stand in one batch."
        ) from error
