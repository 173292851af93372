"""What is known of each lane's ongoing agent episode, in arrays: views of the episodes are only made when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from marl_connectors.episodes.agent_views import view_of
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.typing import AgentID

if TYPE_CHECKING:
    from marl_connectors.env_runners.lanes import Lane


class Lives:
    """Of the agent episode in each lane of a group, by the lane's number.

    Attributes:
        first_row: ``[num_lanes]`` int64, the oldest row that it keeps.
        start_row: ``[num_lanes]`` int64, the row of its chunk's first observation; rows before it are lookback.
        t_started: ``[num_lanes]`` int64, the agent's own steps before ``start_row``.
        earlier_return: ``[num_lanes]``, what the agent was paid in earlier chunks.
    """

    __slots__ = ("earlier_return", "first_row", "start_row", "t_started")

    def __init__(self, num_lanes: int = 0):
        self.first_row = np.zeros(num_lanes, np.int64)
        self.start_row = np.zeros(num_lanes, np.int64)
        self.t_started = np.zeros(num_lanes, np.int64)
        self.earlier_return = np.zeros(num_lanes)

    def widen(self, num_lanes: int) -> None:
        """Makes room for more lanes."""
        for name in self.__slots__:
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros(num_lanes - len(old), old.dtype)]))

    def begin(self, numbers: Any, rows: Any) -> None:
        """Episodes begin, with their first observations in some rows."""
        self.first_row[numbers] = self.start_row[numbers] = rows
        self.t_started[numbers] = 0
        self.earlier_return[numbers] = 0.0

    def go_on(self, numbers: np.ndarray, last_rows: np.ndarray, returns: np.ndarray, lookback: int) -> None:
        """Chunks end in some rows; their successors begin behind the lookback, in another rollout."""
        self.t_started[numbers] += last_rows - self.start_row[numbers]
        self.first_row[numbers] = lookback - np.minimum(lookback, last_rows - self.first_row[numbers])
        self.start_row[numbers] = lookback
        self.earlier_return[numbers] += returns


class LiveViews(NamedTuple):
    """The agents of an ongoing episode, all of whom have been there from its beginning.

    Attributes:
        lanes: Agent to lane.
    """

    lanes: dict[AgentID, Lane]

    @classmethod
    def of(cls, lanes: dict[AgentID, Lane]) -> LiveViews:
        """The lanes of a copy, which have no views yet."""
        for lane in lanes.values():
            lane.has_no_view()
        return cls(lanes)

    def agent_steps(self) -> int:
        """How many steps all agents have made in the chunk."""
        return sum(lane.row - int(lane.group.lives.start_row[lane.number]) for lane in self.lanes.values())

    def make(self, episode: MultiAgentEpisode) -> dict[AgentID, SingleAgentEpisode]:
        """The agents' episodes, which their lanes know from now on."""
        for agent_id, lane in self.lanes.items():
            t_started = int(lane.group.lives.t_started[lane.number])
            lane.episode = view_of(episode, agent_id, lane.new_storage(), t_started)
        return {agent_id: lane.episode for agent_id, lane in self.lanes.items()}
