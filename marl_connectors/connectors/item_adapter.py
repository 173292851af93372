"""Converts between batches in columns and the nested dicts of single items that a user's pieces may work on.

Only two kinds of calls need it:

* A piece on items is in a pipeline that runs on columns: ``run_piece`` converts the batch to items and back.
* A piece on columns is called by hand, on items: ``call_on_items`` converts the batch to columns and back.

``Phase`` describes the forms of a batch of items.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import optree
import torch
from optree import registry

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.piece_errors import progress
from marl_connectors.episodes.batch import RUN_EPISODES, ColumnBatch, ColumnGroup, Phase, RunEpisodes
from marl_connectors.episodes.bootstrap_view import ExtendedEpisode, originals
from marl_connectors.episodes.episode_rows import EpisodeRows, UnknownEpisodes, UnknownRows
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rows import whose
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.module_columns import columns_by_module, set_columns_by_module
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.rl_module.states import member
from marl_connectors.transfers import moved
from marl_connectors.trees import as_list, leaves, tree_map, unstack
from marl_connectors.typing import DEFAULT_MODULE_ID, ItemKey, ModuleID

# The keys of items.

MAPPING = "memorized_map_structure"
"""Key in ``shared_data``: ``{module_id: [item key, ...]}``, the order of each module's items."""


def item_key(episode: SingleAgentEpisode) -> ItemKey:
    """Returns ``(episode_id,)``, or ``(episode_id, agent_id, module_id)`` for an agent of a MultiAgentEpisode."""
    if episode.agent_id is None or episode.multi_agent_episode_id is None:
        return (episode.id_,)
    return (episode.multi_agent_episode_id, episode.agent_id, episode.module_id)


def agent_episodes(episodes: Iterable[Any], *, stepped_only: bool) -> list[SingleAgentEpisode]:
    """Returns all SingleAgentEpisodes, as ``ConnectorV2.single_agent_episode_iterator`` yields them."""
    return [part for episode in episodes for part in agent_episodes_of(episode, stepped_only=stepped_only)]


def agent_episodes_of(episode: Any, *, stepped_only: bool) -> list[SingleAgentEpisode]:
    """Returns the agent episodes of an episode; see ``ConnectorV2.single_agent_episode_iterator``."""
    if not isinstance(episode, MultiAgentEpisode):
        return [episode]
    if not stepped_only:
        return list(episode.all_agent_episodes())
    now = episode.env_t
    parts = [part for part in episode.agent_episodes.values() if part.storage.newest_t == now]
    return [part for part in parts if not (part.is_terminated or part.is_truncated)] or parts


# From columns to items, and back.

_UNMADE: Any = object()
"""Placeholder for the items of a column that no piece has looked at yet."""


class ItemBatch(dict[str, Any]):
    """``{column: {item key: [item, ...]}}``, where a column's items are made when a piece first looks at them.

    Columns that a piece has not looked at are not converted at all.
    """

    __slots__ = ("_names", "source")

    def __init__(self, source: ColumnBatch):
        names = dict.fromkeys(name for group in source.groups for name in _item_names(group))
        super().__init__(dict.fromkeys(names, _UNMADE))
        self.source = source
        self._names = list(names)

    @property
    def is_untouched(self) -> bool:
        """Whether the piece has looked at no column, and has added or removed none."""
        return list(self) == self._names and all(map(self.kept, self._names))

    def kept(self, name: str) -> bool:
        """Whether the batch has a column and the piece has not looked at it."""
        return dict.get(self, name) is _UNMADE

    def __getitem__(self, name: str) -> Any:
        found = super().__getitem__(name)
        if found is _UNMADE:
            found = {}
            for group in self.source.groups:
                _share_out(found, group, name)
            self[name] = found
        return found

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 (which is what this is)

    def setdefault(self, name: str, default: Any = None) -> Any:
        return self[name] if self.kept(name) else super().setdefault(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        if name in self:
            _ = self[name]
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        name = next(reversed(self.keys()))
        return name, self.pop(name)

    def __iter__(self) -> Iterator[str]:  # without it, dict(batch) would copy the placeholders
        return super().__iter__()

    def _all(self) -> dict[str, Any]:
        return {name: self[name] for name in self}

    def items(self) -> Any:
        return self._all().items()

    def values(self) -> Any:
        return self._all().values()

    def copy(self) -> dict[str, Any]:
        return self._all()

    def __or__(self, other: Any) -> Any:
        return self._all() | other

    def __ror__(self, other: Any) -> Any:
        return other | self._all()

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, ItemBatch) else other)

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles are ordinary dicts."""
        return dict, (self._all(),)


def _flattened(batch: Any) -> tuple[list[Any], tuple[str, ...]]:
    return list(batch.values()), tuple(batch)


def _unflattened(names: Any, columns: Any) -> Any:
    return dict(zip(names, columns, strict=True))


_EVERYWHERE: Any = registry.__GLOBAL_NAMESPACE
optree.register_pytree_node(ItemBatch, _flattened, _unflattened, namespace=_EVERYWHERE)  # type: ignore[arg-type]
"""Tree functions treat an ItemBatch as an ordinary dict."""


def _item_names(group: ColumnGroup) -> Iterator[str]:
    """Yields the names of a group's columns that have items."""
    if group.sequences is None:
        yield from group
        return
    for _, columns in group.module_columns():
        yield from (name for name in columns if name != Columns.INFOS)


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
                    group[name] = _stacked(name, flat)
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


