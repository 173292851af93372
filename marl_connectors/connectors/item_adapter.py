"""Converts batches in columns to items and back, for a piece on items in a pipeline that runs on columns.

``run_piece`` runs such a piece. ``Phase`` describes the forms of a batch of items.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.connectors.item_batch import (
    ItemBatch,
    agent_episodes,
    item_key,
    module_of,
    stacked,
)
from marl_connectors.connectors.piece_errors import progress
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, Phase, RunEpisodes
from marl_connectors.episodes.bootstrap_view import originals
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.rows import whose
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.module_columns import columns_by_module, set_columns_by_module
from marl_connectors.trees import leaves, tree_map, unstack
from marl_connectors.typing import DEFAULT_MODULE_ID, ItemKey, ModuleID

if TYPE_CHECKING:
    from marl_connectors.connectors.connector_v2 import ConnectorV2


def to_items(batch: ColumnBatch) -> dict[str, Any]:
    """Converts a batch in columns to items, in the form of its phase."""
    if batch.phase is Phase.ITEMS:
        return ItemBatch(batch)
    by_module = columns_by_module(_without_infos(batch))
    for module_id, infos in _infos_by_module(batch).items():
        by_module[module_id][Columns.INFOS] = infos
    in_item_order(by_module, batch)
    if batch.phase is Phase.MODULE_ITEMS:
        return {m: {name: unstack(column) for name, column in columns.items()} for m, columns in by_module.items()}
    return by_module


def to_columns(items: dict[str, Any], like: ColumnBatch) -> ColumnBatch:
    """Converts a batch of items to columns, in the row order of ``like``.

    Args:
        items: The batch that a piece returned.
        like: The batch in columns that the piece's input was made from. Its phase is that of ``items``.

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
    kept = items.kept if isinstance(items, ItemBatch) else lambda name: False
    for group, source in zip(batch.groups, like.groups, strict=True):
        sequences = group.sequences = source.sequences or _sequences_made(items, group)
        if sequences is not None:
            _from_sequence_items(items, group, sequences)
            if Columns.INFOS in source:
                group[Columns.INFOS] = source[Columns.INFOS]
            continue
        keys = [item_key(episode) for episode in group.rows.episodes]
        for name in items:
            if kept(name):
                if name in source:
                    group[name] = source[name]
            else:
                flat = _items_of_rows(name, items[name], group, source, keys)
                if flat is not None:
                    group[name] = stacked(name, flat)
    return batch


def _items_of_rows(name: str, items: Any, group: ColumnGroup, source: ColumnGroup, keys: list[ItemKey]) -> list | None:
    """Returns the items of a column, one for each row of a group; None if only other groups have the column."""
    if isinstance(items, dict):
        if group.rows.acted is None and not source.holders and all(len(items.get(key, ())) == 1 for key in keys):
            return [items[key][0] for key in keys]  # most steps: each acting agent has one row and its own key
        if name != Columns.OBS and not any(key in items for key in keys):
            return None
        by_episode = _by_episode(name, _filled_up(name, items, source), group, keys)
        flat = [item for own in by_episode for item in own]
    else:
        flat = list(items)
    if len(flat) != len(group.rows):
        raise ConnectorError(f"{len(flat)} items of {name!r}, but the batch has {len(group.rows)} rows.")
    return flat


def _filled_up(name: str, by_key: dict[Any, list], source: ColumnGroup) -> dict[Any, list]:
    """Returns the items of a column by key, with zeros for the modules that have no such column."""
    if name not in source.holders or not any(by_key.values()):
        return by_key
    blank = tree_map(lambda leaf: leaf * 0, next(items[0] for items in by_key.values() if items))
    found = dict(by_key)
    for episode, count in zip(source.rows.episodes, source.rows.counts, strict=True):
        if not source.has_column(module_of(episode), name):
            found.setdefault(item_key(episode), [blank] * count)
    return found


