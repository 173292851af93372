"""Items at the border: between batches in columns and the nested dicts of single items that pieces may work on.

Two kinds of calls need it, and nothing else does:

* a piece that works on items stands in a pipeline that runs on columns: ``run_piece`` gives it items, and takes
  them back;
* a piece that works on columns is called by hand, on items: ``call_on_items`` gives it columns and takes them back.

See ``Phase`` for what a batch of items looks like at which point.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import optree
import torch
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.failures import progress
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup, Phase, slice_tree
from marl_connectors.episodes.extended_episodes import ExtendedEpisode, extended, originals
from marl_connectors.episodes.info_column import InfoColumn
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rows import Rows, unknown_column, whose
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import STEP, WITH_LAST
from marl_connectors.errors import ConnectorError, EpisodeError
from marl_connectors.rl_module.module_columns import columns_by_module, set_columns_by_module
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, ItemKey, ModuleID, Tree

# Whose items they are.

MAPPING = "memorized_map_structure"
"""Key in ``shared_data``: ``{module_id: [item key, ...]}``, the order of each module's items."""


def item_key(episode: SingleAgentEpisode) -> ItemKey:
    """``(episode_id,)`` alone, ``(episode_id, agent_id, module_id)`` for an agent of a MultiAgentEpisode."""
    if episode.agent_id is None or episode.multi_agent_episode_id is None:
        return (episode.id_,)
    return (episode.multi_agent_episode_id, episode.agent_id, episode.module_id)


def agent_episodes(episodes: Sequence[Any], *, stepped_only: bool) -> Iterator[SingleAgentEpisode]:
    """All SingleAgentEpisodes, those inside MultiAgentEpisodes too; ``single_agent_episode_iterator`` says which."""
    for episode in episodes:
        if not isinstance(episode, MultiAgentEpisode):
            yield episode
        elif not stepped_only:
            yield from episode.all_agent_episodes()
        else:
            stepped = episode.get_agents_that_stepped()
            parts = [part for agent_id, part in episode.agent_episodes.items() if agent_id in stepped]
            yield from [part for part in parts if not part.is_done] or parts


def unstack(values: Any) -> list:
    """The items of an array, tensor, or tree of them, along its first axis; views where possible."""
    if isinstance(values, dict):
        parts = {key: unstack(part) for key, part in values.items()}
        return [dict(zip(parts, items, strict=True)) for items in zip(*parts.values(), strict=True)]
    if isinstance(values, tuple):
        return list(zip(*(unstack(part) for part in values), strict=True))
    return list(values)


# From columns to items, and back.


_UNMADE: Any = object()
"""Stands for the items of a column that nobody has looked at yet."""


class ItemBatch(dict[str, Any]):
    """``{column: {item key: [item, ...]}}``, where a column's items are made when somebody looks at them.

    Columns that a piece has not looked at go back as they are.
    """

    __slots__ = ("_names", "source")

    def __init__(self, source: ColumnBatch):
        names = dict.fromkeys(name for group in source.groups for name in _item_names(group))
        super().__init__(dict.fromkeys(names, _UNMADE))
        self.source = source
        self._names = list(names)

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has looked at any column, or put one in or out."""
        return list(self) == self._names and all(map(self.kept, self._names))

    def kept(self, name: str) -> bool:
        """Whether a column is there and nobody has looked at it."""
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
        if name not in self:
            self[name] = default
        return self[name]

    def pop(self, name: str, *default: Any) -> Any:
        if name in self:
            _ = self[name]
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        name = next(reversed(self.keys()))
        return name, self.pop(name)

    def __iter__(self) -> Iterator[str]:  # without it, dict(batch) would copy what nobody has looked at
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


optree.register_pytree_node(  # tree functions see an ordinary dict
    ItemBatch,
    lambda batch: (list(batch.values()), list(batch)),
    lambda names, columns: dict(zip(names, columns, strict=True)),
    namespace=optree.registry.__GLOBAL_NAMESPACE,
)


def _item_names(group: ColumnGroup) -> Iterator[str]:
    """The columns that a group's items are of."""
    if group.sequences is None:
        yield from group
        return
    for _, columns in group.module_columns():
        yield from (name for name in columns if name != Columns.INFOS)