def _row_items(group: ColumnGroup, name: str) -> tuple[list, Sequence[int]]:
    """Returns the items of a group's column and their number for each agent episode. A sequence is one item."""
    if group.sequences is None:
        return unstack(group[name]), group.rows.counts
    items = [item for _, own in group.module_columns() if name in own for item in unstack(own[name])]
    return items, group.sequences.counts.tolist()


def _share_out(by_key: dict[ItemKey, list], group: ColumnGroup, name: str) -> None:
    """Adds the items of a group's column under the episodes' keys."""
    if name not in group and group.sequences is None:
        return
    items, counts = _row_items(group, name)
    begin, held = 0, name in group.holders
    for episode, count in zip(group.rows.episodes, counts, strict=True):
        if not held or group.has_column(_module_of(episode), name):
            by_key.setdefault(item_key(episode), []).extend(items[begin : begin + count])
        begin += count


def _filled_up(name: str, by_key: dict[Any, list], source: ColumnGroup) -> dict[Any, list]:
    """Returns the items of a column by key, with zeros for the modules that have no such column."""
    if name not in source.holders or not any(by_key.values()):
        return by_key
    blank = tree_map(lambda leaf: leaf * 0, next(items[0] for items in by_key.values() if items))
    found = dict(by_key)
    for episode, count in zip(source.rows.episodes, source.rows.counts, strict=True):
        if not source.has_column(_module_of(episode), name):
            found.setdefault(item_key(episode), [blank] * count)
    return found


def _module_of(episode: SingleAgentEpisode) -> ModuleID:
    return episode.module_id or DEFAULT_MODULE_ID


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
        part, {m: {n: _stacked(n, own) for n, own in c.items() if n != Columns.INFOS} for m, c in by_module.items()}
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


def _stacked(name: str, items: list) -> Any:
    if name == Columns.INFOS:
        return InfoColumn(items)
    try:
        if isinstance(items[0], (dict, tuple)) and any(isinstance(leaf, torch.Tensor) for leaf in leaves(items[0])):
            return tree_map(lambda *leaves: torch.stack(leaves), *items)
        return torch.stack(items) if isinstance(items[0], torch.Tensor) else spaces.stack(items)
    except (ValueError, RuntimeError) as error:
        progress.unlike = (name, items)
        shapes = sorted({str(np.shape(item)) for item in items})
        raise ConnectorError(
            f"the items of {name!r} differ in shape ({', '.join(shapes[:4])}), so they cannot be stacked."
        ) from error


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


# Episodes that a piece has removed from a run.


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
    own = ColumnGroup(kept)
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


# Pieces on items in a pipeline of columns.


def run_piece(piece: Any, batch: ColumnBatch, episodes: Sequence[Any], **common: Any) -> ColumnBatch:
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


# Pieces on columns that are called by hand, on items.


