"""The batch that a piece on items gets: ``{column: {item key: [item, ...]}}``, made of columns when it is looked at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import optree
import torch
from optree import registry

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.piece_errors import progress
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.trees import leaves, tree_map, unstack
from marl_connectors.typing import DEFAULT_MODULE_ID, ItemKey, ModuleID

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


_UNMADE: Any = object()
"""Placeholder for the items of a column that no piece has looked at yet."""


class ItemBatch(dict[str, Any]):
    """``{column: {item key: [item, ...]}}``, where a column's items are made when a piece first looks at them.

    Columns that a piece has not looked at are not converted at all.
    """

    __slots__ = ("_names", "source")

    def __init__(self, source: ColumnBatch):
        names = dict.fromkeys(name for group in source.groups for name in item_names(group))
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


def module_of(episode: SingleAgentEpisode) -> ModuleID:
    """Returns the module that acts for an agent; for a single agent, the default module."""
    return episode.module_id or DEFAULT_MODULE_ID


def item_names(group: ColumnGroup) -> Iterator[str]:
    """Yields the names of a group's columns that have items."""
    if group.sequences is None:
        yield from group
        return
    for _, columns in group.module_columns():
        yield from (name for name in columns if name != Columns.INFOS)


def row_items(group: ColumnGroup, name: str) -> tuple[list, Sequence[int]]:
    """Returns the items of a group's column and their number for each agent episode. A sequence is one item."""
    if group.sequences is None:
        return unstack(group[name]), group.rows.counts
    items = [item for _, own in group.module_columns() if name in own for item in unstack(own[name])]
    return items, group.sequences.counts.tolist()


def _share_out(by_key: dict[ItemKey, list], group: ColumnGroup, name: str) -> None:
    """Adds the items of a group's column under the episodes' keys."""
    if name not in group and group.sequences is None:
        return
    items, counts = row_items(group, name)
    begin, held = 0, name in group.holders
    for episode, count in zip(group.rows.episodes, counts, strict=True):
        if not held or group.has_column(module_of(episode), name):
            by_key.setdefault(item_key(episode), []).extend(items[begin : begin + count])
        begin += count


def stacked(name: str, items: list) -> Any:
    """Returns the column of a list of items.

    Raises:
        ConnectorError: If the items differ in shape.
    """
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
