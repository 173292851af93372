"""The inputs of central critics: the observations and actions of all agents at an env step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.flattening import Flattener
from marl_connectors.connectors.pipeline_kinds import LEARNER
from marl_connectors.episodes.batch import RUN_EPISODES, ColumnGroup
from marl_connectors.errors import ConnectorError
from marl_connectors.replay_buffers.replay_sample import EnvStepSample
from marl_connectors.replay_buffers.ring import ACTED, TERMINATED
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID

NEW_CRITIC_OBS: Final = "new_critic_obs"
"""``[B, size]``, ``critic_obs`` after the rows' n-step returns. The actions in it are added by the learner."""
PLACES: Final = "agent_places"
"""``[B]`` int64, the place of each row's agent among all agents."""
NEW_ITEMS: Final = "new_items"
"""``[B]`` int64, the number of the env step after each row's n-step return, among those of all items."""


class JointInputs:
    """The layout of a central critic's inputs beside the action that it judges.

    A vector holds four parts: the observation of each agent, flattened, zeros if it is absent; 1 for each agent that is
    present; the one-hot number of the agent whose action is judged; and the action of each other agent, one-hot if it
    is Discrete, zeros if it does not act. An agent that was truncated alone is absent from then on, except in the
    vector of its own last observation, which its target continues from.

    Attributes:
        agent_ids: All agents, in order.
        size: The number of numbers in a vector.
        actions_begin: The position of the first action in a vector.
        presence: The part of a vector that says which agents are present.
        action_bounds: ``[A + 1]``, the positions among all actions at which those of an agent begin and end.
    """

    def __init__(self, agent_spaces: Mapping[AgentID, tuple[Space, Space]]):
        """Works out the layout.

        Args:
            agent_spaces: The observation space (as episodes hold the observations) and action space of each agent.

        Raises:
            ConfigError: If observations or actions of an agent have no fixed size.
        """
        self.agent_ids = list(agent_spaces)
        self._observations = [Flattener(space, scale_bytes=True) for space, _ in agent_spaces.values()]
        self._actions = [Flattener(space, count_from_0=True) for _, space in agent_spaces.values()]
        self._bounds = np.cumsum([0, *(flattener.size for flattener in self._observations)])
        self.action_bounds = np.cumsum([0, *(flattener.size for flattener in self._actions)])
        self.presence = slice(int(self._bounds[-1]), int(self._bounds[-1]) + len(self.agent_ids))
        self.actions_begin = self.presence.stop + len(self.agent_ids)
        self.size = self.actions_begin + int(self.action_bounds[-1])

    def place(self, agent_id: AgentID) -> int:
        """Returns the place of an agent."""
        return self.agent_ids.index(agent_id)

    def of_sample(self, sample: EnvStepSample) -> tuple[np.ndarray, np.ndarray]:
        """Returns the vectors of all env steps, without the number of an agent, and who has left.

        Returns:
            ``[N, W, size]`` float32 vectors, which hold the last observations of agents that have left, too, and
            ``[N, W, A]`` bool, whether an agent was truncated alone by the step before. ``for_agents`` needs both.
        """
        shape = sample.window.sources.shape
        found = np.zeros((*shape, self.size), np.float32)
        left = np.zeros((*shape, len(self.agent_ids)), bool)
        for module_id, agent_ids in sample.agents.items():
            observations, actions = (sample.column(name, module_id) for name in (Columns.OBS, Columns.ACTIONS))
            for slot, agent_id in enumerate(agent_ids):
                place, flags = self.place(agent_id), sample.flags[module_id][:, :, slot]
                acted = (flags & ACTED) > 0
                there = sample.there(module_id)[:, :, slot]
                is_next = acted[:, :-1] & ((flags[:, :-1] & TERMINATED) == 0) & sample.window.same[:, 1:]
                left[:, 1:, place] = is_next & ~there[:, 1:]
                flat = _flat(self._observations[place], observations, slot, shape)
                seen = there | left[..., place]
                found[..., self._bounds[place] : self._bounds[place + 1]] = flat * seen[..., None]
                found[..., self.presence.start + place] = there
                begin, end = self.actions_begin + self.action_bounds[place : place + 2]
                found[..., begin:end] = _flat(self._actions[place], actions, slot, shape) * acted[..., None]
        return found, left

    def for_agents(self, vectors: np.ndarray, left: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Returns ``[B, size]`` vectors for the agents at ``[B]`` places: with their numbers, without their actions.

        Args:
            vectors: ``[B, size]``, some of those that ``of_sample`` returned. They are changed.
            left: ``[B, A]``, what it returned beside them.
            places: ``[B]`` the places of the agents among all agents.
        """
        vectors[np.arange(len(vectors)), self.presence.stop + places] = 1.0
        for place in np.flatnonzero(left.any(0)):
            own = places == place
            vectors[left[:, place] & own, self.presence.start + place] = 1.0
            vectors[left[:, place] & ~own, self._bounds[place] : self._bounds[place + 1]] = 0.0
        for place in np.unique(places):
            begin, end = self.actions_begin + self.action_bounds[place : place + 2]
            vectors[places == place, begin:end] = 0.0
        return vectors


def _flat(flattener: Flattener, column: Any, slot: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns ``[N, W, size]`` items of the agent at a slot of a ``[N, W, K, ...]`` column."""
    own = tree_map(lambda leaf: leaf[:, :, slot].reshape(-1, *leaf.shape[3:]), column)
    return flattener(own).reshape(*shape, -1)


class AddJointInputsToTrainBatch(ConnectorV2):
    """Adds the inputs of central critics to steps from a JointReplayBuffer.

    Reads the observations and actions of all agents; writes ``critic_obs`` and ``new_critic_obs`` (``[B, size]``
    float32, see ``JointInputs``), ``agent_places`` and ``new_items`` to the batch. Keeps no state.

    Args:
        inputs: The layout of the inputs.
    """

    belongs_in = (LEARNER,)
    inputs: JointInputs = argument()

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Adds the columns.

        Raises:
            ConnectorError: If the rows are not of a JointReplayBuffer.
        """
        sample = c.shared_data[RUN_EPISODES].unextended
        if not isinstance(sample, EnvStepSample) or sample.shares_rewards:
            raise ConnectorError(f"expected steps of a JointReplayBuffer, but got a {type(sample).__name__}.")
        if "joint_inputs" not in c.shared_data:
            c.shared_data["joint_inputs"] = self.inputs.of_sample(sample)
        (vectors, left), width = c.shared_data["joint_inputs"], sample.window.sources.shape[1]
        own: list[Any] = [sample.segments[module_id] for module_id in c.module_ids]
        items, ahead = (np.concatenate([getattr(part, name) for part in own]) for name in ("items", "ahead"))
        places = np.concatenate(
            [np.array([self.inputs.place(a) for a in sample.agents[part.module_id]])[part.slots] for part in own]
        )
        c[Columns.CRITIC_OBS] = self.inputs.for_agents(vectors[items, 0], left[items, 0], places)
        c[NEW_CRITIC_OBS] = self.inputs.for_agents(vectors[items, ahead], left[items, ahead], places)
        c[PLACES] = places
        c[NEW_ITEMS] = items * (width - 1) + ahead - 1
