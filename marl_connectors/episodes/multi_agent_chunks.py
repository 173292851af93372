"""Chunks of a multi-agent episode: cut, sliced, and put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from marl_connectors.episodes.array_storage import ArrayStorage
from marl_connectors.episodes.batching import unbatch
from marl_connectors.episodes.chunks import check_lookback, slice_bounds
from marl_connectors.episodes.list_storage import ListStorage
from marl_connectors.episodes.multi_agent_growth import AgentToModule, GrowingMultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import ACTIONS, REWARDS, T
from marl_connectors.errors import EpisodeError
from marl_connectors.typing import AgentID, EpisodeID, ModuleID

if TYPE_CHECKING:
    from typing_extensions import Self


class ChunkedMultiAgentEpisode(GrowingMultiAgentEpisode):
    """A multi-agent episode of which chunks can be made."""

    __slots__ = ()

    def _init(
        self,
        id_: EpisodeID,
        agent_episodes: dict[AgentID, SingleAgentEpisode],
        env_t_started: int,
        env_t: int,
        agent_to_module_mapping_fn: AgentToModule | None,
        module_of: dict[AgentID, ModuleID],
    ) -> None:
        self.id_ = id_
        self.agent_episodes = agent_episodes
        self.agent_views = None
        self.past_agent_episodes: list[SingleAgentEpisode] = []
        self.env_t_started = env_t_started
        self.env_t = env_t
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self._module_of = module_of
        self.observation_space: Any = None
        self.action_space: Any = None
        self._init_base()
        self._ended_before: dict[AgentID, bool] = {}  # in earlier chunks: whether by truncation
        self._truncated_before = False  # of those that are no longer remembered, whether any was
        self._unclaimed: dict[AgentID, float] = {}
        self._spaces_by_agent: bool | None = None  # whether Dict spaces are agents' spaces, once that is known

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """A successor chunk of length 0 that goes on where this one stops.

        It has the same id, mapping and custom data (copied) and the agents that have not ended, each with its newest
        observation, the action that waits, and up to ``len_lookback_buffer`` of its own steps of lookback.

        Raises:
            EpisodeError: If the episode is over.
        """
        if self.is_done:
            raise EpisodeError(f"{self.who}: cut() makes a successor, but the episode is over. Start a new one.")
        check_lookback(len_lookback_buffer, self.who)
        going_on = {a: e.cut(len_lookback_buffer) for a, e in self.agent_episodes.items() if not e.is_done}
        successor = self._chunk(going_on, self.env_t, self.env_t)
        successor.remember_from(self)
        return successor

    def _chunk(self, agent_episodes: dict[AgentID, Any], env_t_started: int, env_t: int) -> Self:
        """Other steps of the same episode."""
        other = type(self).__new__(type(self))
        other._init(self.id_, agent_episodes, env_t_started, env_t, self.agent_to_module_mapping_fn, {})
        other.observation_space, other.action_space = self.observation_space, self.action_space
        other.check_spaces, other._spaces_by_agent = self.check_spaces, self._spaces_by_agent
        return other

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """A copy of the env steps ``[start, stop)``: the agents' steps that were completed there.

        A step that an agent began before ``stop`` and completed later is the action that waits in this slice, and is a
        step of the slice that begins at ``stop``; so consecutive slices concatenate to the whole.

        Args:
            slice_: Env steps of this chunk, without a step size.
            len_lookback_buffer: How many of its own steps of lookback each agent keeps, as far as there are any; None
                for as many as here.

        Raises:
            EpisodeError: If the slice has a step size.
        """
        start, stop = slice_bounds(slice_, len_lookback_buffer, len(self), self.who)
        begin, end = self.env_t_started + start, self.env_t_started + stop
        part = self._chunk({}, begin, end)
        part._module_of, part._ended_before = dict(self._module_of), dict(self._ended_before)
        part._truncated_before = self._truncated_before
        part._copy_notes(self)
        for episode in self.all_agent_episodes():
            piece = self._between(episode, begin, end, len_lookback_buffer)
            if piece is not None:
                part.attach(episode.agent_id, piece)
        if begin == self.env_t_started and (end > begin or not len(self)):
            part._unclaimed = dict(self._unclaimed)
        if end == self.env_t:
            part.is_terminated, part.is_truncated = self.is_terminated, self.is_truncated
        return part

    def _between(
        self, episode: SingleAgentEpisode, begin: int, end: int, len_lookback_buffer: int | None
    ) -> SingleAgentEpisode | None:
        """One agent's part of a slice of env steps, or None if it has none."""
        storage = episode.storage
        times = np.asarray(storage.column(T))
        if not len(times) or times[storage.lookback] > end:
            return None
        gone = episode.is_done and times[-1] <= begin
        if gone and begin > self.env_t_started:
            return None
        first = max(int(np.searchsorted(times, begin, "right")) - 1, storage.lookback)
        last = max(int(np.searchsorted(times, end, "right")) - 1, first)
        piece = episode._rows(first - storage.lookback, last - storage.lookback, len_lookback_buffer)
        joined_here = times[storage.lookback] > begin or (
            begin == self.env_t_started and (end > begin or not len(self))
        )
        if joined_here:
            piece.uncredited_reward = episode.uncredited_reward
        elif begin == self.env_t_started:
            piece.take_back(episode.uncredited_reward)
        pending = storage.pending()
        if last < len(times) - 1:
            names = (ACTIONS, REWARDS, *storage.extra_keys())
            pending = {name: unbatch(storage.part(name, last, last + 1))[0] for name in names}
        if not episode.is_done or last < len(times) - 1:
            own = piece.storage
            assert isinstance(own, (ListStorage, ArrayStorage))
            own.open_row = pending if times[last] < end or end == self.env_t else None
        return piece

    def concat_episode(self, other: ChunkedMultiAgentEpisode) -> None:
        """Appends a successor chunk, as ``cut()`` or ``slice()`` made it; ``other`` stays as it is.

        Raises:
            EpisodeError: If ``other`` is not this episode's continuation.
        """
        if self.is_done:
            raise EpisodeError(f"{self.who}: concat_episode() continues an episode, but this one is over.")
        if (other.id_, other.env_t_started) != (self.id_, self.env_t):
            raise EpisodeError(
                f"{self.who}: concat_episode() needs the chunk of {self.id_!r} that starts at env_t={self.env_t}, but "
                f"that of {other.id_!r} from env_t={other.env_t_started} came."
            )
        theirs = other.all_agent_episodes()
        continued = [self._continued_by(episode) for episode in theirs]
        for mine, episode in zip(continued, theirs, strict=True):
            if mine is not None:
                mine.check_continuation(episode)
        for agent_id, reward in other._unclaimed.items():
            self._credit(agent_id, reward)
        for mine, episode in zip(continued, theirs, strict=True):
            if mine is not None:
                mine.concat_episode(episode)
            else:
                self.attach(episode.agent_id, episode[:])
        self.env_t = other.env_t
        self._module_of.update(other._module_of)
        if self._spaces_by_agent is None:
            self._spaces_by_agent = other._spaces_by_agent
        self._append_notes(other)

    def _continued_by(self, episode: SingleAgentEpisode) -> SingleAgentEpisode | None:
        """The life here that goes on in another chunk's episode, or None if that begins a life."""
        mine = self.agent_episodes.get(episode.agent_id)
        return mine if mine is not None and mine.id_ == episode.id_ else None