def to_items(batch: ColumnBatch) -> dict[str, Any]:
    """A batch as the pieces of its phase expect it."""
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
    """The items of a column, one for each row of a group; None for a column of other groups, such as states."""
    if isinstance(items, dict):
        if name != Columns.OBS and not any(key in items for key in keys):
            return None
        by_episode = _by_episode(name, _filled_up(name, items, source), group, keys)
        flat = [item for own in by_episode for item in own]
    else:
        flat = list(items)
    if len(flat) != len(group.rows):
        raise ConnectorError(f"{len(flat)} items of {name!r}, but the batch has {len(group.rows)} rows.")
    return flat


def _share_out(by_key: dict[ItemKey, list], group: ColumnGroup, name: str) -> None:
    """Puts the items of a group's column under the episodes' keys. In sequences, each of these is an item."""
    if group.sequences is not None:
        counts = group.sequences.counts.tolist()
        items = [item for _, own in group.module_columns() if name in own for item in unstack(own[name])]
    elif name in group:
        counts, items = group.rows.counts, unstack(group[name])
    else:
        return
    begin, held = 0, name in group.holders
    for episode, count in zip(group.rows.episodes, counts, strict=True):
        if not held or group.is_of(_module_of(episode), name):
            by_key.setdefault(item_key(episode), []).extend(items[begin : begin + count])
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
        part, {m: {n: _stacked(n, own) for n, own in c.items() if n != Columns.INFOS} for m, c in by_module.items()}
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


def _by_episode(name: str, by_key: dict[Any, list], group: ColumnGroup, keys: list[ItemKey]) -> list[list]:
    """The items of a column for each episode of a group; chunks of one episode, and an agent's lives, share a key.

    In a train batch, an episode's last row stands for its last observation, and other columns mean nothing there. So
    a piece may give one item for each step; the last of them is repeated.
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


def _stacked(name: str, items: list) -> Any:
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


# The episodes of a run.

EPISODES_OF_RUN = "episodes_of_run"
"""Key in ``shared_data``: the run's EpisodesOfRun."""


class EpisodesOfRun(Sequence[Any]):
    """The episodes that a learner pipeline's pieces get in one run: as they are, or with an artificial step each.

    A piece that works on items may set others, ``episodes[:] = ...``: later pieces see these, the caller does not.

    Attributes:
        replaced: Whether a piece has done so.
    """

    __slots__ = ("_episodes", "_extended", "_is_extended", "replaced")

    def __init__(self, episodes: Sequence[Any]):
        self._episodes = episodes
        self._is_extended = False
        self._extended: list[Any] | None = None
        self.replaced = False

    def extend(self) -> None:
        """From now on, every episode has one artificial step more. They are made when a piece looks at them."""
        self._is_extended = True

    @property
    def unextended(self) -> Sequence[Any]:
        """The episodes as they are, which costs nothing."""
        return self._episodes

    def _shown(self) -> Sequence[Any]:
        if not self._is_extended:
            return self._episodes
        if self._extended is None:
            self._extended = [extended(episode) for episode in self._episodes]
        return self._extended

    def __len__(self) -> int:
        return len(self._episodes if self._extended is None else self._extended)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._shown()[index]

    def __setitem__(self, index: int | slice, value: Any) -> None:
        shown = list(self._shown())
        shown[index] = value
        if self._is_extended:
            self._extended = shown
        else:
            self._episodes = shown
        self.replaced = True

    def __iter__(self) -> Iterator[Any]:
        return iter(self._shown())


def run_piece(piece: Any, batch: ColumnBatch, episodes: Sequence[Any], **common: Any) -> ColumnBatch:
    """What a piece that works on items makes of a batch in columns.

    Raises:
        ConnectorError: If what it gives is no batch, or cannot stand in columns.
    """
    progress.begin(piece.in_learner_pipeline)
    given = to_items(batch)
    items = checked_batch(piece(batch=given, episodes=episodes, **common))
    batch.phase = piece.phase_after or batch.phase
    like = without_taken_out(batch, episodes)
    same = items is given and like is batch and isinstance(given, ItemBatch) and batch.phase is Phase.ITEMS
    if same and given.is_untouched:
        return batch
    progress.converting = items
    return to_columns(items, like)


