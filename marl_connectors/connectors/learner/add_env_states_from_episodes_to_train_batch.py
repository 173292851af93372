"""Adds the environment's state to the train batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConnectorError
from marl_connectors.typing import AgentID


class AddEnvStatesFromEpisodesToTrainBatch(ConnectorV2):
    """Adds ``critic_obs``, the environment's ``state()`` at the time of each agent-step, for a centralised critic.

    Each row is a vector ``[size]``: the flattened state, with integers of 8 bits scaled to [0, 1], and then the one-hot
    number of the row's agent, which is all zeros for an agent that is not in ``agent_ids``. A runner records the states
    if this piece is in the learner pipeline when the run is built.

    Reads ``env_state`` of the episodes; writes ``critic_obs`` to the batch, ``[B, size]`` float32. Keeps no state.

    Attributes:
        size: The number of numbers in a vector.

    Args:
        state_space: The space of the environment's state.
        agent_ids: The agents with a one-hot number, in order. None stands for the agents of
            ``input_observation_space`` if it is a Dict by agent id, else for no agents.
    """

    belongs_in = (LEARNER,)
    reads_env_states = True
    state_space: Space = argument()
    agent_ids: Iterable[AgentID] | None = argument(default=None)

    def begin(self) -> None:
        super().begin()
        self._flattener = Flattener(self.state_space, scale_bytes=True)
        self.agent_ids = None if self.agent_ids is None else list(self.agent_ids)

    @property
    def numbered_agents(self) -> list[AgentID]:
        """The agents with a one-hot number, in order."""
        if self.agent_ids is None and isinstance(self.input_observation_space, spaces.Dict):
            return list(self.input_observation_space.spaces)
        return list(self.agent_ids or ())

    @property
    def size(self) -> int:
        """The number of numbers in a vector."""
        return self._flattener.size + len(self.numbered_agents)

    def _at(self, rows: Rows) -> np.ndarray:
        """Returns ``[B, size]`` float32."""
        if not rows.has(Columns.ENV_STATE):
            raise ConnectorError(
                "the episodes hold no states of the environment. A run records them if this piece is in its learner "
                "pipeline when it is built. Copies and slices of episodes, and episodes that were made by hand, have "
                "none. Train on the episodes that the run's own runner has sampled."
            )
        agent_ids, size = self.numbered_agents, self._flattener.size
        out = np.zeros((len(rows), size + len(agent_ids)), np.float32)
        out[:, :size] = self._flattener(rows.get(Columns.ENV_STATE))
        slots = {agent_id: size + slot for slot, agent_id in enumerate(agent_ids)}
        own = np.repeat([slots.get(chunk.agent_id, -1) for chunk in rows.chunks], rows.counts)
        known = np.flatnonzero(own >= 0)
        out[known, own[known]] = 1.0
        return out

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the vectors of all rows of a group at once."""
        if Columns.CRITIC_OBS not in c:
            c[Columns.CRITIC_OBS] = self._at(c.rows)
