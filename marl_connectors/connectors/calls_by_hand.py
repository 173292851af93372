"""Runs a piece on columns that is called by hand, on a batch of items: alone, or by another piece."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from marl_connectors import spaces, tensor_namespace
from marl_connectors.array_namespace import ARRAYS
from marl_connectors.columns import Columns
from marl_connectors.connectors.item_adapter import without_last_rows
from marl_connectors.connectors.item_batch import MAPPING, agent_episodes, item_key, item_names, row_items, stacked
from marl_connectors.episodes.batch import RUN_EPISODES, ColumnGroup, RunEpisodes
from marl_connectors.episodes.bootstrap_view import ExtendedEpisode, originals
from marl_connectors.episodes.episode_rows import EpisodeRows, UnknownEpisodes, UnknownRows
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.sequences import Sequences
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.states import is_single, member
from marl_connectors.transfers import moved
from marl_connectors.trees import as_list, leaves, tree_map, unstack
from marl_connectors.typing import DEFAULT_MODULE_ID, ItemKey, ModuleID

if TYPE_CHECKING:
    from marl_connectors.connectors.connector_v2 import ConnectorV2


def call_on_items(piece: ConnectorV2, batch: dict[str, Any], episodes: Sequence[Any], **common: Any) -> dict[str, Any]:
    """Runs ``piece.columns`` on a batch of items, in any phase.

    The pipeline of the piece decides whether the rows are all steps of the episodes or their newest observations only.
    Without a pipeline, the number of items in the batch decides.

    Raises:
        ConnectorError: If the number of items in the batch does not fit the steps of the episodes.
    """
    if _is_output_of_one(batch):
        return call_on_items(piece, {DEFAULT_MODULE_ID: batch}, episodes, **common)[DEFAULT_MODULE_ID]
    rl_module = common.get("rl_module")
    shared = {} if common.get("shared_data") is None else common["shared_data"]
    context = {name: common.get(name) for name in ("rl_module", "explore", "metrics")}
    given = _ByHand(piece, batch, episodes, rl_module, shared.get(MAPPING, {}))
    is_alone = RUN_EPISODES not in shared
    shared.setdefault(RUN_EPISODES, episodes if isinstance(episodes, RunEpisodes) else RunEpisodes(episodes))
    for group in given.groups:
        group.within(shared_data=shared, **context)
    try:
        piece.before_columns(given.groups, rl_module)
        for group in given.groups:
            given.run(piece, group)
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

    def __init__(
        self, piece: ConnectorV2, batch: dict[str, Any], episodes: Sequence[Any], rl_module: Any, mapping: Any
    ):
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

    def run(self, piece: ConnectorV2, group: ColumnGroup) -> None:
        """Runs a piece on a group. Items without episodes stay as they are if the piece needs their episodes."""
        before = dict(group)
        try:
            is_tensor = any(isinstance(leaf, torch.Tensor) for leaf in leaves(dict(group)))
            piece.columns(group, tensor_namespace if is_tensor else ARRAYS)
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
            known = is_single(modules) or (modules is not None and module_id in modules)
            space = member(modules, module_id).action_space if known else None
            group = ColumnGroup(UnknownRows(module_id, counts, space))
        else:
            by_module: Any = {module_id: [share.episode for share in own] for module_id, own in family.items()}
            group = ColumnGroup(EpisodeRows(by_module, train=self._train))
            for share in everyone:
                if self._train:
                    share.add_last()
        for name in everyone[0].columns if everyone else ():
            group[name] = stacked(name, [item for share in everyone for item in share.columns[name]])
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
                state_in=stacked(Columns.STATE_IN, states) if states else None,
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
        names = dict.fromkeys(name for group in self.groups for name in item_names(group))
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
                    items, counts = row_items(group, name)
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


def _is_output_of_one(batch: dict[str, Any]) -> bool:
    """Whether a batch is ``{column: array or tree}``, the output of a single RLModule, with a tree such as a state."""
    return (Columns.ACTIONS in batch or Columns.ACTION_DIST_INPUTS in batch) and _is_sorted_by_module(batch)


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