def checked_batch(batch: Any) -> dict[str, Any]:
    """What a piece on items has given, if that is a batch."""
    if not isinstance(batch, dict):
        raise ConnectorError(
            f"returned {type(batch).__name__} instead of the batch. End its __call__ with 'return batch'."
        )
    return batch


def without_taken_out(batch: ColumnBatch, episodes: Sequence[Any]) -> ColumnBatch:
    """The batch without the rows of episodes that a piece has taken out of the run.

    Raises:
        ConnectorError: If it has put others in.
    """
    if not isinstance(episodes, EpisodesOfRun) or not episodes.replaced or batch.phase is not Phase.ITEMS:
        return batch
    parts = originals(agent_episodes(episodes, stepped_only=False))
    left = {id(part) for part in parts}
    known = {id(episode) for group in batch.groups for episode in group.rows.episodes}
    for part in parts:
        if len(part) and id(part) not in known:
            raise ConnectorError(
                f"a piece has put {whose(part)} into the episodes, which is none of those that the batch is made of. "
                f"Take episodes out only, change their data in place, or run the pipeline on items."
            )
    groups = [_only(group, left) for group in batch.groups]
    return ColumnBatch([group for group in groups if len(group.rows)], batch.phase)


def _only(group: ColumnGroup, left: set[int]) -> ColumnGroup:
    """The rows of some agent episodes."""
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


# Pieces on columns that are called on items.


class EpisodeRows(Rows):
    """Agent-steps that are read from, and written to, episodes of any storage, one by one.

    In a train batch all steps of each episode and its last observation, else its newest observation.
    """

    __slots__ = ("_at", "_train")

    def __init__(self, by_module: dict[ModuleID, list[SingleAgentEpisode]], *, train: bool):
        episodes = [episode for own in by_module.values() for episode in own]
        counts = [len(episode) + 1 if train else 1 for episode in episodes]
        ends = [0, *itertools.accumulate(counts)]
        firsts = [0, *itertools.accumulate(len(own) for own in by_module.values())]
        acted = None
        if train:
            acted = np.ones(ends[-1], bool)
            acted[np.array(ends[1:]) - 1] = False
        splits = tuple(ends[i] for i in firsts)
        super().__init__((), module_ids=tuple(by_module), splits=splits, episodes=episodes, counts=counts, acted=acted)
        self._train = train
        newest = [episode.storage.lookback + len(episode) for episode in episodes]
        self._at = [list(range(n + 1 - count, n + 1)) for n, count in zip(newest, counts, strict=True)]

    @property
    def action_space(self) -> Space:
        """Of all agents that have rows here."""
        return self.episodes[0].action_space  # type: ignore[return-value]

    def of_module(self, index: int) -> EpisodeRows:
        """The rows of one module."""
        rows = np.arange(*self.splits[index : index + 2])
        own = self.kept(rows)
        own.module_ids, own.splits = (self.module_ids[index],), (0, len(rows))
        return own

    def at(self, index: np.ndarray) -> EpisodeRows:
        """As for all rows."""
        return self.kept(index)

    def kept(self, index: np.ndarray) -> EpisodeRows:
        """As for all rows."""
        rows = EpisodeRows.__new__(EpisodeRows)
        rows.parts = ()
        rows._as_rest_of(self, index)
        rows._train = self._train
        ends = np.cumsum(self.counts)
        owners, positions = np.searchsorted(ends, index, side="right"), [p for own in self._at for p in own]
        at: dict[int, list[int]] = {}
        for owner, row in zip(owners.tolist(), index.tolist(), strict=True):
            at.setdefault(owner, []).append(positions[row])
        rows._at = list(at.values())
        return rows

    def has(self, column: str) -> bool:
        """Whether all episodes hold this column."""
        return column in STEP or all(column in episode.storage.extra_keys() for episode in self.episodes)

    def reached(self, offset: int) -> np.ndarray:
        """As for all rows."""
        found = [
            0 <= position + offset <= episode.storage.lookback + len(episode)
            for episode, own in zip(self.episodes, self._at, strict=True)
            for position in own
        ]
        return np.array(found, bool)

    def _check_known(self, column: str) -> None:
        for episode in self.episodes:
            known = (*STEP, *episode.storage.extra_keys())
            if column not in known:
                raise unknown_column(column, known)

    def get(self, column: str, offset: int = 0, fill: float | None = None) -> Tree:
        """As for all rows."""
        self._check_known(column)
        if column != Columns.INFOS:
            check = self._check_reached if fill is None else self._check_kept
            check(column, offset)
        items: list[Any] = []
        missing: list[int] = []
        blank: Any = 0.0 if column == Columns.REWARDS else None
        for episode, own in zip(self.episodes, self._at, strict=True):
            held = as_list(episode.storage.column(column))
            if blank is None and held:
                blank = tree_map(np.zeros_like, held[0])
            last = episode.storage.lookback + len(episode)
            for wanted in (position + offset for position in own):
                if not 0 <= wanted <= last:
                    missing.append(len(items))
                items.append(held[wanted] if 0 <= wanted < len(held) else None)
        if column == Columns.INFOS:
            return InfoColumn({} if item is None else item for item in items)
        if blank is None:  # before anybody has acted
            blank = 0 if self.episodes[0].action_space is None else unstack(spaces.zeros(self.action_space, 1))[0]
        values = spaces.stack([blank if item is None else item for item in items])
        if missing:
            tree_map(lambda leaf: leaf.__setitem__(missing, fill), values)
        return values

    def set(self, column: str, values: Tree) -> None:
        """As for all rows; what means nothing in the row of a last observation is not written there."""
        self.check_length(column, values)
        items, end = unstack(values), 0
        for episode, positions in zip(self.episodes, self._at, strict=True):
            storage = episode.storage
            own, end = items[end : end + len(positions)], end + len(positions)
            if column in WITH_LAST:
                storage.set_items(column, positions, own)
                continue
            if not self._train:
                raise EpisodeError(
                    f"Rows: {column!r} of a step that has not been taken cannot be set. Put it into the batch."
                )
            last = storage.lookback + len(episode)
            if column not in STEP and column not in storage.extra_keys():
                storage.set_column(column, [tree_map(np.zeros_like, own[0])] * last)
            taken = [position for position in positions if position < last]
            storage.set_items(column, taken, own[: len(taken)])


