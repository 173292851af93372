"""Chunks of one agent's episode: cut, sliced, and put together again."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.array_storage import ArrayStorage
from marl_connectors.episodes.batching import same_item
from marl_connectors.episodes.growth import GrowingEpisode
from marl_connectors.episodes.list_storage import ListStorage
from marl_connectors.episodes.storage import EpisodeStorage
from marl_connectors.errors import EpisodeError
from marl_connectors.typing import AgentID, EpisodeID, ModuleID

if TYPE_CHECKING:
    from typing_extensions import Self


class ChunkedEpisode(GrowingEpisode):
    """An episode of which chunks can be made."""

    __slots__ = ("_custom_data", "module_id", "multi_agent_episode_id")

    module_id: ModuleID | None
    multi_agent_episode_id: EpisodeID | None
    _custom_data: dict[str, Any] | None

    def _init(
        self,
        storage: EpisodeStorage,
        id_: EpisodeID,
        agent_id: AgentID | None,
        module_id: ModuleID | None,
        multi_agent_episode_id: EpisodeID | None,
        t_started: int,
        observation_space: Space | None,
        action_space: Space | None,
    ) -> None:
        self.storage = storage
        self.id_ = id_
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.t_started = t_started
        self.observation_space = observation_space
        self.action_space = action_space
        self.is_terminated = self.is_truncated = False
        self.uncredited_reward = 0.0
        self.check_spaces = False
        self._custom_data: dict[str, Any] | None = None
        self._start_time: float | None = None
        self._last_step_time: float | None = None

    @property
    def custom_data(self) -> dict[str, Any]:
        """The user's own notes. ``cut()`` passes them on."""
        if self._custom_data is None:
            self._custom_data = {}
        return self._custom_data

    def _with(self, storage: EpisodeStorage, t_started: int) -> Self:
        """An episode of the same identity with other steps."""
        other = type(self).__new__(type(self))
        other._init(
            storage,
            self.id_,
            self.agent_id,
            self.module_id,
            self.multi_agent_episode_id,
            t_started,
            self.observation_space,
            self.action_space,
        )
        other.check_spaces = self.check_spaces
        if self._custom_data:
            other._custom_data = copy.deepcopy(self._custom_data)
        return other

    def cut(self, len_lookback_buffer: int = 0) -> Self:
        """A successor chunk of length 0 that goes on where this one stops.

        It has the same identity and custom data (copied), up to ``len_lookback_buffer`` steps of lookback, and the
        action that waits, if there is one.

        Raises:
            EpisodeError: If the episode is over.
        """
        if self.is_done:
            raise EpisodeError(f"{self.who}: cut() makes a successor, but the episode is over. Start a new one.")
        if len_lookback_buffer < 0:
            raise EpisodeError(f"{self.who}: len_lookback_buffer must be 0 or more, but is {len_lookback_buffer}.")
        rows = self.storage.lookback + len(self)
        lookback = min(len_lookback_buffer, rows)
        return self._with(ListStorage.from_storage(self.storage, rows - lookback, None, lookback), self.t)

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> Self:
        """A copy of the steps ``[start, stop)``, with the observation after them and a lookback before them.

        Ids, infos, agent, module and custom data are kept; the done flags and an action that waits are, too, if the
        slice reaches the end.

        Args:
            slice_: Steps of this chunk, without a step size.
            len_lookback_buffer: How many steps of lookback to keep, as far as there are any; None for as many as here.

        Raises:
            EpisodeError: If the slice has a step size.
        """
        if slice_.step not in (None, 1):
            raise EpisodeError(f"{self.who}: a slice with step {slice_.step} would lose rewards. Leave the step out.")
        start, stop, _ = slice_.indices(len(self))
        return self._rows(start, max(start, stop), len_lookback_buffer)

    def _rows(self, start: int, stop: int, len_lookback_buffer: int | None) -> Self:
        storage, at_end = self.storage, stop == len(self)
        lookback = storage.lookback if len_lookback_buffer is None else len_lookback_buffer
        lookback = min(lookback, storage.lookback + start)
        first, last = storage.lookback + start - lookback, storage.lookback + stop
        if storage.is_numpy:
            open_row = storage.pending() if at_end else None
            part: EpisodeStorage = ArrayStorage.from_storage(storage, first, last, lookback, open_row)
        else:
            part = ListStorage.from_storage(storage, first, None if at_end else last, lookback)
        new = self._with(part, self.t_started + start)
        if at_end:
            new.is_terminated, new.is_truncated = self.is_terminated, self.is_truncated
        if start == 0 and (stop > 0 or at_end):
            new.uncredited_reward = self.uncredited_reward
        return new

    def concat_episode(self, other: ChunkedEpisode) -> None:
        """Appends a successor chunk, as ``cut()`` or ``slice()`` made it; ``other`` stays as it is.

        Raises:
            EpisodeError: If ``other`` is not this episode's continuation.
        """
        if self.is_done:
            raise EpisodeError(f"{self.who}: concat_episode() continues an episode, but this one is over.")
        if (other.id_, other.t_started) != (self.id_, self.t):
            raise EpisodeError(
                f"{self.who}: concat_episode() needs the chunk of {self.id_!r} that starts at t={self.t}, but that of "
                f"{other.id_!r} from t={other.t_started} came."
            )
        mine, theirs = self.storage, other.storage
        if not other.is_reset:
            raise EpisodeError(f"{self.who}: concat_episode() got a chunk without observations. Give it at least one.")
        boundary, here = mine.column(Columns.T)[-1:], theirs.lookback
        shared = len(boundary) and boundary[0] == theirs.column(Columns.T)[here]
        if shared and not same_item(self.get_observations(-1), other.get_observations(0)):
            raise EpisodeError(f"{self.who}: the chunks differ in the observation that they share, at t={self.t}.")
        lists = ListStorage.from_storage(mine)
        lists.extend(theirs, self.who)
        self.storage = lists
        if other.uncredited_reward:
            self._credit_before(other)
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        if other._custom_data:
            self.custom_data.update(copy.deepcopy(other._custom_data))

    def _credit_before(self, other: ChunkedEpisode) -> None:
        """What the appended chunk could not credit belongs to the last action before it, if there was one."""
        rewards, before = self.storage.column(Columns.REWARDS), self.storage.lookback + len(self) - len(other)
        if before:
            rewards[before - 1] += other.uncredited_reward
        if before <= self.storage.lookback:
            self.uncredited_reward += other.uncredited_reward
