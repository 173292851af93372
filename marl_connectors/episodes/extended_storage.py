"""An agent's steps with an artificial one behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from marl_connectors.episodes.batching import joined
from marl_connectors.episodes.lookback import count, map_tree, row
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import INFOS, OBS, WITH_LAST, EpisodeStorage, T
from marl_connectors.typing import Tree


class ExtendedStorage:
    """A view of an episode's storage that is one step longer.

    In the artificial step nothing happens: the newest observation and info dict are repeated, the reward is 0, the
    action and the extra model outputs are zeros. Reads and writes of all other steps go to the episode itself, to
    whatever storage it has at the time; writes to the artificial step are accepted and forgotten.

    Attributes:
        episode: Whose steps these are; it has at least one.
    """

    __slots__ = ("episode",)

    def __init__(self, episode: SingleAgentEpisode):
        self.episode = episode

    @property
    def _inner(self) -> EpisodeStorage:
        return self.episode.storage

    @property
    def is_numpy(self) -> bool:
        return self._inner.is_numpy

    @property
    def untyped(self) -> frozenset[str]:
        return self._inner.untyped

    @property
    def actions_from_0(self) -> bool:
        return self._inner.actions_from_0

    @property
    def lookback(self) -> int:
        return self._inner.lookback

    @property
    def newest_t(self) -> int | None:
        newest = self._inner.newest_t
        return None if newest is None else newest + 1

    def __len__(self) -> int:
        return len(self._inner) + 1

    def real(self, name: str) -> int:
        """How many items of a column are the episode's own, the lookback included."""
        inner = self._inner
        return inner.lookback + len(inner) + (name in WITH_LAST)

    def column(self, name: str) -> list | Tree:
        """All items. Where they are arrays this is a copy; ``part`` gives views of the real ones."""
        return self.part(name, 0, None)

    def part(self, name: str, start: int, stop: int | None) -> list | Tree:
        real = self.real(name)
        if stop is not None and stop <= real:
            return self._inner.part(name, start, stop)
        own = self._inner.part(name, min(start, real), real)
        if start > real:
            return own
        added = self._artificial(name)
        return [*own, added] if isinstance(own, list) else joined([own, map_tree(_stacked, added)])

    def _artificial(self, name: str) -> Any:
        """The item of the artificial step; for columns with a newest item more, the one after it."""
        newest = self.real(name) - 1
        items = self._inner.part(name, newest, newest + 1)
        item = items[0] if isinstance(items, list) else row(items, 0)
        if name == T:
            return item + 1
        if name == INFOS:
            return dict(item)
        return item if name == OBS else map_tree(_zero, item)

    def item_at(self, name: str, t: int) -> Any:
        return self._inner.item_at(name, t)

    def extra_keys(self) -> tuple[str, ...]:
        return self._inner.extra_keys()

    def pending(self) -> dict[str, Any] | None:
        """Nothing waits: what the agent does about its newest observation is not part of this chunk."""
        return None

    def set_items(self, name: str, positions: Sequence[int], items: Sequence[Any]) -> None:
        real = self.real(name)
        if isinstance(positions, range) and positions.step == 1:
            own = range(positions.start, min(positions.stop, real))
            self._inner.set_items(name, own, items[: len(own)])
            return
        kept = [i for i, position in enumerate(positions) if position < real]
        self._inner.set_items(name, [positions[i] for i in kept], [items[i] for i in kept])

    def set_pending(self, name: str, item: Any) -> None:
        """There is nothing to set."""

    def set_column(self, name: str, values: list | Tree) -> None:
        real = self.real(name)
        if count(values) != real + 1:
            raise IndexError(
                f"episode: column {name!r} holds {real + 1} item(s) with the artificial step, but {count(values)} came "
                f"to replace them."
            )
        plain = isinstance(values, (list, np.ndarray))
        self._inner.set_column(name, values[:real] if plain else map_tree(lambda leaf, _: leaf[:real], values))


def _stacked(leaf: Any, _: Any) -> np.ndarray:
    return np.asarray(leaf)[None]


def _zero(leaf: Any, _: Any) -> Any:
    return type(leaf)() if isinstance(leaf, (int, float)) else np.zeros_like(leaf)[()]
