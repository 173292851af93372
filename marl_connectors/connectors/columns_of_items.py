"""Lets a piece that has only a column form work on a batch of items: into columns, through ``on_columns``, and back."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.common.agent_to_module_mapping import MAPPING
from marl_connectors.connectors.connector_v2 import ConnectorV2, item_key, unstack
from marl_connectors.episodes.column_batch import ColumnGroup, slice_tree
from marl_connectors.episodes.extended_episodes import ExtendedEpisode, originals
from marl_connectors.episodes.info_column import InfoColumn
from marl_connectors.episodes.rows import Rows, unknown_column
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import STEP, WITH_LAST
from marl_connectors.errors import ConnectorError, EpisodeError
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, ItemKey, ModuleID, Tree


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


def run_on_items(piece: ConnectorV2, batch: dict[str, Any], episodes: Sequence[Any], **common: Any) -> dict[str, Any]:
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


def _stacked(name: str, items: list) -> Any:
    if name == Columns.INFOS:
        return InfoColumn(items)
    return torch.stack(items) if isinstance(items[0], torch.Tensor) else spaces.stack(items)


def _picked(column: Any, where: np.ndarray) -> Any:
    if isinstance(column, list):
        return type(column)(column[i] for i in where.tolist())
    return tree_map(lambda leaf: leaf[where], column)


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