def as_list(column: Any) -> list:
    """A column's items."""
    return column if isinstance(column, list) else unstack(column)


def run_on_items(piece: Any, batch: dict[str, Any], episodes: Sequence[Any], **common: Any) -> dict[str, Any]:
    """What ``piece.on_columns`` makes of a batch of items, in any phase of its construction.

    Whether all steps of the episodes are meant or their newest observations alone is told by the pipeline that the
    piece stands in; where there is none, by the number of items that the batch has.

    Raises:
        ConnectorError: If the batch has other numbers of items than the episodes have steps, or is in sequences.
    """
    if Columns.SEQ_LENS in batch or any(isinstance(c, dict) and Columns.SEQ_LENS in c for c in batch.values()):
        raise ConnectorError(
            "the piece has a column form only (on_columns), but this batch of items is in sequences (for stateful "
            "modules). Put the piece before AddTimeDimToBatchAndZeroPad, give it a __call__, or run the pipeline on "
            "columns (pipeline.run), as learners do."
        )
    stepped = list(piece.single_agent_episode_iterator(episodes))
    begun = [e for e in piece.single_agent_episode_iterator(episodes, agents_that_stepped_only=False) if len(e)]
    extended = any(isinstance(episode, ExtendedEpisode) for episode in begun)
    stepped, begun = originals(stepped), originals(begun)
    train = piece.in_learner_pipeline
    if train is None:
        train = _num_items(batch) > len(stepped)
    by_module = _by_module(begun if train else stepped, batch, common.get("rl_module"), common.get("shared_data"))
    given = _Given(batch, by_module, train, extended)
    groups = []
    for family in _alike(by_module):
        group = ColumnGroup(EpisodeRows(family, train=train))
        given.fill(group)
        piece.on_columns(columns=group, **common)
        groups.append(group)
    return given.with_columns_of(groups)