def call_on_items(piece: Any, batch: dict[str, Any], episodes: Sequence[Any], **common: Any) -> dict[str, Any]:
    """Runs ``piece.on_columns`` on a batch of items, in any phase.

    The pipeline of the piece decides whether the rows are all steps of the episodes or their newest observations only.
    Without a pipeline, the number of items in the batch decides.

    Raises:
        ConnectorError: If the number of items in the batch does not fit the steps of the episodes.
    """
    rl_module = common.get("rl_module")
    shared = common["shared_data"] = {} if common.get("shared_data") is None else common["shared_data"]
    given = _ByHand(piece, batch, episodes, rl_module, shared.get(MAPPING, {}))
    is_alone = RUN_EPISODES not in shared
    shared.setdefault(RUN_EPISODES, episodes if isinstance(episodes, RunEpisodes) else RunEpisodes(episodes))
    try:
        piece.before_columns(given.groups, rl_module)
        for group in given.groups:
            given.run(piece, group, common)
            if group.action_dist_cls is not None:  # the piece has deferred the log-probabilities
                distribution = group.action_dist_cls.from_logits(group[Columns.ACTION_DIST_INPUTS])
                group[Columns.ACTION_LOGP] = distribution.logp(group[Columns.ACTIONS])
        piece.after_columns(given.groups, shared)
    finally:
        if is_alone:
            del shared[RUN_EPISODES]
    return given.with_columns()


class _Share:
    """The items of one agent episode, or of a key without an episode.

    Attributes:
        key: The key of the items.
        episode: The agent episode, if it is known.
        module_id: The module of the episode.
        columns: The items by column, one for each row.
        lengths: The lengths of the sequences, if the batch has sequences.
        states: The states before the sequences, if the batch has them.
        max_len: The length that sequences are padded to.
        has_last: Whether any column has an item for the last observation.
        short: The columns without an item for the last observation.
        made: The items that the piece has made, by column.
    """

    def __init__(self, key: Any, episode: SingleAgentEpisode | None, module_id: ModuleID):
        self.key = key
        self.episode = episode
        self.module_id = module_id
        self.columns: dict[str, list] = {}
        self.lengths: list[int] = []
        self.states: list[Any] = []
        self.max_len = 0
        self.has_last = False
        self.short: set[str] = set()
        self.made: dict[str, list] = {}

    def add_last(self) -> None:
        """Adds missing items for the last observation; in columns other than ``obs`` they have no meaning."""
        episode = self.episode
        assert episode is not None
        self.short = {name for name, items in self.columns.items() if len(items) == len(episode)}
        for name in self.short:
            items = self.columns[name]
            if name == Columns.CRITIC_OBS:
                raise ConnectorError(
                    "a centralised critic is asked about the episodes' last observations. Put "
                    "AddOneTsToEpisodesAndTruncate at the beginning of the learner pipeline."
                )
            self.columns[name] = [*items, _last_item(episode, name, items[-1])]
        if self.has_last or not self.lengths:
            return
        if self.lengths[-1] < self.max_len:
            self.lengths[-1] += 1
            return
        self.lengths.append(1)
        if self.states:
            held = as_list(episode.storage.column(Columns.STATE_OUT))[-1]
            self.states.append(tree_map(_like, held, self.states[-1]))


