"""Puts what all agents saw into the train batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2
from marl_connectors.connectors.learner.joint_observations import JointObservations, SeenInEpisodes
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.batch import EPISODES_OF_RUN, ColumnGroup
from marl_connectors.episodes.bootstrap_view import original
from marl_connectors.episodes.packing import chunks_of
from marl_connectors.errors import ConfigError
from marl_connectors.typing import AgentID


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
