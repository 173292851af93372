"""Agents' episodes that are views of a rollout, and that are only made when somebody asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.typing import AgentID, EpisodeID, ModuleID

if TYPE_CHECKING:
    from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode


class AgentViews(Protocol):
    """What a MultiAgentEpisode has in place of its agents' episodes until it is asked for them."""

    def agent_steps(self) -> int:
        """How many steps all agents have made in the chunk."""
        ...

    def make(self, episode: MultiAgentEpisode) -> dict[AgentID, SingleAgentEpisode]:
        """The agents' episodes."""
        ...

    def chunks(self, episode: MultiAgentEpisode) -> list[AgentChunk]:
        """What a batch has to know of them, which makes none."""
        ...


class AgentChunk(NamedTuple):
    """The episode of an agent, or a chunk of it, that nobody has asked for yet.

    Attributes:
        whole: The MultiAgentEpisode.
        agent_id: Whose it is.
        module_id: Who chose the actions.
        rollout: Where its rows are.
        lane: Its lane there.
        first_row: The oldest row that it keeps.
        start_row: The first row that is no lookback.
        last_row: Its last observation.
        t_started: The agent's own steps before ``start_row``.
        is_terminated: Whether it ended, and not because of a time limit.
        is_truncated: Whether it was stopped.
    """

    whole: MultiAgentEpisode
    agent_id: AgentID
    module_id: ModuleID
    rollout: Rollout
    lane: int
    first_row: int
    start_row: int
    last_row: int
    t_started: int
    is_terminated: bool
    is_truncated: bool

    @property
    def num_steps(self) -> int:
        """How many steps it has."""
        return self.last_row - self.start_row

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self.is_terminated or self.is_truncated

    @property
    def multi_agent_episode_id(self) -> EpisodeID:
        """The id of the MultiAgentEpisode."""
        return self.whole.id_

    @property
    def begins_in_lookback(self) -> bool:
        """Whether all steps from before the chunk are kept."""
        return self.t_started <= self.start_row - self.first_row

    def episode(self) -> SingleAgentEpisode:
        """The episode itself, which is made if nobody has asked for it before."""
        return self.whole.agent_episodes[self.agent_id]


class EndedLanes(NamedTuple):
    """Where in the rollouts the episodes of ``N`` agents are that were ended, or cut, in the same step.

    Attributes:
        rollouts: Where their rows are.
        which: ``[N]`` the rollout of each.
        lane: ``[N]`` its lane there.
        first_row: ``[N]`` the oldest row that it keeps.
        start_row: ``[N]`` its first row that is no lookback.
        stop_row: ``[N]`` its last observation.
        t_started: ``[N]`` the agent's own steps before ``start_row``.
        terminated: ``[N]`` bool.
        truncated: ``[N]`` bool.
    """

    rollouts: tuple[Rollout, ...]
    which: np.ndarray
    lane: np.ndarray
    first_row: np.ndarray
    start_row: np.ndarray
    stop_row: np.ndarray
    t_started: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class EndedViews(NamedTuple):
    """The agents of one episode among ``EndedLanes``, all of whom have been there from the episode's beginning.

    Attributes:
        lanes: Those of all agents.
        begin: Where the first of this episode's agents is.
        agent_ids: They, in order.
    """

    lanes: EndedLanes
    begin: int
    agent_ids: tuple[AgentID, ...]

    @property
    def place(self) -> slice:
        """Where they are."""
        return slice(self.begin, self.begin + len(self.agent_ids))

    def agent_steps(self) -> int:
        """How many steps all agents have made in the chunk."""
        return int((self.lanes.stop_row[self.place] - self.lanes.start_row[self.place]).sum())

    def ends(self) -> list[tuple[int, bool, bool]]:
        """Of each agent: its last row, and whether it is terminated or truncated."""
        found = self.lanes.stop_row, self.lanes.terminated, self.lanes.truncated
        return list(zip(*(column[self.place].tolist() for column in found), strict=True))

    def chunks(self, episode: MultiAgentEpisode) -> list[AgentChunk]:
        """What a batch has to know of the agents' episodes, which makes none."""
        lanes, place = self.lanes, self.place
        rows = lanes.lane, lanes.first_row, lanes.start_row, lanes.stop_row
        columns = *rows, lanes.t_started, lanes.terminated, lanes.truncated
        by_agent = zip(lanes.which[place].tolist(), *(column[place].tolist() for column in columns), strict=True)
        return [
            AgentChunk(episode, agent_id, episode.module_for(agent_id), lanes.rollouts[which], *row)
            for agent_id, (which, *row) in zip(self.agent_ids, by_agent, strict=True)
        ]

    def make(self, episode: MultiAgentEpisode) -> dict[AgentID, SingleAgentEpisode]:
        """The agents' episodes."""
        rollouts, *columns = self.lanes
        made = {}
        for agent_id, which, lane, first_row, start_row, stop_row, t_started, terminated, truncated in zip(
            self.agent_ids, *(column[self.place].tolist() for column in columns), strict=True
        ):
            storage = LaneStorage(rollouts[which], lane, first_row=first_row, start_row=start_row, stop_row=stop_row)
            own = view_of(episode, agent_id, storage, t_started)
            own.is_terminated, own.is_truncated = terminated, truncated
            made[agent_id] = own
        return made


def view_of(episode: MultiAgentEpisode, agent_id: AgentID, storage: Any, t_started: int) -> SingleAgentEpisode:
    """The episode of an agent that has been there from the beginning of a MultiAgentEpisode."""
    return SingleAgentEpisode.from_storage(
        storage,
        id_=agent_episode_id(episode.id_, agent_id, 0),
        agent_id=agent_id,
        module_id=episode.module_for(agent_id),
        multi_agent_episode_id=episode.id_,
        t_started=t_started,
        observation_space=storage.rollout.observation_space,
        action_space=storage.rollout.action_space,
    )


def agent_episode_id(episode_id: EpisodeID, agent_id: AgentID, t: int) -> EpisodeID:
    """The id of an agent's life that begins at env step ``t``; of agents ``3`` and ``"3"``, too, they differ.

    >>> agent_episode_id("0-0", "agent_1", 0), agent_episode_id("0-0", 3, 0)
    ('0-0/agent_1/0', '0-0/int:3/0')
    """
    name = agent_id if isinstance(agent_id, str) else f"{type(agent_id).__name__}:{agent_id}"
    return f"{episode_id}/{name}/{t}"
