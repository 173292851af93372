"""Which agent of which sub-environment stands in which lane, and which lanes act next, in what order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.env_runners.lane_group import Lane, LaneGroup, Pick, picker
from marl_connectors.episodes.agent_views import EndedLanes
from marl_connectors.episodes.multi_agent_episode import REMEMBERED_AGENTS
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.rl_module.states import state_kind
from marl_connectors.typing import AgentID, ModuleID

_REMEMBERED_SPACES = 1000
"""Of so many pairs of spaces it is remembered which group they belong to: comparing spaces takes its time."""


class LanesOfEnvs:
    """``N`` lanes of whole sub-environments, in the order of these and their agents.

    Attributes:
        groups: All groups.
        group: ``[N]`` the group of each.
        number: ``[N]`` its number there.
        begins: Where the lanes of each sub-environment begin.
        counts: How many each has.
        by_group: Each group that has some of the lanes, their places among them, and their numbers in the group.
    """

    __slots__ = ("begins", "by_group", "counts", "group", "groups", "number")

    def __init__(self, groups: tuple[LaneGroup, ...], group: np.ndarray, number: np.ndarray, counts: np.ndarray):
        self.groups, self.group, self.number, self.counts = groups, group, number, counts
        self.begins = np.cumsum(counts) - counts
        self.by_group: list[tuple[LaneGroup, slice | np.ndarray, np.ndarray]] = []
        for index, own in enumerate(groups):
            places = np.flatnonzero(group == index)
            if len(places) == len(number) > 0:
                self.by_group.append((own, slice(None), number))
            elif len(places):
                self.by_group.append((own, places, number[places]))

    def gathered(self, read: Callable[[LaneGroup, np.ndarray], np.ndarray]) -> np.ndarray:
        """``[N]`` what ``read(group, numbers)`` gives for the lanes of each group."""
        found = [(places, read(group, numbers)) for group, places, numbers in self.by_group]
        if len(found) == 1:
            return found[0][1]
        values = np.empty(len(self.number), np.result_type(*(own for _, own in found)) if found else np.int64)
        for places, own in found:
            values[places] = own
        return values

    def ended(self, terminated: np.ndarray, truncated: np.ndarray) -> EndedLanes:
        """Where the agents' chunks are, which end at their newest rows."""
        return EndedLanes(
            rollouts=tuple(group.rollout for group in self.groups),
            which=self.group,
            lane=self.number,
            first_row=self.gathered(lambda group, numbers: group.first_row[numbers]),
            start_row=self.gathered(lambda group, numbers: group.start_row[numbers]),
            stop_row=self.gathered(lambda group, numbers: group.rows_of(numbers)),
            t_started=self.gathered(lambda group, numbers: group.t_started[numbers]),
            terminated=terminated,
            truncated=truncated,
        )


