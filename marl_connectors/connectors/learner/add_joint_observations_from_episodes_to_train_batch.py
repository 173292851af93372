"""Adds the joint observations of all agents to the train batch, for a centralised critic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.column_batch import EPISODES_OF_RUN, ColumnGroup
from marl_connectors.episodes.extended_episodes import original
from marl_connectors.episodes.packing import chunks_of, rows_of_episodes
from marl_connectors.episodes.rows import Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.spaces import describe
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID


class AddJointObservationsFromEpisodesToTrainBatch(ConnectorV2):
    """Adds ``critic_obs``, the observations of all agents at the time of each agent-step, for a centralised critic.

    Each is a vector ``[size]`` of the agents' newest observations, in order and flat, zeros for agents that are not
    there; then who is there; then whose step it is. Reads the episodes of all agents, also of those that are not
    trained. Keeps no state.
    """

    belongs_in = (LEARNER,)

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        agent_spaces: Mapping[AgentID, Space] | None = None,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            agent_spaces: For each agent that there may be, the space of the observations that the episodes hold; None
                for those of ``input_observation_space``, a Dict of agents.
        """
        super().__init__(input_observation_space, input_action_space)
        self._agent_spaces = None if agent_spaces is None else dict(agent_spaces)
        self._joint: JointObservations | None = None

    @property
    def joint(self) -> JointObservations:
        """How the vectors are made.

        Raises:
            ConfigError: If the agents are not known.
        """
        if self._joint is None:
            given: Any = self._agent_spaces or self.input_observation_space
            if isinstance(given, spaces.Dict):
                given = given.spaces
            if not isinstance(given, Mapping):
                raise ConfigError(
                    f"{type(self).__name__}: needs the observation spaces of all agents, a Dict by agent id, but has "
                    f"{given}. Use it in a multi-agent run, or pass agent_spaces={{agent_id: space}}."
                )
            self._joint = JointObservations(given)
        return self._joint

    @property
    def size(self) -> int:
        """How many numbers a vector has."""
        return self.joint.size

    def _seen(self, episodes: Sequence[Any], shared_data: dict[str, Any] | None) -> SeenInEpisodes:
        """Looked up once for all groups of a batch."""
        shared = {} if shared_data is None else shared_data
        if "joint_observations" not in shared:
            own = [chunk if isinstance(chunk, AgentChunk) else original(chunk) for chunk in chunks_of(episodes)]
            shared["joint_observations"] = self.joint.of_episodes(own)
        return shared["joint_observations"]

    def on_columns(self, *, columns: ColumnGroup, shared_data: dict[str, Any], **kwargs: Any) -> None:
        """Looks all rows of a group up at once."""
        if Columns.CRITIC_OBS not in columns:
            seen = self._seen(shared_data[EPISODES_OF_RUN].unextended, shared_data)
            columns[Columns.CRITIC_OBS] = seen.at(columns.rows)


class _Seen(NamedTuple):
    """What one agent saw, in all episodes.

    Attributes:
        when: ``[N]`` ascending, episode and env step as one number.
        until: ``[N]`` from when on it had left: the moment of its last observation, if it ended with that.
        observations: ``[N, size]`` float32.
    """

    when: np.ndarray
    until: np.ndarray
    observations: np.ndarray


class JointObservations:
    """The observations of all agents as one vector, for any agent-steps of some episodes.

    A vector holds, for each agent in order, its newest observation at that env step (flat, whole numbers of 8 bits
    scaled to [0, 1]; zeros if it is not there), then for each agent whether it is there, then a one-hot vector of whose
    agent-step it is. Who ended in a step is there only for others that ended with it, whose last observations may be
    worth something if they were truncated.

    Attributes:
        size: How many numbers a vector has.
    """

    def __init__(self, agent_spaces: Mapping[AgentID, Space]):
        """Works out the order.

        Args:
            agent_spaces: The observation space of each agent that there may be.

        Raises:
            ConfigError: If observations of an agent have no fixed size.
        """
        self._spaces = dict(agent_spaces)
        self._flatteners = {agent_id: Flattener(space, scale_bytes=True) for agent_id, space in agent_spaces.items()}
        self._slots = {agent_id: slot for slot, agent_id in enumerate(agent_spaces)}
        self.size = sum(flattener.size for flattener in self._flatteners.values()) + 2 * len(self._slots)

    def of_episodes(self, episodes: Iterable[SingleAgentEpisode | AgentChunk]) -> SeenInEpisodes:
        """Looks at episodes.

        Args:
            episodes: The agent episodes of MultiAgentEpisodes, or of chunks of them, all of each.
        """
        return SeenInEpisodes(self, list(episodes))

    def slot(self, episode: SingleAgentEpisode | AgentChunk) -> int:
        """The number of the agent whose episode it is.

        Raises:
            ConnectorError: If it is none of the agents.
        """
        slot = self._slots.get(episode.agent_id)
        if slot is None:
            raise ConnectorError(
                f"agent {episode.agent_id!r} is not among the agents that the joint observation is made of, "
                f"{', '.join(map(repr, self._slots))}. Name all agents that can appear in the environment's "
                f"possible_agents."
            )
        return slot

    def flat(self, agent_id: AgentID, rows: Rows) -> np.ndarray:
        """``[N, size]`` observations of an agent.

        Raises:
            ConnectorError: If the episodes hold other observations than expected.
        """
        flattener = self._flatteners[agent_id]
        try:
            return flattener(rows.get(Columns.OBS))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise ConnectorError(
                f"the episodes hold other observations of agent {agent_id!r} than {describe(self._spaces[agent_id])}: "
                f"{error}. Let pieces that change observations in the "
                f"episodes say so in recompute_output_observation_space."
            ) from error

    def __len__(self) -> int:
        return len(self._slots)

    def agents(self) -> Iterable[tuple[AgentID, int]]:
        """Each agent, and the size of its flat observations."""
        return ((agent_id, flattener.size) for agent_id, flattener in self._flatteners.items())


