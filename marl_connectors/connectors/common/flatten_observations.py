"""Makes flat vectors of observations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gymnasium import Space, spaces

from marl_connectors.connectors.flattening import Flattener
from marl_connectors.connectors.observation_transform import ObservationTransform, Plan, Steps
from marl_connectors.errors import ConfigError, ConnectorError, did_you_mean
from marl_connectors.typing import AgentID, Tree


class FlattenObservations(ObservationTransform):
    """Turns observations of any space into float32 vectors, ``(n,)``.

    Parts of Dict and Tuple spaces stand one after another, in the order of ``gymnasium.spaces.flatten``; Discrete and
    MultiDiscrete values become one-hot vectors. Writes ``obs`` back to the episodes, so that the learner gets flat ones
    without a piece of its own. Keeps no state.
    """

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        multi_agent: bool | None = None,
        agent_ids: Collection[AgentID] | None = None,
        as_learner_connector: bool | None = None,
        keys_to_remove: Sequence[Any] | None = None,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            multi_agent: Whether the spaces are Dicts by agent id; None finds out.
            agent_ids: The agents whose observations are made flat; None for all. Of agents whose observations stand in
                one array, such as those of one module, either all or none.
            as_learner_connector: Whether the piece stands in a learner pipeline, where it puts flat observations into
                the batch: for episodes that have not been through an env-to-module pipeline with this piece.
            keys_to_remove: Parts of Dict observations that are left out.
        """
        if isinstance(agent_ids, str):
            raise ConfigError(f"FlattenObservations: agent_ids must be a list of agent ids, not {agent_ids!r}.")
        self._agent_ids = None if agent_ids is None else frozenset(agent_ids)
        self._keys_to_remove = tuple(keys_to_remove or ())
        super().__init__(
            input_observation_space,
            input_action_space,
            multi_agent=multi_agent,
            as_learner_connector=as_learner_connector,
        )

    def prepare(self, agents: Mapping[AgentID | None, tuple[Space, Space | None]]) -> None:
        """Looks for names that do not exist."""
        if self._agent_ids is not None:
            if None in agents:
                raise ConfigError(
                    "FlattenObservations: agent_ids is for several agents, but there is one. Leave it out."
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
        """How to flatten, or None."""
        if self._agent_ids is not None and agent_id not in self._agent_ids:
            return Plan(space, space)
        flatten = Flattener(space, leave_out=self._keys_to_remove)
        return Plan(space, flatten.space, flatten)

    def stands_apart(self, agent_id: AgentID | None) -> bool:
        """Whether an agent's observations are flattened, while others of its module may not be."""
        return self._agent_ids is not None and agent_id in self._agent_ids

    def transform(self, observations: Tree, plan: Plan, steps: Steps) -> Tree:
        """Flattens, unless the agents are none of ``agent_ids``."""
        if self._agent_ids is not None and not self.remembered(steps.agents.ids, self._are_chosen):
            return observations
        return plan.how(observations)

    def _are_chosen(self, ids: tuple[AgentID | None, ...]) -> bool:
        assert self._agent_ids is not None
        chosen = [agent_id for agent_id in ids if agent_id in self._agent_ids]
        if chosen and len(chosen) < len(ids):
            other = next(agent_id for agent_id in ids if agent_id not in self._agent_ids)
            raise ConnectorError(
                f"FlattenObservations: agent_ids names {chosen[0]!r}, but not {other!r}, whose spaces are the same. "
                f"Their observations stand in one array, so name both or none of them, or map them to different "
                f"modules."
            )
        return bool(chosen)
