"""Adds the joint observations of all agents to the train batch, for a centralised critic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import RUN_EPISODES, ColumnGroup
from marl_connectors.episodes.bootstrap_view import original
from marl_connectors.episodes.packing import chunks_of, lives_on, rows_of_episodes
from marl_connectors.episodes.rows import Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConfigError, ConnectorError
from marl_connectors.spaces import describe
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID


class AddJointObservationsFromEpisodesToTrainBatch(ConnectorV2):
    """Adds ``critic_obs``, the observations of all agents at the time of each agent-step, for a centralised critic.

    Each row is a vector ``[size]`` as ``JointObservations`` describes it. Reads the observations in the episodes of all
    agents, also of those that are not trained. Writes ``critic_obs`` to the batch, ``[B, size]`` float32. Keeps no
    state.

    Args:
        agent_spaces: The observation space of each agent that may appear, as the episodes hold its observations.
            None stands for the spaces of ``input_observation_space``, a Dict by agent id.
    """

    belongs_in = (LEARNER,)
    agent_spaces: Mapping[AgentID, Space] | None = argument(default=None)
    _joint: JointObservations | None = None

    @property
    def joint(self) -> JointObservations:
        """The layout of the vectors.

        Raises:
            ConfigError: If the agents' spaces are not known.
        """
        if self._joint is None:
            given: Any = self.agent_spaces or self.input_observation_space
            if isinstance(given, spaces.Dict):
                given = given.spaces
            if not isinstance(given, Mapping):
                raise ConfigError(
                    f"{type(self).__name__}: expected the observation spaces of all agents, a Dict by agent id, got "
                    f"{given}. Use it in a multi-agent run, or pass agent_spaces={{agent_id: space}}."
                )
            self._joint = JointObservations(given)
        return self._joint

    @property
    def size(self) -> int:
        """The number of numbers in a vector."""
        return self.joint.size

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the vectors of all rows of a group at once."""
        if Columns.CRITIC_OBS not in c:
            if "joint_observations" not in c.shared_data:  # they are prepared once for all groups of a batch
                episodes = c.shared_data[RUN_EPISODES].unextended
                c.shared_data["joint_observations"] = self.joint.of_episodes(episodes)
            c[Columns.CRITIC_OBS] = c.shared_data["joint_observations"].at(c.rows)


class _AgentObservations(NamedTuple):
    """The observations of one agent in all episodes.

    Attributes:
        when: ``[N]`` episode and env step as one number, ascending.
        until: ``[N]`` when the agent had left; this is the time of its last observation unless it ``lives_on`` there.
        observations: ``[N, size]`` float32.
    """

    when: np.ndarray
    until: np.ndarray
    observations: np.ndarray


class JointObservations:
    """The layout of vectors that hold the observations of all agents at an agent-step.

    A vector holds three parts. The first has each agent's newest observation at that env step, in order: flattened,
    integers of 8 bits scaled to [0, 1], zeros if the agent is absent. The second has 1 for each agent that is present
    and 0 for each that is absent. The third is the one-hot number of the agent whose step it is. An agent that has
    ended is absent from its last observation on, except in the vector of that observation itself, which is bootstrapped
    from if the agent was truncated. At a time limit, agents that are stopped with the whole episode are all present.

    Attributes:
        size: The number of numbers in a vector.
    """

    def __init__(self, agent_spaces: Mapping[AgentID, Space]):
        """Works out the order.

        Args:
            agent_spaces: The observation space of each agent that may appear.

        Raises:
            ConfigError: If observations of an agent have no fixed size.
        """
        self._spaces = dict(agent_spaces)
        self._flatteners = {agent_id: Flattener(space, scale_bytes=True) for agent_id, space in agent_spaces.items()}
        self._slots = {agent_id: slot for slot, agent_id in enumerate(agent_spaces)}
        self.size = sum(flattener.size for flattener in self._flatteners.values()) + 2 * len(self._slots)

    def of_episodes(self, episodes: Iterable[Any]) -> EpisodeJointObservations:
        """Prepares the joint observations of some episodes.

        Args:
            episodes: MultiAgentEpisodes, or chunks of them.
        """
        return EpisodeJointObservations(self, episodes)

    def slot(self, episode: SingleAgentEpisode | AgentChunk) -> int:
        """Returns the number of an episode's agent.

        Raises:
            ConnectorError: If the agent is unknown.
        """
        slot = self._slots.get(episode.agent_id)
        if slot is None:
            raise ConnectorError(
                f"agent {episode.agent_id!r} is not among the agents of the joint observation, "
                f"{', '.join(map(repr, self._slots))}. Name all agents that can appear in the environment's "
                f"possible_agents."
            )
        return slot

    def flat(self, agent_id: AgentID, rows: Rows) -> np.ndarray:
        """Returns the flattened observations of an agent, ``[N, size]``.

        Raises:
            ConnectorError: If the observations do not fit the agent's space.
        """
        flattener = self._flatteners[agent_id]
        try:
            return flattener(rows.get(Columns.OBS))
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise ConnectorError(
                f"the observations of agent {agent_id!r} in the episodes do not fit "
                f"{describe(self._spaces[agent_id])}: {error}. A piece that changes observations must override "
                f"recompute_output_observation_space."
            ) from error

    def __len__(self) -> int:
        return len(self._slots)

    def agents(self) -> Iterable[tuple[AgentID, int]]:
        """Yields each agent and the size of its flattened observations."""
        return ((agent_id, flattener.size) for agent_id, flattener in self._flatteners.items())