def _sequences_made(items: dict[str, Any], group: ColumnGroup) -> Sequences | None:
    """Returns the sequences that a piece has made of a group's rows, or None.

    Raises:
        ConnectorError: If the sequences do not cover all rows of each chunk.
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
    """Sets a group's columns from items that are sequences."""
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
        part, {m: {n: stacked(n, own) for n, own in c.items() if n != Columns.INFOS} for m, c in by_module.items()}
    )


def _without_infos(batch: ColumnBatch) -> ColumnBatch:
    """Returns the batch without info dicts, which are never converted to arrays."""
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


def _by_episode(name: str, by_key: dict[Any, list], group: ColumnGroup, keys: list[ItemKey]) -> list[list]:
    """Returns the items of a column for each episode of a group. Several chunks or episodes of an agent share a key.

    In a train batch, the last row of an episode is its last observation, and other columns have no meaning there. So a
    piece may return one item for each step, and the last item is repeated.
    """
    counts, is_train = group.rows.counts, group.rows.acted is not None
    sharing: dict[Any, list[int]] = {}
    for i, key in enumerate(keys):
        sharing.setdefault(key, []).append(i)
    found: list[list] = [[]] * len(keys)
    for key, places in sharing.items():
        given = by_key.get(key, [])
        wanted = sum([counts[i] for i in places])
        steps = sum([counts[i] - (is_train and counts[i] > 1) for i in places])
        short = len(given) == steps != wanted and name != Columns.OBS
        if len(given) != wanted and not short:
            raise ConnectorError(_wrong_number(name, key, len(given), wanted, steps))
        begin = 0
        for i in places:
            repeat = short and counts[i] > 1
            own = given[begin : begin + counts[i] - repeat]
            begin += len(own)
            found[i] = [*own, own[-1]] if repeat else own
    return found


def _wrong_number(name: str, key: Any, given: int, wanted: int, steps: int) -> str:
    """Returns the message for a wrong number of items of an episode."""
    message = f"{given} items of {name!r} for episode {key}, expected {wanted}"
    if wanted == steps:
        return (
            f"{message}. Before a forward pass, add one item for each episode that single_agent_episode_iterator("
            f"episodes) gives: add_batch_item(batch, {name!r}, item, episode)."
        )
    also = "" if name == Columns.OBS else f" (or {steps}, without the last observation)"
    return (
        f"{message}{also}: a train batch has one for each of the {steps} steps and one for the last observation. "
        f"After AddOneTsToEpisodesAndTruncate, which is first in the default learner pipeline, add one for each i in "
        f"range(len(episode)) of every episode that single_agent_episode_iterator(episodes, "
        f"agents_that_stepped_only=False) gives. Without that piece, add one more of 'obs', for "
        f"episode.get_observations(-1)."
    )


def in_item_order(by_module: dict[ModuleID, Any], batch: ColumnBatch) -> None:
    """Sorts rows by module into the order of items, in place, so that rows with the same key are next to each other.

    Chunks of one episode, and an agent's episodes in one MultiAgentEpisode, share a key; their rows may be apart.
    """
    for module_id, order in _orders(batch).items():
        _reorder(by_module, module_id, order)


def in_row_order(by_module: dict[ModuleID, Any], batch: ColumnBatch) -> None:
    """Sorts items by module into the order of rows, in place."""
    for module_id, order in _orders(batch).items():
        _reorder(by_module, module_id, np.argsort(order))


def _orders(batch: ColumnBatch) -> dict[ModuleID, np.ndarray]:
    """Returns each item's row, for each module whose items are in another order than its rows."""
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
    """Drops the rows of last observations from a train batch if a piece has removed them from all columns."""
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
    """Updates a group's rows and sequences by module to those of ``keep``; columns stay as they are."""
    before = np.concatenate([[0], np.cumsum(keep)])
    group.splits = tuple(before[list(group.splits)].tolist())
    sizes = set(np.diff(group.splits).tolist())
    group.rows_per_module = sizes.pop() if len(sizes) == 1 else None
    if group.sequences is not None:
        group.sequences = group.sequences.without(keep)