class SeenInEpisodes:
    """Joint observations of given episodes."""

    def __init__(self, joint: JointObservations, episodes: list[SingleAgentEpisode | AgentChunk]):
        self._joint = joint
        self._numbers: dict[str | None, int] = {}
        by_agent: dict[AgentID, list[SingleAgentEpisode | AgentChunk]] = {}
        for episode in episodes:
            joint.slot(episode)
            self._numbers.setdefault(episode.multi_agent_episode_id, len(self._numbers))
            by_agent.setdefault(episode.agent_id, []).append(episode)
        rows = {agent_id: _rows_of(own) for agent_id, own in by_agent.items()}
        self._span = 1 + max((int(own.get(Columns.T).max()) for own in rows.values()), default=0)
        self._seen = {agent_id: self._look(agent_id, own) for agent_id, own in rows.items()}

    def _look(self, agent_id: AgentID, rows: Rows) -> _Seen:
        """A hot path, as is ``at``: nothing in Python for each row."""
        when = self._when(rows)
        gone = [chunk.is_done for chunk in rows.chunks]
        last = np.cumsum(rows.counts) - 1
        until = (when // self._span + 1) * self._span  # the end of the multi-agent episode
        until[last] = np.where(gone, when[last], until[last])
        order = np.argsort(when, kind="stable")
        return _Seen(when[order], until[order], self._joint.flat(agent_id, rows)[order])

    def _when(self, rows: Rows) -> np.ndarray:
        """``[B]`` episode and env step of rows as one number."""
        numbers = np.array([self._numbers[chunk.multi_agent_episode_id] for chunk in rows.chunks], np.int64)
        return np.repeat(numbers, rows.counts) * self._span + rows.get(Columns.T)

    def at(self, rows: Rows) -> np.ndarray:
        """``[B, size]`` float32 joint observations at rows of these episodes."""
        when, num_agents = self._when(rows), len(self._joint)
        ended = np.zeros(len(rows), bool)
        ended[np.cumsum(rows.counts) - 1] = [chunk.is_done for chunk in rows.chunks]
        own = np.repeat([self._joint.slot(chunk) for chunk in rows.chunks], rows.counts)
        out = np.zeros((len(rows), self._joint.size), np.float32)
        begin, presence = 0, self._joint.size - 2 * num_agents
        for slot, (agent_id, size) in enumerate(self._joint.agents()):
            seen = self._seen.get(agent_id)
            if seen is not None:
                newest = np.searchsorted(seen.when, when, side="right") - 1
                there = (newest >= 0) & (when // self._span == seen.when[newest] // self._span)
                there &= (when < seen.until[newest]) | (ended & (when == seen.when[newest]))
                out[:, begin : begin + size] = np.where(there[:, None], seen.observations[newest], 0.0)
                out[:, presence + slot] = there
            mine = np.flatnonzero(own == slot)  # an agent that is back sees something else already
            if len(mine):
                out[mine, begin : begin + size] = self._joint.flat(agent_id, rows.at(mine))
                out[mine, presence + slot] = out[mine, presence + num_agents + slot] = 1.0
            begin += size
        return out


def _rows_of(episodes: list[SingleAgentEpisode | AgentChunk]) -> Rows:
    """All that the episodes hold, also from before the chunk: an agent may be waiting since then."""
    modules = list(dict.fromkeys(episode.module_id or DEFAULT_MODULE_ID for episode in episodes))
    return rows_of_episodes(episodes, modules, with_lookback=True)
