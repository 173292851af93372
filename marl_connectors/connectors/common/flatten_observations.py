"""Flattens observations to vectors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gymnasium import Space, spaces

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConfigError, ConnectorError, did_you_mean
from marl_connectors.typing import AgentID, Tree


class FlattenObservations(ObservationTransform):
    """Flattens observations of any space to float32 vectors, ``(n,)``.

    Parts of Dict and Tuple spaces are concatenated in the order of ``gymnasium.spaces.flatten``; Discrete and
    MultiDiscrete values become one-hot vectors.

    Reads ``obs``; writes it back to the episodes, so the learner pipeline does not need the piece. Keeps no state.

    Args:
        agent_ids: The agents whose observations are flattened; None for all. Agents with like spaces and one module
            share an array, so either all or none of them must be named.
        keys_to_remove: Keys of Dict observations that are left out.
    """

    agent_ids: Collection[AgentID] | None = argument(default=None)
    keys_to_remove: Sequence[Any] | None = argument(default=None)

    def begin(self) -> None:
        super().begin()
        if isinstance(self.agent_ids, str):
            raise ConfigError(f"FlattenObservations: agent_ids must be a list of agent ids, not {self.agent_ids!r}.")
        self._agent_ids = None if self.agent_ids is None else frozenset(self.agent_ids)
        self._keys_to_remove = tuple(self.keys_to_remove or ())

    def prepare(self, agents: Mapping[AgentID | None, tuple[Space, Space | None]]) -> None:
        """Checks that the named agents and keys exist."""
        if self._agent_ids is not None:
            if None in agents:
                raise ConfigError(
                    "FlattenObservations: agent_ids is for several agents, but there is one. Leave the argument out."
                )
            for agent_id in self._agent_ids:
                if agent_id not in agents:
                    raise ConfigError(
                        f"FlattenObservations: agent_ids names {agent_id!r}, which has no observation space. "
                        f"{did_you_mean(agent_id, agents)}"
                    )
        known = {key: None for space, _ in agents.values() if isinstance(space, spaces.Dict) for key in space.spaces}
        for key in self._keys_to_remove:
            if key not in known:
                raise ConfigError(
                    f"FlattenObservations: keys_to_remove names {key!r}, which no Dict observation has. "
                    f"{did_you_mean(key, known)}"
                )

    def plan(self, agent_id: AgentID | None, space: Space, action_space: Space | None) -> Plan:
        """Returns the flat space and how to flatten; the same space for agents that are not in ``agent_ids``."""
        if self._agent_ids is not None and agent_id not in self._agent_ids:
            return Plan(space, space)
        flatten = Flattener(space, leave_out=self._keys_to_remove)
        return Plan(space, flatten.space, flatten)

    def grouping_key(self, agent_id: AgentID | None) -> bool:
        """Whether the agent is in ``agent_ids``."""
        return self._agent_ids is not None and agent_id in self._agent_ids

    def transform(self, observations: Tree, plan: Plan, rows: Rows, xp: Any) -> Tree:
        """Flattens the observations if the agents are in ``agent_ids``."""
        if self._agent_ids is not None and not self.remembered(rows.agents.ids, self._are_chosen):
            return observations
        return plan.how(observations, xp)

    def _are_chosen(self, ids: tuple[AgentID | None, ...]) -> bool:
        assert self._agent_ids is not None
        chosen = [agent_id for agent_id in ids if agent_id in self._agent_ids]
        if chosen and len(chosen) < len(ids):
            other = next(agent_id for agent_id in ids if agent_id not in self._agent_ids)
            raise ConnectorError(
                f"FlattenObservations: agent_ids names {chosen[0]!r}, but not {other!r}, whose spaces are the same. "
                f"Their observations share an array, so name both or none of them, or map them to different modules."
            )
        return bool(chosen)