class _Given:
    """A batch of items, whose items they are, and the way back.

    Attributes:
        batch: As it came.
        by_module: The agent episodes, in the order of their items.
        train: Whether all steps of each episode have items, or one each.
        extended: Whether new columns get an item for each last observation too, as AddOneTsToEpisodesAndTruncate wants.
    """

    def __init__(
        self, batch: dict[str, Any], by_module: dict[ModuleID, list[SingleAgentEpisode]], train: bool, extended: bool
    ):
        self.batch = batch
        self.train = train
        self._sorted_by_module = _is_sorted_by_module(batch)
        self._with_last: set[str] = set()  # columns that have an item for each last observation too
        self._items: dict[str, dict[int, list]] = {}
        if self._sorted_by_module:
            for module_id, columns in batch.items():
                for name, column in columns.items():
                    self._share_out(name, as_list(column), by_module.get(module_id, []))
        else:
            self._share_out_by_key(by_module)
        self.extended = extended and (not self._items or bool(self._with_last))

    def _share_out_by_key(self, by_module: dict[ModuleID, list[SingleAgentEpisode]]) -> None:
        everyone = [episode for own in by_module.values() for episode in own]
        by_key: dict[Any, list[SingleAgentEpisode]] = {}
        for episode in everyone:
            by_key.setdefault(item_key(episode), []).append(episode)
        for name, column in self.batch.items():
            if isinstance(column, dict):
                for key, own in by_key.items():
                    self._share_out(name, column.get(key, []), own)
            else:
                self._share_out(name, as_list(column), everyone)

    def _share_out(self, name: str, items: list, episodes: list[SingleAgentEpisode]) -> None:
        steps = [len(episode) if self.train else 1 for episode in episodes]
        with_last = self.train and len(items) == sum(steps) + len(steps) != 0
        if not with_last and len(items) != sum(steps):
            whose = item_key(episodes[0]) if episodes else "none"
            raise ConnectorError(f"{len(items)} items of {name!r} for episode {whose}, expected {sum(steps)}.")
        if with_last:
            self._with_last.add(name)
        end = 0
        for episode, count in zip(episodes, steps, strict=True):
            own, end = items[end : end + count + with_last], end + count + with_last
            if self.train and not with_last:
                own = [*own, _last_item(episode, name, own[-1])]
            self._items.setdefault(name, {})[id(episode)] = own

    def fill(self, group: ColumnGroup) -> None:
        """Puts the items of a group's rows into columns."""
        for name, by_episode in self._items.items():
            if all(id(episode) in by_episode for episode in group.rows.episodes):
                column = [item for episode in group.rows.episodes for item in by_episode[id(episode)]]
                group[name] = _stacked(name, column)

    def with_columns_of(self, groups: list[ColumnGroup]) -> dict[str, Any]:
        """The batch with what a piece has made of the columns."""
        names = list(dict.fromkeys(name for group in groups for name in group))
        if self._sorted_by_module:
            return self._module_columns(groups)
        found: dict[str, Any] = {name: column for name, column in self.batch.items() if name not in self._items}
        for name in names:
            flat: list[tuple[Any, list]] = []
            for group in groups:
                flat += self._of_episodes(group, name) if name in group else []
            if isinstance(self.batch.get(name, {}), dict):
                found[name] = {}
                for key, items in flat:
                    found[name].setdefault(key, []).extend(items)
            else:
                found[name] = [item for _, items in flat for item in items]
        return found

    def _module_columns(self, groups: list[ColumnGroup]) -> dict[str, Any]:
        found = {
            module_id: {name: column for name, column in columns.items() if name not in self._items}
            for module_id, columns in self.batch.items()
        }
        for group in groups:
            rows = group.rows
            firsts = dict(zip(rows.module_ids, itertools.pairwise(group.splits), strict=True))
            for name, column in group.items():
                keep = self._kept(group, name, column)
                for module_id, (begin, end) in firsts.items():
                    own = slice_tree(column, begin, end)
                    if keep is not None:
                        own = _picked(own, np.flatnonzero(keep[begin:end]))
                    lists = any(isinstance(other, list) for other in self.batch[module_id].values())
                    found[module_id][name] = unstack(own) if lists else own
        return found

    def _kept(self, group: ColumnGroup, name: str, column: Any) -> np.ndarray | None:
        """The rows that go back: without last observations, unless the batch had them; None for all."""
        acted = group.rows.acted
        whole = name in self._with_last or (self.extended and name not in self._items)
        return None if acted is None or whole or len(leaves(column)[0]) != len(acted) else acted

    def _of_episodes(self, group: ColumnGroup, name: str) -> list[tuple[Any, list]]:
        column, rows, end, found = group[name], group.rows, 0, []
        keep = self._kept(group, name, column)
        items = unstack(column)
        short = rows.acted is not None and len(items) != len(rows)  # the piece has dropped last observations itself
        for episode, count in zip(rows.episodes, rows.counts, strict=True):
            own, begin, end = items[end : end + count - short], end, end + count - short
            found.append((item_key(episode), own if keep is None else list(itertools.compress(own, keep[begin:end]))))
        return found


