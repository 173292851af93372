"""Views of episodes that are one artificial step longer, so that the value of the last observation gets a row.

Connector pieces on items in a learner pipeline get these views, and bootstrap from that value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from marl_connectors.episodes.items import count, joined, map_tree, row
from marl_connectors.episodes.lookback import OUTSIDE, Indices, Padded, Positions, gather, resolve
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import INFOS, OBS, REWARDS, WITH_LAST, EpisodeStorage, T
from marl_connectors.errors import EpisodeError
from marl_connectors.typing import AgentID, Tree

AnyEpisode = TypeVar("AnyEpisode", bound=SingleAgentEpisode | MultiAgentEpisode)


class ExtendedStorage:
    """A view of an episode's storage that is one step longer.

    The artificial step repeats the newest observation and info dict; its reward is 0, its action and extra model
    outputs are zeros. Reads and writes of all other steps go to the storage that the episode has at the time; writes to
    the artificial step are accepted and forgotten.

    Attributes:
        episode: The episode, which has at least one step.
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
    def action_units(self) -> str:
        return self._inner.action_units

    @property
    def given_units(self) -> str | None:
        return self._inner.given_units

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
        """Returns the number of the episode's own items of a column, including the lookback."""
        inner = self._inner
        return inner.lookback + len(inner) + (name in WITH_LAST)

    def column(self, name: str) -> list | Tree:
        """Returns all items. Arrays are copied here, while ``part`` returns views of the real items."""
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
        """Returns the item of the artificial step, which follows the episode's newest item of the column."""
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
        """Returns None: the action that follows the newest observation is not part of this chunk."""
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
        """Does nothing, as no action waits."""

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


class ExtendedEpisode(SingleAgentEpisode):
    """A view of a SingleAgentEpisode that is one artificial step longer, as ``ExtendedStorage`` describes.

    It is truncated if the original has not ended. It shares everything else with the original, also the custom data.
    """

    __slots__ = ()
    storage: ExtendedStorage

    @property
    def original(self) -> SingleAgentEpisode:
        """The episode without the artificial step."""
        return self.storage.episode

    def to_numpy(self) -> SingleAgentEpisode:
        self.original.to_numpy()
        return self

    def _with(self, storage: EpisodeStorage, t_started: int) -> Any:
        """Returns an ordinary episode: a slice holds a copy of the artificial step."""
        return self.original._with(storage, t_started)

    def _get(
        self,
        name: str,
        indices: Indices,
        neg_index_as_lookback: bool,
        fill: Any,
        one_hot_discrete: bool = False,
        with_pending: bool = False,
    ) -> Any:
        # Only the rows that are asked for are read: pieces read item by item, and whole columns would be copied.
        storage, lookback = self.storage, self.storage.lookback
        total = storage.real(name) + 1
        try:
            positions = resolve(indices, total - lookback, lookback, neg_index_as_lookback, fill is not None)
        except (IndexError, TypeError, EpisodeError) as error:
            raise type(error)(f"{self.who}, {name}: {error}") from None
        first, stop, positions = _window(positions, total)
        column = storage.part(name, first, stop)
        return gather(column, positions, fill, self._space(name), one_hot_discrete, name == INFOS)

    def _set(
        self,
        name: str,
        new_data: Any,
        at_indices: Indices,
        neg_index_as_lookback: bool,
        with_pending: bool = False,
    ) -> None:
        # A single item is written to the original's storage, as pieces write item by item.
        if not isinstance(at_indices, (int, np.integer)):
            super()._set(name, new_data, at_indices, neg_index_as_lookback)
            return
        lookback, real = self.storage.lookback, self.storage.real(name)
        try:
            position = resolve(at_indices, real + 1 - lookback, lookback, neg_index_as_lookback)
        except IndexError as error:
            raise IndexError(f"{self.who}, {name}: {error}") from None
        assert isinstance(position, int)
        if position < real:
            self.original._set(name, new_data, position - lookback, position < lookback)
        elif name == REWARDS:
            float(new_data)