def _counts(group: ColumnGroup) -> dict[ModuleID, int]:
    """Returns the number of rows, or of sequences, of each module."""
    splits = group.splits if group.sequences is None else group.sequences.splits
    return dict(zip(group.module_ids, np.diff(splits).tolist(), strict=True))


def _have(columns: dict[str, Any], count: int) -> bool:
    """Whether all of a module's columns have this number of rows."""
    return bool(columns) and all(
        (len(column) if isinstance(column, list) else len(leaves(column)[0])) == count
        for name, column in columns.items()
        if name != Columns.INFOS
    )


def without_taken_out(batch: ColumnBatch, episodes: Sequence[Any]) -> ColumnBatch:
    """Returns the batch without the rows of episodes that a piece has removed from the run.

    Raises:
        ConnectorError: If the piece has added other episodes.
    """
    if not isinstance(episodes, RunEpisodes) or not episodes.replaced or batch.phase is not Phase.ITEMS:
        return batch
    parts = originals(agent_episodes(episodes, stepped_only=False))
    left = {id(part) for part in parts}
    known = {id(episode) for group in batch.groups for episode in group.rows.episodes}
    for part in parts:
        if len(part) and id(part) not in known:
            raise ConnectorError(
                f"a piece has added {whose(part)} to the episodes, but the batch is not made of it. "
                f"Only remove episodes, change their data in place, or run the pipeline on items."
            )
    groups = [_only(group, left) for group in batch.groups]
    return ColumnBatch([group for group in groups if len(group.rows)], batch.phase)


def _only(group: ColumnGroup, left: set[int]) -> ColumnGroup:
    """Returns a group with the rows of some agent episodes only."""
    rows = group.rows
    keep = np.repeat([id(episode) in left for episode in rows.episodes], rows.counts)
    if keep.all():
        return group
    index = np.flatnonzero(keep)
    kept, sequences = rows.kept(index), group.sequences
    present = [begin < end for begin, end in itertools.pairwise(kept.splits)]
    kept.module_ids = tuple(itertools.compress(kept.module_ids, present))
    kept.splits = (0, *itertools.compress(kept.splits[1:], present))
    sizes = set(np.diff(kept.splits).tolist())
    kept.rows_per_module = sizes.pop() if len(sizes) == 1 else None
    own = ColumnGroup(kept).within_that_of(group)
    own.action_dist_cls, own.holders = group.action_dist_cls, group.holders
    for name, column in group.items():
        own[name] = tree_map(
            lambda leaf: InfoColumn(leaf[i] for i in index.tolist()) if isinstance(leaf, InfoColumn) else leaf[index],
            column,
        )
    if sequences is not None:
        own.sequences = sequences.without(keep)
        own.sequences.counts = own.sequences.counts[own.sequences.counts > 0]
        own.sequences.splits = (0, *itertools.compress(own.sequences.splits[1:], present))
        own.sequences.max_lens = tuple(itertools.compress(own.sequences.max_lens, present))
    return own


def run_piece(piece: ConnectorV2, batch: ColumnBatch, episodes: Sequence[Any], **common: Any) -> ColumnBatch:
    """Runs a piece that works on items on a batch in columns.

    Raises:
        ConnectorError: If the piece returns no batch, or one that cannot be converted to columns.
    """
    progress.begin(piece.in_learner_pipeline)
    given = to_items(batch)
    items = checked_batch(piece(batch=given, episodes=episodes, **common))
    batch.phase = piece.phase_after or batch.phase
    like = without_taken_out(batch, episodes)
    is_same = items is given and like is batch and batch.phase is Phase.ITEMS
    if is_same and isinstance(given, ItemBatch) and given.is_untouched:
        return batch
    progress.converting = items
    return to_columns(items, like)


def checked_batch(batch: Any) -> dict[str, Any]:
    """Returns the result of a piece on items; raises a ConnectorError if it is not a batch."""
    if not isinstance(batch, dict):
        raise ConnectorError(
            f"returned {type(batch).__name__} instead of the batch. End its __call__ with 'return batch'."
        )
    return batch