class _ByHand:
    """A batch of items of a call by hand, converted to groups of columns and back.

    Agent episodes are in one group if their spaces, trajectories and items are alike. If the items are sorted by
    module, each module has its own group.

    Attributes:
        groups: The columns, for a piece to work on.
    """

    def __init__(self, piece: Any, batch: dict[str, Any], episodes: Sequence[Any], rl_module: Any, mapping: Any):
        self._batch = batch
        self._rl_module = rl_module
        self._apart = getattr(piece, "grouping_key", lambda agent_id: None)
        self._by_module = _is_sorted_by_module(batch)
        self._train = _is_train(piece, batch, episodes)
        own = agent_episodes(episodes, stepped_only=not self._train)
        own = [episode for episode in own if len(episode)] if self._train else own
        self._is_extended = any(isinstance(episode, ExtendedEpisode) for episode in own)
        self._shares = [_Share(item_key(e), e, e.module_id or DEFAULT_MODULE_ID) for e in originals(own)]
        families = self._read_modules(mapping) if self._by_module else self._read_keys()
        self._members = [[share for own in family.values() for share in own] for family in families]
        self.groups = [self._group(family) for family in families]
        self._given = [dict(group) for group in self.groups]

    def run(self, piece: Any, group: ColumnGroup, common: dict[str, Any]) -> None:
        """Runs a piece on a group. Items without episodes stay as they are if the piece needs their episodes."""
        before = dict(group)
        try:
            piece.on_columns(columns=group, **common)
        except UnknownEpisodes:
            if all(share.episode is None for share in self._shares):
                raise
            group.clear()
            group.update(before)

    # From items to columns.

    def _read_keys(self) -> list[dict[ModuleID, list[_Share]]]:
        """Assigns items to agent episodes by their keys; returns those that can be in one group, by module."""
        by_key: dict[Any, list[_Share]] = {}
        for share in self._shares:
            by_key.setdefault(share.key, []).append(share)
        keyed = {name: column for name, column in self._batch.items() if isinstance(column, dict)}
        flat = {name: as_list(column) for name, column in self._batch.items() if name not in keyed}
        for key in dict.fromkeys(key for column in keyed.values() for key in column):
            if key not in by_key:
                by_key[key] = [_Share(key, None, key[2] if len(key) > 2 else DEFAULT_MODULE_ID)]
                self._shares += by_key[key]
        if flat:
            self._share_out(flat, [share for share in self._shares if share.episode is not None] or self._unknown(flat))
        for key, own in by_key.items():
            self._share_out({name: column[key] for name, column in keyed.items() if key in column}, own)
        modules = self._rl_module
        order = {m: i for i, m in enumerate(modules.keys())} if isinstance(modules, MultiRLModule) else {}
        families: dict[Any, dict[ModuleID, list[_Share]]] = {}
        for share in sorted(self._shares, key=lambda share: order.get(share.module_id, len(order))):
            outputs = modules.output_kind(share.module_id) if share.module_id in order else None
            kind = (frozenset(share.columns), bool(share.lengths), outputs, _grouping_key(share, self._apart))
            ended = share.episode is not None and share.episode.is_done and not self._train
            families.setdefault((ended, kind), {}).setdefault(share.module_id, []).append(share)
        return [families[kind] for kind in sorted(families, key=lambda kind: kind[0])]

    def _unknown(self, columns: dict[str, list]) -> list[_Share]:
        self._shares.append(_Share(None, None, DEFAULT_MODULE_ID))
        return self._shares[-1:] if columns else []

    def _read_modules(self, mapping: Mapping[ModuleID, list]) -> list[dict[ModuleID, list[_Share]]]:
        """Assigns the rows of modules' columns to agent episodes."""
        by_key: dict[ItemKey, list[_Share]] = {}
        for share in self._shares:
            by_key.setdefault(share.key, []).append(share)
        keys = dict.fromkeys([*(key for own in mapping.values() for key in own if key in by_key), *by_key])
        in_order = [share for key in keys for share in by_key[key]]
        families = []
        for module_id, columns in self._batch.items():
            own = [share for share in in_order if share.module_id == module_id]
            items = {name: as_list(column) for name, column in columns.items()}
            count, steps = max(map(len, items.values()), default=0), sum(map(self._steps, own))
            if count not in (steps, steps + len(own) * self._train) and Columns.SEQ_LENS not in items:
                if self._train and own:
                    name = max(items, key=lambda name: len(items[name]))
                    raise ConnectorError(
                        f"{count} items of {name!r} for module {module_id!r}, whose episodes have {steps} steps. Pass "
                        f"the episodes that the batch was made of."
                    )
                own = [_Share(None, None, module_id)]
            self._share_out(items, own)
            families.append({module_id: own})
        return families

    def _steps(self, share: _Share) -> int:
        return len(share.episode) if self._train and share.episode is not None else 1

    def _share_out(self, items_by_name: dict[str, list], shares: list[_Share]) -> None:
        """Splits items among the agent episodes that share a key or module, row by row."""
        if len(shares) == 1 and shares[0].episode is None:
            shares[0].columns.update(items_by_name)
            return
        steps = list(map(self._steps, shares))
        counts = self._sequences(items_by_name[Columns.SEQ_LENS], shares) if Columns.SEQ_LENS in items_by_name else None
        for name, items in items_by_name.items():
            if name == Columns.SEQ_LENS:
                continue
            in_sequences = counts is not None and name != Columns.INFOS
            wanted = steps if counts is None or not in_sequences else counts
            has_last = not in_sequences and self._train and len(items) == sum(steps) + len(steps) != 0
            if not has_last and len(items) != sum(wanted):
                raise ConnectorError(self._wrong_number(name, shares, len(items), sum(wanted)))
            end = 0
            for share, count in zip(shares, wanted, strict=True):
                part, end = items[end : end + count + has_last], end + count + has_last
                share.has_last |= has_last
                if not in_sequences:
                    share.columns[name] = part
                elif name == Columns.STATE_IN:
                    share.states = part
                else:
                    share.max_len = len(leaves(part[0])[0])
                    pairs = zip(part, share.lengths, strict=True)
                    share.columns[name] = [row for item, length in pairs for row in unstack(item)[:length]]

    def _sequences(self, given: Sequence[Any], shares: list[_Share]) -> list[int]:
        """Sets the lengths of each agent episode's sequences; returns the number of sequences of each."""
        lengths, steps = [int(length) for length in given], list(map(self._steps, shares))
        has_last = sum(lengths) == sum(steps) + len(steps)
        rest = iter(lengths)
        for share, count in zip(shares, steps, strict=True):
            while sum(share.lengths) < count + has_last:
                share.lengths.append(next(rest, 0))
                if not share.lengths[-1]:
                    break
            if sum(share.lengths) != count + has_last:
                raise ConnectorError(
                    f"the sequences for episode {share.key} have {sum(share.lengths)} steps, expected {count}: one for "
                    f"each step of a chunk, and one for its last observation after AddOneTsToEpisodesAndTruncate."
                )
            share.has_last = has_last
        return [len(share.lengths) for share in shares]

    def _wrong_number(self, name: str, shares: list[_Share], given: int, wanted: int) -> str:
        fix = "Add one for each i in range(len(episode))."
        if not self._train:
            fix = "Add one for each episode that single_agent_episode_iterator(episodes) gives."
        if not self._by_module and len({share.key for share in shares}) != 1:
            return f"{given} items of {name!r}, but {wanted} {'steps' if self._train else 'acting agents'}. {fix}"
        return f"{given} items of {name!r} for episode {shares[0].key}, expected {wanted}. {fix}"

    def _group(self, family: dict[ModuleID, list[_Share]]) -> ColumnGroup:
        everyone = [share for own in family.values() for share in own]
        if any(share.episode is None for share in everyone):
            counts = [max(map(len, share.columns.values()), default=0) for share in everyone]
            module_id = everyone[0].module_id
            modules = self._rl_module
            known = isinstance(modules, RLModule) or (modules is not None and module_id in modules)
            space = member(modules, module_id).action_space if known else None
            group = ColumnGroup(UnknownRows(module_id, counts, space))
        else:
            by_module: Any = {module_id: [share.episode for share in own] for module_id, own in family.items()}
            group = ColumnGroup(EpisodeRows(by_module, train=self._train))
            for share in everyone:
                if self._train:
                    share.add_last()
        for name in everyone[0].columns if everyone else ():
            group[name] = _stacked(name, [item for share in everyone for item in share.columns[name]])
        if everyone and everyone[0].lengths:
            lengths = np.array([length for share in everyone for length in share.lengths], np.int64)
            starts = np.cumsum(lengths) - lengths
            states = [state for share in everyone for state in share.states]
            found = leaves(dict(group))
            group.sequences = Sequences(
                starts,
                lengths,
                counts=np.array([len(share.lengths) for share in everyone]),
                splits=tuple(np.searchsorted(starts, group.splits).tolist()),
                max_lens=tuple(own[0].max_len for own in family.values()),
                state_in=_stacked(Columns.STATE_IN, states) if states else None,
            )
            tensor = next((leaf for leaf in found if isinstance(leaf, torch.Tensor)), None)
            if tensor is not None:
                group.sequences.to_column = partial(moved, device=tensor.device)
        return group

    # From columns to items.

    def with_columns(self) -> dict[str, Any]:
        """Returns the batch with the columns that the piece has made."""
        given = [share for share in self._shares if share.columns]
        if self._train and not (any(share.has_last for share in given) if given else self._is_extended):
            for group in self.groups:
                _drop_last_rows(group)
        found = self._module_columns() if self._by_module else self._keyed_columns()
        for name in [name for name in self._batch if name not in found]:
            del self._batch[name]
        self._batch.update(found)
        return self._batch

    def _module_columns(self) -> dict[str, Any]:
        """Returns the columns of each module, as lists if they were lists before."""
        found: dict[str, Any] = {}
        for group in self.groups:
            for module_id, columns in group.module_columns():
                lists = any(type(column) is list for column in self._batch[module_id].values())
                found[module_id] = {name: unstack(columns[name]) if lists else columns[name] for name in columns}
        return {module_id: found.get(module_id, columns) for module_id, columns in self._batch.items()}

    def _keyed_columns(self) -> dict[str, Any]:
        """Returns the columns by key, in the order of the episodes. Columns that the piece has not set stay."""
        names = dict.fromkeys(name for group in self.groups for name in _item_names(group))
        found: dict[str, Any] = {}
        for name in self._batch:
            if name in names or not any(name in given for given in self._given):
                found[name] = self._batch[name]
        for name in names:
            pairs = zip(self.groups, self._given, strict=True)
            if all(group.sequences is None and group.get(name) is given.get(name) for group, given in pairs):
                continue
            for group, members in zip(self.groups, self._members, strict=True):
                if group.sequences is not None or name in group:
                    items, counts = _row_items(group, name)
                    ends = list(itertools.accumulate(counts))
                    for share, end, count in zip(members, ends, counts, strict=True):
                        is_long = name in share.short and not share.lengths and count > self._steps(share)
                        share.made[name] = items[end - count : end - is_long]
            having = [share for share in self._shares if name in share.made]
            if name in self._batch and not isinstance(self._batch[name], dict):
                found[name] = [item for share in having for item in share.made[name]]
                continue
            found[name] = by_key = {}
            for share in having:
                by_key.setdefault(share.key, []).extend(share.made[name])
        return found