def _window(positions: Positions, total: int) -> tuple[int, int, Positions]:
    """Returns the rows ``[first, stop)`` that hold some positions, and the positions counted from ``first``.

    There is always at least one row.
    """
    if isinstance(positions, int):
        return (total - 1, total, OUTSIDE) if positions == OUTSIDE else (positions, positions + 1, 0)
    if isinstance(positions, list):
        inside = [position for position in positions if position != OUTSIDE]
        first, stop = (min(inside), max(inside) + 1) if inside else (total - 1, total)
        return first, stop, [p if p == OUTSIDE else p - first for p in positions]
    run = positions.inside if isinstance(positions, Padded) else positions
    if (run.step or 1) < 0:
        return 0, total, positions
    first, stop = (run.start, run.stop) if run.stop > run.start else (total - 1, total)
    shifted = slice(run.start - first, run.stop - first, run.step) if run.stop > run.start else slice(0, 0)
    return first, stop, positions._replace(inside=shifted) if isinstance(positions, Padded) else shifted


class ExtendedMultiAgentEpisode(MultiAgentEpisode):
    """A view of a MultiAgentEpisode whose agents' episodes are one artificial step longer.

    The artificial steps are no env steps: env steps, and the agents that observed or may act, are those of the
    original.
    """

    __slots__ = ("original",)
    original: MultiAgentEpisode

    def _get(self, name: str, indices: Indices, agent_ids: Any, env_steps: bool, *options: Any) -> Any:
        source = self.original if env_steps else super()
        return source._get(name, indices, agent_ids, env_steps, *options)

    def cut(self, len_lookback_buffer: int = 0) -> Any:
        return self.original.cut(len_lookback_buffer)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Any:
        return self.original.slice(slice_, len_lookback_buffer=len_lookback_buffer)

    @property
    def env_lookback(self) -> int:
        return self.original.env_lookback

    def get_agents_to_act(self) -> set[AgentID]:
        return self.original.get_agents_to_act()

    def get_agents_that_stepped(self) -> set[AgentID]:
        return self.original.get_agents_that_stepped()

    def print(self) -> None:
        self.original.print()


def extended(episode: AnyEpisode) -> AnyEpisode:
    """Returns a view of an episode with one artificial step more for each agent that has steps.

    Nothing is copied. Items that are written to real steps reach the episode itself.

    >>> episode = SingleAgentEpisode(observations=[7, 8, 9], actions=[1, 1], rewards=[0.5, 1.0], len_lookback_buffer=0)
    >>> longer = extended(episode)
    >>> len(longer), longer.get_observations(), longer.get_actions(), longer.get_rewards(), longer.is_truncated
    (3, [7, 8, 9, 9], [1, 1, 0], [0.5, 1.0, 0.0], True)
    """
    if isinstance(episode, (ExtendedEpisode, ExtendedMultiAgentEpisode)):
        return episode
    if isinstance(episode, MultiAgentEpisode):
        agent_episodes = {agent_id: extended(part) for agent_id, part in episode.agent_episodes.items()}
        view: Any = _copied(episode, ExtendedMultiAgentEpisode)
        view.original = episode
        view.agent_episodes = agent_episodes
        view.past_agent_episodes = [extended(part) for part in episode.past_agent_episodes]
        return view
    if not len(episode):
        return episode
    view = _copied(episode, ExtendedEpisode)
    view.storage = ExtendedStorage(episode)
    view.is_truncated = episode.is_truncated or not episode.is_terminated
    return view


def _copied(episode: Any, cls: type[Any]) -> Any:
    """Returns an object of ``cls`` with all attributes of the episode; the custom data are shared."""
    notes = episode.custom_data  # which makes the dict, so that both share it
    view = object.__new__(cls)
    for base in type(episode).__mro__:
        for name in base.__dict__.get("__slots__", ()):
            if name != "__dict__" and hasattr(episode, name):
                setattr(view, name, getattr(episode, name))
    assert view.custom_data is notes
    return view


def original(episode: SingleAgentEpisode) -> SingleAgentEpisode:
    """Returns the episode without an artificial step."""
    return episode.original if isinstance(episode, ExtendedEpisode) else episode


def originals(episodes: Iterable[SingleAgentEpisode]) -> list[SingleAgentEpisode]:
    """Returns the episodes without artificial steps."""
    return [e.original if isinstance(e, ExtendedEpisode) else e for e in episodes]
