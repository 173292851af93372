"""How many steps were sampled, by agent and by module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from marl_connectors.episodes.multi_agent_episode import REMEMBERED_AGENTS
from marl_connectors.typing import AgentID, ModuleID

if TYPE_CHECKING:
    import numpy as np

    from marl_connectors.env_runners.lane_table import LaneGroup


class StepCounts:
    """Counts whole layouts of lanes, as long as they last: an addition a vector step, whoever acts in it.

    Attributes:
        vector_steps: Taken in the current layout, and not yet in the counts.
    """

    def __init__(self) -> None:
        self.vector_steps = 0
        self._clear()

    def _clear(self) -> None:
        self._env_steps = 0
        self._agents: Counter[AgentID] = Counter()
        self._modules: Counter[ModuleID] = Counter()

    def end_layout(self, groups: Iterable[LaneGroup], num_envs: int) -> None:
        """Counts the steps of the lanes that have acted, before others do or before the counts are read."""
        steps, self.vector_steps = self.vector_steps, 0
        if steps:
            self._env_steps += steps * num_envs
            for group in groups:
                group.count_steps(steps)

    def settle(self, group: LaneGroup, numbers: np.ndarray) -> None:
        """Counts what some lanes of a group have done, before they are other agents' or act for other modules."""
        counted = group.num_steps[numbers]
        group.num_steps[numbers] = 0
        for lane, steps in zip(group.at(numbers), counted.tolist(), strict=True):
            if steps:
                self._agents[lane.agent_id] += steps
                self._modules[lane.module_id] += steps
        for agent_id in list(islice(self._agents, max(len(self._agents) - REMEMBERED_AGENTS, 0))):
            del self._agents[agent_id]

    def take(self) -> dict[str, Any]:
        """The counts since the last call."""
        counts = {
            "num_env_steps_sampled": self._env_steps,
            "num_agent_steps_sampled": dict(self._agents),
            "num_module_steps_sampled": dict(self._modules),
        }
        self._clear()
        return counts

    def get_state(self) -> dict[str, Any]:
        """The counts since the last ``take``, once they are settled."""
        return {
            "env_steps": self._env_steps,
            "agents": [[agent_id, steps] for agent_id, steps in self._agents.items()],
            "modules": [[module_id, steps] for module_id, steps in self._modules.items()],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes what ``get_state`` gave."""
        self._env_steps = state["env_steps"]
        self._agents = Counter(dict(state["agents"]))
        self._modules = Counter(dict(state["modules"]))