def _drop_last_rows(group: ColumnGroup) -> None:
    """Removes the rows of last observations, which the items did not have."""
    acted = group.rows.acted
    if acted is None or acted.all():
        return
    keep = np.flatnonzero(acted)
    for name, column in group.items():
        if name == Columns.INFOS:
            group[name] = InfoColumn(column[i] for i in keep.tolist())
        else:
            group[name] = tree_map(lambda leaf: leaf[keep], column)
    without_last_rows(group, acted)
    group.rows = group.rows.kept(keep)


def _is_train(piece: Any, batch: dict[str, Any], episodes: Sequence[Any]) -> bool:
    """Whether a batch holds all steps of the episodes, not their newest observations only."""
    if piece.belongs_in == ("learner",):
        return True
    if hasattr(piece, "learns"):
        return piece.learns
    if piece.in_learner_pipeline is not None:
        return piece.in_learner_pipeline
    return _num_items(batch) > len(agent_episodes(episodes, stepped_only=True))


def _is_sorted_by_module(batch: dict[str, Any]) -> bool:
    """Whether a batch is ``{module: {column: ...}}`` and not ``{column: {key: ...}}``, whose keys are tuples."""
    inner = [column for column in batch.values() if isinstance(column, dict) and column]
    return bool(inner) and all(isinstance(key, str) for column in inner for key in column)


