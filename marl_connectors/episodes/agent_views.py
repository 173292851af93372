"""Agents' episodes as views of a rollout, created when first read.

A ``MultiAgentEpisode`` keeps an ``EndedViews`` in place of its agents' episodes: where their rows are, in the arrays of
``EndedLanes``. Batches read these as ``AgentChunk``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode, agent_episode_id
from marl_connectors.episodes.rollout import Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.typing import AgentID, EpisodeID, ModuleID


class AgentChunk(NamedTuple):
    """An agent's episode, or a chunk of it, that was not created yet.

    Attributes:
        whole: The MultiAgentEpisode.
        agent_id: The agent.
        module_id: The module that chose the actions.
        rollout: The rollout that holds its rows.
        lane: Its lane there.
        first_row: The oldest row that it keeps.
        start_row: The first row that is no lookback.
        last_row: The row of its last observation.
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
        """The number of steps, without the lookback."""
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
        """Returns the episode, which is created at the first call."""
        return self.whole.agent_episodes[self.agent_id]


class EndedLanes(NamedTuple):
    """The rows of the episodes of ``N`` agents that were ended, or cut, in the same step.

    Attributes:
        rollouts: The rollouts that hold the rows.
        which: ``[N]`` the index of each episode's rollout in ``rollouts``.
        lane: ``[N]`` its lane there.
        first_row: ``[N]`` the oldest row that it keeps.
        start_row: ``[N]`` its first row that is no lookback.
        stop_row: ``[N]`` the row of its last observation.
        t_started: ``[N]`` the agent's own steps before ``start_row``.
        terminated: ``[N]`` bool, whether it is terminated.
        truncated: ``[N]`` bool, whether it is truncated.
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
    """The agents of one episode and their indices in ``EndedLanes``. All of them joined at the episode's start.

    Attributes:
        lanes: The lanes of all agents that ended in the same step.
        begin: The index of this episode's first agent in them.
        agent_ids: This episode's agents, in the order of their lanes.
    """

    lanes: EndedLanes
    begin: int
    agent_ids: tuple[AgentID, ...]

    @property
    def own(self) -> slice:
        """The indices of this episode's agents in ``lanes``."""
        return slice(self.begin, self.begin + len(self.agent_ids))

    def agent_steps(self) -> int:
        """Returns the number of steps that all agents have made in the chunk."""
        return int((self.lanes.stop_row[self.own] - self.lanes.start_row[self.own]).sum())

    def ends(self) -> list[tuple[int, bool, bool]]:
        """Returns the last row of each agent, and whether it is terminated and truncated."""
        found = self.lanes.stop_row, self.lanes.terminated, self.lanes.truncated
        return list(zip(*(column[self.own].tolist() for column in found), strict=True))

    def chunks(self, episode: MultiAgentEpisode) -> list[AgentChunk]:
        """Returns what a batch has to know of each agent's episode, without making the episodes."""
        lanes, own = self.lanes, self.own
        rows = lanes.lane, lanes.first_row, lanes.start_row, lanes.stop_row
        columns = *rows, lanes.t_started, lanes.terminated, lanes.truncated
        by_agent = zip(lanes.which[own].tolist(), *(column[own].tolist() for column in columns), strict=True)
        return [
            AgentChunk(episode, agent_id, episode.module_for(agent_id), lanes.rollouts[which], *row)
            for agent_id, (which, *row) in zip(self.agent_ids, by_agent, strict=True)
        ]

    def make(self, episode: MultiAgentEpisode) -> dict[AgentID, SingleAgentEpisode]:
        """Returns the agents' episodes."""
        rollouts, *columns = self.lanes
        made = {}
        for agent_id, which, lane, first_row, start_row, stop_row, t_started, terminated, truncated in zip(
            self.agent_ids, *(column[self.own].tolist() for column in columns), strict=True
        ):
            storage = LaneStorage(rollouts[which], lane, first_row=first_row, start_row=start_row, stop_row=stop_row)
            own = view_of(episode, agent_id, storage, t_started)
            own.is_terminated, own.is_truncated = terminated, truncated
            made[agent_id] = own
        return made


def view_of(episode: MultiAgentEpisode, agent_id: AgentID, storage: Any, t_started: int) -> SingleAgentEpisode:
    """Returns the episode of an agent that has taken part since the beginning of a MultiAgentEpisode."""
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
