"""Adds the states by which a mixer weighs the values of all agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import RUN_EPISODES, ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.replay_buffers.replay_sample import EnvStepSample
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, ModuleID

MIXER_STATE = "mixer_state"
"""``[B, size]`` float32, the state of each row's env step, the same for all agents."""


class AddMixerStatesToTrainBatch(ConnectorV2):
    """Adds ``mixer_state``, what a mixer knows of an env step: the observations of all agents, or the env's state.

    With observations, a vector has each agent's observation, in the order of ``agents``, zeros for agents that are not
    there, and then a number for each agent: 1 if it is there, else 0. Observations are those in the episodes. They are
    flattened, with integers of 8 bits scaled to [0, 1]. With ``state_space``, a vector is the flattened ``state()`` of
    the environment, which a runner records if this piece is in the learner pipeline when the run is built.

    Reads the rows of all agents in a sample of a ``TeamReplayBuffer``; writes ``mixer_state`` to the batch. Keeps no
    state.

    Attributes:
        size: The number of numbers in a vector.
        reads_env_states: Whether the vectors are the environment's states.

    Args:
        agents: All agents that can appear, by module.
        agent_spaces: The observation space of each agent, as the episodes hold its observations. It is not needed
            with a ``state_space``.
        state_space: The space of the environment's state; None for observations.
    """

    belongs_in = (LEARNER,)
    agents: Mapping[ModuleID, Sequence[AgentID]] = argument()
    agent_spaces: Mapping[AgentID, Space] | None = argument(default=None)
    state_space: Space | None = argument(default=None)

    def begin(self) -> None:
        super().begin()
        self.reads_env_states = self.state_space is not None
        if self.state_space is not None:
            self._of_state = Flattener(self.state_space, scale_bytes=True)
            self.size = self._of_state.size
            return
        found, agents = self.agent_spaces or {}, self.agents.items()
        self._flatteners = {m: Flattener(found[own[0]], scale_bytes=True) for m, own in agents if own}
        self.size = sum((self._flatteners[m].size + 1) * len(own) for m, own in agents if own)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the vectors of all rows of a group at once.

        Raises:
            ConnectorError: If the rows are not of a ``TeamReplayBuffer``, or have no states.
        """
        sample = c.shared_data[RUN_EPISODES].unextended
        if not isinstance(sample, EnvStepSample) or not sample.shares_rewards:
            raise ConnectorError("expected a sample of a TeamReplayBuffer, as the rows of all agents are needed.")
        if MIXER_STATE not in c.shared_data:
            states = self._env_states(sample) if self.reads_env_states else self._observations(sample)
            c.shared_data[MIXER_STATE] = states.reshape(-1, self.size)
        at = [sample.segments[module_id].env_steps for module_id in c.module_ids]
        c[MIXER_STATE] = c.shared_data[MIXER_STATE][np.concatenate(at)]

    def _observations(self, sample: EnvStepSample) -> np.ndarray:
        """Returns ``[N, W, size]`` vectors of observations."""
        shape, parts, presence = sample.window.same.shape, [], []
        for module_id, flattener in self._flatteners.items():
            number = len(self.agents[module_id])
            if module_id not in sample.flags:  # none of its agents was ever there
                parts.append(np.zeros((*shape, number * flattener.size), np.float32))
                presence.append(np.zeros((*shape, number), np.float32))
                continue
            is_there = sample.there(module_id)
            rows = tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), sample.observations(module_id))
            flat = np.asarray(flattener(rows)).reshape(*shape, number, flattener.size)
            parts.append(np.where(is_there[..., None], flat, 0).reshape(*shape, -1))
            presence.append(is_there)
        return np.concatenate([*parts, *presence], -1, dtype=np.float32)

    def _env_states(self, sample: EnvStepSample) -> np.ndarray:
        """Returns ``[N, W, size]`` flattened states."""
        states = sample.env_states()
        if states is None:
            raise ConnectorError(
                "the replay buffer holds no states of the environment. A run records them if this piece is in its "
                "learner pipeline when it is built."
            )
        flat = np.asarray(self._of_state(tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), states)))
        return flat.reshape(*sample.window.same.shape, -1).astype(np.float32)
