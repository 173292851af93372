"""Puts the environment's state into the train batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import LEARNER, ConnectorV2
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import ConnectorError
from marl_connectors.typing import AgentID


class AddEnvStatesFromEpisodesToTrainBatch(ConnectorV2):
    """Adds ``critic_obs``, the environment's ``state()`` at the time of each agent-step, for a centralised critic.

    Each is a vector ``[size]``: the state, flat, whole numbers of 8 bits scaled to [0, 1]; then, one-hot, whose step it
    is, all zeros for an agent that is not among ``agent_ids``. Where this piece is in the learner pipeline when a run
    is built, its runner records the states. Keeps no state of its own.

    Attributes:
        size: How many numbers a vector has.
    """

    belongs_in = (LEARNER,)
    reads_env_states = True

    def __init__(
        self,
        input_observation_space: Space | None = None,
        input_action_space: Space | None = None,
        *,
        state_space: Space,
        agent_ids: Iterable[AgentID] | None = None,
    ):
        """Builds the piece.

        Args:
            input_observation_space: As for every piece.
            input_action_space: As for every piece.
            state_space: The environment's.
            agent_ids: Who is told apart, in order; None for the agents of ``input_observation_space``, if it is a Dict
                of agents, else for nobody.
        """
        super().__init__(input_observation_space, input_action_space)
        self.state_space = state_space
        self._flattener = Flattener(state_space, scale_bytes=True)
        self._given = None if agent_ids is None else list(agent_ids)

    @property
    def agent_ids(self) -> list[AgentID]:
        """Who is told apart, in order."""
        if self._given is None and isinstance(self.input_observation_space, spaces.Dict):
            return list(self.input_observation_space.spaces)
        return self._given or []

    @property
    def size(self) -> int:
        """How many numbers a vector has."""
        return self._flattener.size + len(self.agent_ids)

    def _at(self, rows: Rows) -> np.ndarray:
        """``[B, size]`` float32. A hot path: nothing in Python for each row."""
        if not rows.has(Columns.ENV_STATE):
            raise ConnectorError(
                "the episodes hold no states of the environment. Those that a run's own runner samples do, if this "
                "piece was in its learner pipeline when it was built; copies and slices of episodes, and episodes that "
                "were made by hand, do not."
            )
        agent_ids, size = self.agent_ids, self._flattener.size
        out = np.zeros((len(rows), size + len(agent_ids)), np.float32)
        out[:, :size] = self._flattener(rows.get(Columns.ENV_STATE))
        slots = {agent_id: size + slot for slot, agent_id in enumerate(agent_ids)}
        own = np.repeat([slots.get(chunk.agent_id, -1) for chunk in rows.chunks], rows.counts)
        known = np.flatnonzero(own >= 0)
        out[known, own[known]] = 1.0
        return out

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """Reads the states of all rows of a group at once."""
        if Columns.CRITIC_OBS not in columns:
            columns[Columns.CRITIC_OBS] = self._at(columns.rows)