class LaneTable:
    """Finds lanes by sub-environment and agent, opens and closes them, and says which act next.

    Attributes:
        groups: The lanes, by observation and action space, and by the kind of module: by the state that it has, and by
            the observations and actions that it knows, which pieces may have changed for some agents only.
        ongoing: The episode of each sub-environment; the list stays the same.
        by_env: For each sub-environment, agent to lane, in the order in which it lists its agents.
        module_ids: All modules that lanes ever acted for.
        live: The groups with lanes that act next, and what picks a group's items from those of all agents that act,
            which stand in the order of the sub-environments and their agents; None where nothing is to be picked.
        pick_actions: What picks the actions of all agents, in that order, from those of all groups in a row.
        counts: Of the steps that agents and modules have made.
    """

    def __init__(
        self,
        num_envs: int,
        agent_spaces: Callable[[AgentID], tuple[Space, Space]],
        rl_module: MultiRLModule,
        lookback: int,
    ):
        self.groups: list[LaneGroup] = []
        self.ongoing: list[Any] = []
        self.by_env: list[dict[AgentID, Lane]] = [{} for _ in range(num_envs)]
        self.live: list[tuple[LaneGroup, Pick | None]] = []
        self.pick_actions: Pick | None = None
        self.counts = StepCounts()
        self._group_agents: list[AgentID] = []
        self._known_spaces: dict[tuple[int, int, Hashable], tuple[LaneGroup, Space, Space]] = {}
        self._agent_spaces = agent_spaces
        self._rl_module = rl_module
        self._lookback = lookback
        self._kinds: dict[ModuleID, tuple[RLModule, Hashable]] = {}
        self._num_rows = 0
        self._arrays: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._asked: tuple[Sequence[int], LanesOfEnvs] | None = None
        self._members: dict[int, tuple[tuple[AgentID, ...], tuple[ModuleID, ...]]] = {}
        self.module_ids: list[ModuleID] = []
        self._module_places: dict[ModuleID, int] = {}
        self._changed: set[int] = set()  # sub-environments whose agents' ranks are to be found anew
        self._num_ranks = 0
        self._is_sorted = True

    def __getstate__(self) -> dict[str, Any]:
        """Without what is known of objects by their place in memory."""
        return {**vars(self), "_known_spaces": {}}

    # Lanes come and go.

    def in_order(self) -> list[Lane]:
        """All live lanes, in the order of the sub-environments and their agents."""
        return [lane for lanes in self.by_env for lane in lanes.values()]

    def members(self, env_index: int) -> tuple[tuple[AgentID, ...], tuple[ModuleID, ...]]:
        """The agents of a sub-environment that have lanes, and the modules that act for them."""
        known = self._members.get(env_index)
        if known is None:
            lanes = self.by_env[env_index]
            module_ids = tuple([lane.module_id for lane in lanes.values()])
            known = self._members[env_index] = tuple(lanes), module_ids
        return known

    def of_envs(self, indices: Sequence[int]) -> LanesOfEnvs:
        """The lanes of some sub-environments, one at least; the same object if the same are asked for again."""
        if self._asked is not None and self._asked[0] == indices:
            return self._asked[1]
        if self._arrays is None:
            lanes = self.in_order()
            self._arrays = (
                np.cumsum([0, *map(len, self.by_env)]),
                np.array([lane.group.index for lane in lanes], np.int64),
                np.array([lane.number for lane in lanes], np.int64),
            )
        bounds, group, number = self._arrays
        which = np.asarray(indices, np.int64)
        begins, counts = bounds[which], bounds[which + 1] - bounds[which]
        ends = np.cumsum(counts)
        which = np.repeat(begins - ends + counts, counts) + np.arange(int(ends[-1]))
        found = LanesOfEnvs(tuple(self.groups), group[which], number[which], counts)
        self._asked = indices, found
        return found

    def open(self, agents: Sequence[tuple[int, AgentID, ModuleID]]) -> None:
        """Gives agents lanes that are fit for their modules, and lets their episodes begin there.

        Args:
            agents: Their sub-environments, who they are, and who acts for them.
        """
        by_group: dict[LaneGroup, list[tuple[int, AgentID, ModuleID]]] = {}
        groups: dict[tuple[AgentID, ModuleID], LaneGroup] = {}
        for own in agents:
            group = groups.get(own[1:])
            if group is None:
                group = groups[own[1:]] = self._group_of(*own[1:])
            by_group.setdefault(group, []).append(own)
        opened = {group: iter(group.open(own)) for group, own in by_group.items()}
        for own in agents:
            self._add(next(opened[groups[own[1:]]]))

    def fit(self, env_index: int, modules: Mapping[AgentID, ModuleID]) -> bool:
        """Whether exactly these agents, in this order, have lanes that are fit for these modules."""
        lanes = self.by_env[env_index]
        return list(lanes) == list(modules) and all(
            lane.group.kind == self._kind(modules[agent_id]) for agent_id, lane in lanes.items()
        )

    def reopen(self, group_index: int, number: int, env_index: int, agent_id: AgentID, module_id: ModuleID) -> Lane:
        """Gives an agent the lane that it had at a checkpoint."""
        lane = self.groups[group_index].reopen(number, env_index, agent_id, module_id)
        self._add(lane)
        return lane

    def _add(self, lane: Lane) -> None:
        self._change(lane.env_index)
        self.by_env[lane.env_index][lane.agent_id] = lane
        lane.group.module_of[lane.number] = self._place_of(lane.module_id)

    def _change(self, env_index: int) -> None:
        self._arrays, self._asked, self._is_sorted = None, None, False
        self._changed.add(env_index)
        self._members.pop(env_index, None)

    def _place_of(self, module_id: ModuleID) -> int:
        place = self._module_places.get(module_id)
        if place is None:
            place = self._module_places[module_id] = len(self.module_ids)
            self.module_ids.append(module_id)
        return place

    def set_module(self, lane: Lane, module_id: ModuleID) -> None:
        """From now on, this module chooses the actions of a lane's agent."""
        if lane.module_id != module_id:
            self.counts.settle(lane.group, np.array([lane.number]))
            self._is_sorted = False
            self._members.pop(lane.env_index, None)
            lane.module_id = module_id
            lane.group.module_of[lane.number] = self._place_of(module_id)

    def close(self, lanes: Collection[Lane]) -> None:
        """Frees lanes."""
        by_group: dict[LaneGroup, list[int]] = {}
        for lane in lanes:
            self._change(lane.env_index)
            del self.by_env[lane.env_index][lane.agent_id]
            by_group.setdefault(lane.group, []).append(lane.number)
        for group, numbers in by_group.items():
            which = np.array(numbers)
            self.counts.settle(group, which)
            group.close(which)

    def clear(self) -> None:
        """Forgets all lanes and groups, so that what comes next does not depend on what was before.

        New groups have room for as many rows as the largest one had.
        """
        self.settle_counts()
        self._kinds = {module_id: own for module_id, own in self._kinds.items() if module_id in self._rl_module}
        self._num_rows = max([group.rollout.num_rows for group in self.groups], default=0)
        self.groups, self._group_agents, self._arrays, self._asked, self.live = [], [], None, None, []
        self._known_spaces, self._changed, self._members = {}, set(), {}
        self.by_env = [{} for _ in self.by_env]

    def settle_counts(self) -> None:
        """Counts what all lanes have done."""
        for group in self.groups:
            self.counts.settle(group, np.flatnonzero(group.is_live))

    def open_all(self, modules_by_env: Sequence[Mapping[AgentID, ModuleID]]) -> None:
        """Gives the agents of all sub-environments lanes, module by module: so the rows of a module are a slice."""
        wanted: dict[ModuleID, list[tuple[int, AgentID, ModuleID]]] = {module_id: [] for module_id in self._rl_module}
        for env_index, modules in enumerate(modules_by_env):
            for agent_id, module_id in modules.items():
                wanted[module_id].append((env_index, agent_id, module_id))
        self.open([own for agents in wanted.values() for own in agents])
        if len(wanted) > 1:
            self.by_env = [
                {agent_id: lanes[agent_id] for agent_id in modules}
                for lanes, modules in zip(self.by_env, modules_by_env, strict=True)
            ]

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
        group = LaneGroup(len(self.groups), *its_spaces, self._lookback, kind, recorded, self.ongoing, self._num_rows)
        self.groups.append(group)
        self._group_agents.append(agent_id)
        return group

    # Which lanes act next.

    def arrange(self) -> None:
        """Works out which lanes act next, and in what order, after lanes came, went, or began to wait or to rest."""
        for env_index in self._changed:
            for rank, lane in enumerate(self.by_env[env_index].values()):
                lane.group.rank[lane.number] = rank
        self._changed.clear()
        if not self._is_sorted:
            places = {module_id: i for i, module_id in enumerate(self._rl_module.keys())}
            module_order = np.array([places.get(module_id, -1) for module_id in self.module_ids], np.int64)
            for group in self.groups:
                group.sort(module_order)
            self._num_ranks = max(map(len, self.by_env), default=0)
            self._is_sorted = True
        for group in self.groups:
            group.select(self.module_ids, self._num_ranks)
        groups = [group for group in self.groups if group.num_acting]
        if len(groups) == len(groups[:1]) == 1 and len(groups[0].rows.module_ids) == 1:  # they stand in that order
            self.live, self.pick_actions = [(groups[0], None)], None
            return
        places = [group.places for group in groups]
        by_env = np.argsort(np.concatenate(places) if groups else np.zeros(0, np.int64))
        row_of = np.empty(len(by_env), np.int64)
        row_of[by_env] = np.arange(len(by_env))
        bounds = np.cumsum([0, *map(len, places)]).tolist()
        self.live = [
            (group, picker(row_of[begin:end], len(by_env)))
            for group, (begin, end) in zip(groups, pairwise(bounds), strict=True)
        ]
        self.pick_actions = picker(by_env, len(by_env))

    def set_clocks(self, t: np.ndarray) -> None:
        """Tells all groups the env step that each of their lanes is at.

        Args:
            t: ``[num_envs]`` that of each sub-environment.
        """
        for group in self.groups:
            group.t = t[group.env_indices].astype(np.int32)

    def set_rest(self, env_index: int, rests: bool) -> bool:
        """Lets a sub-environment's agents rest, or act; whether they did otherwise before."""
        changed = False
        for lane in self.by_env[env_index].values():
            changed |= bool(lane.group.rests[lane.number]) != rests
            lane.group.rests[lane.number] = rests
        return changed

    def write_infos(self, env_index: int, infos: dict[AgentID, dict[str, Any]]) -> None:
        """Keeps the infos that came with live agents' newest observations."""
        lanes = self.by_env[env_index]
        for agent_id, info in infos.items():
            lane = lanes.get(agent_id)
            if lane is not None and info:
                rollout = lane.group.rollout
                rollout.infos[int(rollout.cursor[lane.number])] = info


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