class EpisodeJointObservations:
    """The joint observations of some episodes."""

    def __init__(self, joint: JointObservations, episodes: Iterable[Any]):
        self._joint = joint
        self._numbers: dict[str | None, int] = {}
        by_agent: dict[AgentID, list[tuple[SingleAgentEpisode | AgentChunk, bool]]] = {}
        for whole in episodes:
            for chunk in chunks_of([whole]):
                joint.slot(chunk)
                self._numbers.setdefault(chunk.multi_agent_episode_id, len(self._numbers))
                own = chunk if isinstance(chunk, AgentChunk) else original(chunk)
                by_agent.setdefault(chunk.agent_id, []).append((own, lives_on(own, whole)))
        rows = {agent_id: _rows_of(own) for agent_id, own in by_agent.items()}
        self._span = 1 + max((int(own.get(Columns.T).max()) for own, _ in rows.values()), default=0)
        self._by_agent = {agent_id: self._observations(agent_id, *own) for agent_id, own in rows.items()}

    def _observations(self, agent_id: AgentID, rows: Rows, is_there: list[bool]) -> _AgentObservations:
        """Returns the observations of an agent, sorted by time."""
        when = self._when(rows)
        gone = [chunk.is_done for chunk in rows.chunks]
        last = np.cumsum(rows.counts) - 1
        until = (when // self._span + 1) * self._span  # the end of the multi-agent episode
        until[last] = np.where(gone, when[last] + is_there, until[last])
        order = np.argsort(when, kind="stable")
        return _AgentObservations(when[order], until[order], self._joint.flat(agent_id, rows)[order])

    def _when(self, rows: Rows) -> np.ndarray:
        """Returns ``[B]`` episode and env step of rows as one number."""
        numbers = np.array([self._numbers[chunk.multi_agent_episode_id] for chunk in rows.chunks], np.int64)
        return np.repeat(numbers, rows.counts) * self._span + rows.get(Columns.T)

    def at(self, rows: Rows) -> np.ndarray:
        """Returns ``[B, size]`` float32 joint observations at rows of these episodes."""
        when, num_agents = self._when(rows), len(self._joint)
        own = np.repeat([self._joint.slot(chunk) for chunk in rows.chunks], rows.counts)
        out = np.zeros((len(rows), self._joint.size), np.float32)
        begin, presence = 0, self._joint.size - 2 * num_agents
        for slot, (agent_id, size) in enumerate(self._joint.agents()):
            found = self._by_agent.get(agent_id)
            if found is not None:
                newest = np.searchsorted(found.when, when, side="right") - 1
                present = (newest >= 0) & (when // self._span == found.when[newest] // self._span)
                present &= when < found.until[newest]
                out[:, begin : begin + size] = np.where(present[:, None], found.observations[newest], 0.0)
                out[:, presence + slot] = present
            mine = np.flatnonzero(own == slot)  # even if the agent has ended, or came back at this env step
            if len(mine):
                out[mine, begin : begin + size] = self._joint.flat(agent_id, rows.at(mine))
                out[mine, presence + slot] = out[mine, presence + num_agents + slot] = 1.0
            begin += size
        return out


def _rows_of(found: list[tuple[SingleAgentEpisode | AgentChunk, bool]]) -> tuple[Rows, list[bool]]:
    """Returns all rows of an agent's chunks, also the lookback: it may have been waiting since then.

    Args:
        found: The chunks, and whether the agent lives on at the end of each.

    Returns:
        The rows, and the second part of ``found`` in their order.
    """
    modules = list(dict.fromkeys(chunk.module_id or DEFAULT_MODULE_ID for chunk, _ in found))
    found = sorted(found, key=lambda own: modules.index(own[0].module_id or DEFAULT_MODULE_ID))
    rows = rows_of_episodes([chunk for chunk, _ in found], modules, with_lookback=True)
    return rows, [is_there for _, is_there in found]
