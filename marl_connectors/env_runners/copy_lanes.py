"""The lanes of all environment copies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.env_runners.lanes import Lane, LaneGroup
from marl_connectors.env_runners.lanes_by_copy import LanesByCopy, SomeLanes
from marl_connectors.environments.env_copy import EnvCopy
from marl_connectors.rl_module.module_states import state_kind
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.typing import AgentID, ModuleID

_REMEMBERED_SPACES = 1000
"""Of so many pairs of spaces it is remembered which group they belong to: comparing spaces takes its time."""


class CopyLanes:
    """Finds lanes by environment copy and agent, opens and closes them.

    Attributes:
        groups: The lanes, by observation and action space, and by the kind of module: by the state that it has, and by
            the observations and actions that it knows, which pieces may have changed for some agents only.
        ongoing: Each copy's episode; the list stays the same.
        by_copy: For each copy, agent to lane, in the order in which the copy lists its agents.
    """

    def __init__(
        self,
        num_copies: int,
        agent_spaces: Callable[[AgentID], tuple[Space, Space]],
        rl_module: MultiRLModule,
        lookback: int,
    ):
        self.groups: list[LaneGroup] = []
        self.ongoing: list[Any] = []
        self._group_agents: list[AgentID] = []
        self._in_arrays: LanesByCopy | None = None
        self.by_copy: list[dict[AgentID, Lane]] = [{} for _ in range(num_copies)]
        self._known_spaces: dict[tuple[int, int, Hashable], tuple[LaneGroup, Space, Space]] = {}
        self._agent_spaces = agent_spaces
        self._rl_module = rl_module
        self._lookback = lookback
        self._kinds: dict[ModuleID, tuple[RLModule, Hashable]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what is known of objects by their place in memory."""
        return {**vars(self), "_known_spaces": {}}

    def in_order(self) -> list[Lane]:
        """All live lanes, in the order of the copies and their agents."""
        return [lane for lanes in self.by_copy for lane in lanes.values()]

    def acting(self) -> list[Lane]:
        """The lanes that act next, in the same order."""
        if any(group.rollout.pending.any() for group in self.groups):
            return [lane for lane in self.in_order() if not (lane.rests or lane.is_waiting)]
        return [lane for lane in self.in_order() if not lane.rests]

    def in_arrays(self) -> LanesByCopy:
        """All live lanes, in the same order."""
        if self._in_arrays is None:
            self._in_arrays = LanesByCopy(self.groups, self.by_copy)
        return self._in_arrays

    def of_copies(self, indices: Sequence[int]) -> SomeLanes:
        """The lanes of some copies."""
        return self.in_arrays().of_copies(np.array(indices, np.int64))

    def open(self, env_index: int, agent_id: AgentID, module_id: ModuleID) -> Lane:
        """Gives an agent a lane that is fit for a module."""
        group = self._group_of(agent_id, module_id)
        return self._add(group.open(env_index, agent_id))

    def fit(self, env_index: int, modules: Mapping[AgentID, ModuleID]) -> bool:
        """Whether exactly these agents, in this order, have lanes that are fit for these modules."""
        lanes = self.by_copy[env_index]
        return list(lanes) == list(modules) and all(
            lane.group.kind == self._kind(modules[agent_id]) for agent_id, lane in lanes.items()
        )

    def reopen(self, group_index: int, number: int, env_index: int, slot: int, agent_id: AgentID) -> Lane:
        """Gives an agent the lane that it had at a checkpoint."""
        return self._add(self.groups[group_index].reopen(number, env_index, slot, agent_id))

    def _add(self, lane: Lane) -> Lane:
        self._in_arrays = None
        lane.group.lanes.append(lane)
        self.by_copy[lane.env_index][lane.agent_id] = lane
        return lane

    def close(self, env_index: int, agent_ids: Sequence[AgentID]) -> None:
        """Frees the lanes of some of a copy's agents."""
        lanes = self.by_copy[env_index]
        self._in_arrays = None
        for agent_id in agent_ids:
            lane = lanes.pop(agent_id)
            lane.group.lanes.remove(lane)
            lane.group.close(lane)

    def restart(self) -> None:
        """Frees all lanes, and lets all groups begin in fresh rollouts of the size that they have."""
        self._kinds = {module_id: own for module_id, own in self._kinds.items() if module_id in self._rl_module}
        for env_index, lanes in enumerate(self.by_copy):
            self.close(env_index, list(lanes))
        for group in self.groups:
            group.restart(group.rollout.num_rows - self._lookback - 2)

    def clear(self) -> None:
        """Forgets all lanes and groups."""
        self.groups, self._group_agents, self._in_arrays = [], [], None
        self._known_spaces = {}
        self.by_copy = [{} for _ in self.by_copy]

    def make_room(self, modules_by_copy: Sequence[Mapping[AgentID, ModuleID]]) -> None:
        """Makes the rollouts wide enough for the agents of all copies."""
        counts: dict[LaneGroup, list[int]] = {}
        for env_index, modules in enumerate(modules_by_copy):
            for agent_id, module_id in modules.items():
                per_copy = counts.setdefault(self._group_of(agent_id, module_id), [0] * len(self.by_copy))
                per_copy[env_index] += 1
        for group, per_copy in counts.items():
            group.make_room(sum(per_copy))
            group.num_slots = group.num_slots or max(per_copy)

    def _group_of(self, agent_id: AgentID, module_id: ModuleID) -> LaneGroup:
        observation_space, action_space = self._agent_spaces(agent_id)
        kind = self._kind(module_id)
        key = (id(observation_space), id(action_space), kind)
        if key in self._known_spaces:
            return self._known_spaces[key][0]
        matching = (group for group in self.groups if group.matches(observation_space, action_space, kind))
        group = next(matching, None) or self.add_group(agent_id, module_id)
        if len(self._known_spaces) >= _REMEMBERED_SPACES:
            self._known_spaces.clear()
        self._known_spaces[key] = group, observation_space, action_space
        return group

    def know(self, module_ids: Collection[ModuleID]) -> bool:
        """Whether these modules are still the very ones that lanes were opened for."""
        known, modules = self._kinds, self._rl_module
        return all(m in known and m in modules and known[m][0] is modules[m] for m in set(module_ids))

    def _kind(self, module_id: ModuleID) -> Hashable:
        module = self._rl_module[module_id]
        known = self._kinds.get(module_id)
        if known is None or known[0] is not module:
            wanted = module.observation_space
            described = [None if s is None else spaces.describe(s) for s in (wanted, module.action_space)]
            kind = state_kind(module), *described
            known = self._kinds[module_id] = (module, kind)
        return known[1]

    def get_members(self) -> list[list[Any]]:
        """What ``add_group`` takes to make each group again: an agent, a module of now, and whether it is over."""
        found = []
        for group, agent_id in zip(self.groups, self._group_agents, strict=True):
            module_id = next((m for m in self._rl_module if self._kind(m) == group.kind), None)
            found.append([agent_id, module_id, module_id is None])
        return found

    def add_group(self, agent_id: AgentID, module_id: ModuleID | None, is_over: bool = False) -> LaneGroup:
        """A group for agents with spaces like this one's, and modules of this one's kind.

        Args:
            agent_id: Whose spaces.
            module_id: Whose kind.
            is_over: Whether all modules of this kind were removed, so that no lanes will be opened here.
        """
        kind = "over" if is_over or module_id is None else self._kind(module_id)
        recorded = None if is_over or module_id is None else self._rl_module[module_id].action_space
        its_spaces = self._agent_spaces(agent_id)
        group = LaneGroup(len(self.groups), *its_spaces, self._lookback, kind, recorded, self.ongoing)
        self.groups.append(group)
        self._group_agents.append(agent_id)
        return group

    def set_clocks(self, copies: Sequence[EnvCopy]) -> None:
        """Tells all groups the env step that each of their lanes is at, after copies began anew."""
        t = np.array([copy.t for copy in copies], np.int32)
        for group in self.groups:
            group.t = t[group.env_indices]

    def set_rest(self, copy: EnvCopy) -> bool:
        """Lets a copy's agents rest, or act, as it says; whether they did otherwise before."""
        lanes = self.by_copy[copy.index].values()
        changed = any(lane.rests != copy.rests for lane in lanes)
        for lane in lanes:
            lane.rests = copy.rests
        return changed

    def write_infos(self, env_index: int, infos: dict[AgentID, dict[str, Any]]) -> None:
        """Keeps the infos that came with live agents' newest observations."""
        for agent_id, lane in self.by_copy[env_index].items():
            info = infos.get(agent_id)
            if info:
                rollout = lane.group.rollout
                rollout.infos[int(rollout.cursor[lane.number])] = info