def _is_sorted_by_module(batch: dict[str, Any]) -> bool:
    """``{module: {column: ...}}``, not ``{column: {key: ...}}``: keys are tuples."""
    inner = [column for column in batch.values() if isinstance(column, dict) and column]
    return bool(inner) and all(isinstance(key, str) for column in inner for key in column)


def _num_items(batch: dict[str, Any]) -> int:
    """The length of a batch's longest column; 0 for an empty batch."""
    if _is_sorted_by_module(batch):
        longest: dict[str, int] = {}
        for columns in batch.values():
            for name, column in columns.items():
                longest[name] = longest.get(name, 0) + len(as_list(column))
        return max(longest.values(), default=0)
    return max((sum(map(len, c.values())) if isinstance(c, dict) else len(c) for c in batch.values()), default=0)


def _by_module(
    episodes: list[SingleAgentEpisode], batch: dict[str, Any], rl_module: Any, shared_data: dict[str, Any] | None
) -> dict[ModuleID, list[SingleAgentEpisode]]:
    """The agent episodes by module, in the order in which their items stand in a batch."""
    by_key: dict[ItemKey, list[SingleAgentEpisode]] = {}
    for episode in episodes:
        by_key.setdefault(item_key(episode), []).append(episode)
    mapped = (shared_data or {}).get(MAPPING, {}) if _is_sorted_by_module(batch) else {}
    keys = dict.fromkeys([*(key for own in mapped.values() for key in own if key in by_key), *by_key])
    modules = (
        list(batch) if _is_sorted_by_module(batch) else list(rl_module.keys()) if hasattr(rl_module, "keys") else []
    )
    found: dict[ModuleID, list[SingleAgentEpisode]] = {module_id: [] for module_id in modules}
    for key in keys:
        for episode in by_key[key]:
            found.setdefault(episode.module_id or DEFAULT_MODULE_ID, []).append(episode)
    return {module_id: own for module_id, own in found.items() if own}


def _alike(by_module: dict[ModuleID, list[SingleAgentEpisode]]) -> list[dict[ModuleID, list[SingleAgentEpisode]]]:
    """Modules whose agents have like spaces, together."""
    families: dict[Any, dict[ModuleID, list[SingleAgentEpisode]]] = {}
    for module_id, own in by_module.items():
        known = [None if s is None else spaces.describe(s) for s in (own[0].observation_space, own[0].action_space)]
        newest = leaves(as_list(own[0].storage.column(Columns.OBS))[-1])
        kind = (*known, *((np.shape(leaf), str(np.asarray(leaf).dtype)) for leaf in newest))
        families.setdefault(kind, {})[module_id] = own
    return list(families.values())


def _last_item(episode: SingleAgentEpisode, name: str, like: Any) -> Any:
    """What stands in the row of a last observation: that, where its shape fits; else nothing that means something."""
    if name != Columns.OBS:
        return like
    last = as_list(episode.storage.column(Columns.OBS))[-1]
    if [np.shape(leaf) for leaf in leaves(last)] != [tuple(leaf.shape) for leaf in map(np.asarray, leaves(like))]:
        return like
    return torch.as_tensor(last).to(like) if isinstance(like, torch.Tensor) else last
