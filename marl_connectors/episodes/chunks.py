"""Chunks of one agent's episode: cut, sliced, and put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from marl_connectors.episodes.array_storage import ArrayStorage
from marl_connectors.episodes.batching import same_item
from marl_connectors.episodes.growth import GrowingEpisode
from marl_connectors.episodes.list_storage import ListStorage
from marl_connectors.episodes.storage import REWARDS, EpisodeStorage, T
from marl_connectors.errors import EpisodeError
from marl_connectors.typing import AgentID, EpisodeID, ModuleID

if TYPE_CHECKING:
    from typing_extensions import Self


class ChunkedEpisode(GrowingEpisode):
    """An episode of which chunks can be made."""

    __slots__ = ("module_id", "multi_agent_episode_id")

    module_id: ModuleID | None
    multi_agent_episode_id: EpisodeID | None

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
        self.uncredited_reward = 0.0
        self._init_base()

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
        other._copy_notes(self)
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
        check_lookback(len_lookback_buffer, self.who)
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
        start, stop = slice_bounds(slice_, len_lookback_buffer, len(self), self.who)
        part = self._rows(start, stop, len_lookback_buffer)
        if start == 0 and (stop > 0 or len(self) == 0):
            part.uncredited_reward = self.uncredited_reward
        elif start == 0:
            part.take_back(self.uncredited_reward)
        return part

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
        return new

    def take_back(self, reward: float) -> None:
        """Leaves a late reward that these steps do not know of yet out of the lookback, where it is shown."""
        lookback = self.storage.lookback
        if lookback:
            self.storage.column(REWARDS)[lookback - 1] -= reward  # type: ignore[index]

    def concat_episode(self, other: ChunkedEpisode) -> None:
        """Appends a successor chunk, as ``cut()`` or ``slice()`` made it; ``other`` stays as it is.

        Raises:
            EpisodeError: If ``other`` is not this episode's continuation. The episode is then as it was.
        """
        self.check_continuation(other)
        self.lists().extend(other.storage)
        if other.uncredited_reward:
            self._credit_before(other)
        self._append_notes(other)

    def check_continuation(self, other: ChunkedEpisode) -> None:
        """Checks that ``other`` is the chunk that follows this one.

        Raises:
            EpisodeError: If not.
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
        boundary, here = mine.column(T)[-1:], theirs.lookback  # type: ignore[index]
        shared = len(boundary) and boundary[0] == theirs.column(T)[here]  # type: ignore[index]
        if shared and not same_item(self.get_observations(-1), other.get_observations(0)):
            raise EpisodeError(f"{self.who}: the chunks differ in the observation that they share, at t={self.t}.")
        known, extras = mine.extra_keys(), theirs.extra_keys()
        if set(known) != set(extras) and len(mine.column(REWARDS)) and (len(theirs) or theirs.pending()):
            raise EpisodeError(
                f"{self.who}: its extra model outputs are {sorted(known)}, those of the chunk to append "
                f"{sorted(extras)}. Both must have the same ones."
            )

    def _credit_before(self, other: ChunkedEpisode) -> None:
        """What the appended chunk could not credit belongs to the last action before it, if there was one."""
        rewards, before = self.storage.column(REWARDS), self.storage.lookback + len(self) - len(other)
        if before:
            rewards[before - 1] += other.uncredited_reward
        if before <= self.storage.lookback:
            self.uncredited_reward += other.uncredited_reward


def check_lookback(len_lookback_buffer: Any, who: str) -> None:
    """Checks a number of steps of lookback.

    Raises:
        EpisodeError: If it is not 0 or more.
    """
    if not isinstance(len_lookback_buffer, (int, np.integer)) or len_lookback_buffer < 0:
        raise EpisodeError(f"{who}: len_lookback_buffer must be an int of 0 or more, but is {len_lookback_buffer!r}.")


def slice_bounds(slice_: slice, len_lookback_buffer: int | None, length: int, who: str) -> tuple[int, int]:
    """First step of a slice, and the one after its last.

    Raises:
        EpisodeError: If it is no slice, has a step size, or the lookback is negative.
    """
    if not isinstance(slice_, slice):
        raise EpisodeError(f"{who}: a slice(start, stop) is needed, but {slice_!r} came.")
    if slice_.step not in (None, 1):
        raise EpisodeError(f"{who}: a slice with step {slice_.step} would lose rewards. Leave the step out.")
    if len_lookback_buffer is not None:
        check_lookback(len_lookback_buffer, who)
    start, stop, _ = slice_.indices(length)
    return start, max(start, stop)