def _num_items(batch: dict[str, Any]) -> int:
    """Returns the length of a batch's longest column; 0 for an empty batch."""
    if _is_sorted_by_module(batch):
        longest: dict[str, int] = {}
        for columns in batch.values():
            for name, column in columns.items():
                longest[name] = longest.get(name, 0) + len(as_list(column))
        return max(longest.values(), default=0)
    lengths = [sum(map(len, c.values())) if isinstance(c, dict) else len(as_list(c)) for c in batch.values()]
    return max(lengths, default=0)


def _grouping_key(share: _Share, apart: Callable[[Any], Any]) -> Any:
    """Returns a key that is equal for agent episodes whose rows can be in one group."""
    episode = share.episode
    if episode is None:
        return share.module_id
    known = [None if s is None else spaces.describe(s) for s in (episode.observation_space, episode.action_space)]
    newest = as_list(episode.storage.column(Columns.OBS))[-1:]
    shapes = [(np.shape(leaf), str(np.asarray(leaf).dtype)) for leaf in leaves(newest)]
    return (*known, *shapes, frozenset(episode.storage.extra_keys()), apart(episode.agent_id))


def _like(value: Any, like: Any) -> Any:
    return torch.as_tensor(value).to(like) if isinstance(like, torch.Tensor) else value


def _last_item(episode: SingleAgentEpisode, name: str, like: Any) -> Any:
    """Returns the item for the row of a last observation: that itself in ``obs`` if its shape fits, else ``like``."""
    if name != Columns.OBS:
        return like
    last = as_list(episode.storage.column(Columns.OBS))[-1]
    if [np.shape(leaf) for leaf in leaves(last)] != [tuple(leaf.shape) for leaf in map(np.asarray, leaves(like))]:
        return like
    return tree_map(_like, last, like)
