"""Appends the agent's number to its observation, so that a shared module knows which agent it acts for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError, ConnectorError, did_you_mean
from marl_connectors.spaces import describe
from marl_connectors.typing import AgentID, Tree


class AgentIdEncoding(ObservationTransform):
    """Appends the agent's number in ``agent_ids``, as a one-hot vector, to flat observations.

    ``(n,)`` becomes ``(n + number of agents,)``, float32. So agents that share a module can learn to behave
    differently. Reads ``obs``; writes it back to the episodes. Keeps no state.

    Args:
        agent_ids: All agents, in the order of their numbers; None for those of the observation space.
    """

    agent_ids: Sequence[AgentID] | None = argument(default=None)

    def begin(self) -> None:
        super().begin()
        ids = self.agent_ids
        if isinstance(ids, str) or (ids is not None and len(set(ids)) < max(len(ids), 1)):
            raise ConfigError(
                f"AgentIdEncoding: agent_ids must be a list of one or more different agent ids, not {ids!r}."
            )
        self._alias: dict[AgentID | None, AgentID] = {}
        self._number: dict[AgentID | None, int] = {} if ids is None else _numbered(ids)

    def prepare(self, agents: Mapping[AgentID | None, tuple[Space, Space | None]]) -> None:
        """Numbers the agents."""
        if None in agents:
            raise ConfigError("AgentIdEncoding: this piece is for several agents, but there is one. Leave it out.")
        if self.agent_ids is None:
            self._number = _numbered(list(agents))
        for agent_id in agents:
            self._number_of(agent_id, ConfigError)

    def know_agent(self, agent_id: AgentID, like: AgentID) -> None:
        """Gives the agent the other one's number."""
        super().know_agent(agent_id, like)
        if like in self._number:
            self._alias[agent_id] = like

    def _number_of(self, agent_id: AgentID | None, error: type[Exception]) -> int:
        agent_id = self._alias.get(agent_id, agent_id)
        if agent_id not in self._number:
            raise error(
                f"AgentIdEncoding: agent {agent_id!r} has no number. "
                f"{did_you_mean(agent_id, self._number)} Name all agents that may appear in agent_ids."
            )
        return self._number[agent_id]

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the space with the one-hot vector."""
        if not isinstance(space, spaces.Box) or len(space.shape) != 1:
            raise ConfigError(
                f"AgentIdEncoding: expected flat observations, but those of agent {agent_id!r} are {describe(space)}. "
                f"Put FlattenObservations before it."
            )
        more = len(self._number)
        with np.errstate(over="ignore"):
            low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        low, high = np.append(low, np.zeros(more, np.float32)), np.append(high, np.ones(more, np.float32))
        return Plan(space, spaces.Box(low, high, dtype=np.float32))

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Appends all one-hot vectors at once."""
        flat = xp.astype(observations, xp.float32, copy=False)
        one_hot = rows.of_agents(self.remembered(rows.agents.ids, self._one_hot))
        if one_hot.shape[0] == 1:  # all rows are of one agent
            one_hot = xp.broadcast_to(one_hot, (flat.shape[0], len(self._number)))
        return xp.concat([flat, one_hot], axis=1)

    def _one_hot(self, ids: tuple[AgentID | None, ...]) -> np.ndarray:
        """Returns the vector of each agent."""
        return np.eye(len(self._number), dtype=np.float32)[[self._number_of(i, ConnectorError) for i in ids]]


def _numbered(agent_ids: Sequence[AgentID | None]) -> dict[AgentID | None, int]:
    return {agent_id: i for i, agent_id in enumerate(agent_ids)}
