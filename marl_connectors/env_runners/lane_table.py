"""The lane table: it maps agents of sub-environments to lanes, and computes the lane layout of each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from operator import attrgetter
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.env_runners.lane_group import Lane, LaneGroup, LanesState, Pick, RestoredLanes, picker
from marl_connectors.episodes.action_units import MODULE
from marl_connectors.episodes.agent_views import AgentChunk, EndedLanes
from marl_connectors.episodes.multi_agent_episode import REMEMBERED_AGENTS
from marl_connectors.episodes.packing import chunks_of
from marl_connectors.errors import CheckpointError
from marl_connectors.names import brief
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.rl_module.states import output_kind
from marl_connectors.state import ID, Count, State
from marl_connectors.typing import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID, AgentID, ModuleID, Tree

_REMEMBERED_SPACES = 1000
"""The number of pairs of spaces whose group the table remembers, because comparing spaces is slow."""


class EnvLanes:
    """All ``N`` lanes of some sub-environments, in the order of these sub-environments and their agents.

    Attributes:
        groups: All groups.
        group: ``[N]``, the index of each lane's group.
        number: ``[N]``, the number of each lane in its group.
        begins: The index of each sub-environment's first lane among the ``N`` lanes.
        counts: The number of lanes of each sub-environment.
        by_group: For each group with some of the lanes: the group, the indices of its lanes among the ``N`` lanes, and
            their numbers in the group.
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
        """Calls ``read(group, numbers)`` for each group, and returns ``[N]`` the results in the order of the lanes."""
        found = [(places, read(group, numbers)) for group, places, numbers in self.by_group]
        if len(found) == 1:
            return found[0][1]
        values = np.empty(len(self.number), np.result_type(*(own for _, own in found)) if found else np.int64)
        for places, own in found:
            values[places] = own
        return values

    def ended(self, terminated: np.ndarray, truncated: np.ndarray) -> EndedLanes:
        """Returns the positions of the agents' chunks, which end at their newest rows.

        Args:
            terminated: ``[N]`` bool, whether each agent has terminated.
            truncated: ``[N]`` bool, whether each agent was truncated.
        """
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
    """Finds, opens and closes the lanes of agents, and computes which lanes act next.

    Attributes:
        groups: The groups of lanes. A group has the lanes of agents with equal observation and action spaces and
            modules of the same kind. A kind is the structure of the module's state, its observation space and its
            action space, which connector pieces may have changed for some agents only.
        ongoing: The ongoing episode of each sub-environment. It stays the same list object.
        by_env: For each sub-environment, agent id to lane, in the order of the sub-environment's agents.
        module_ids: All modules that lanes have had.
        live: The groups with lanes that act next, each with a Pick. It selects the group's items from those of all
            agents that act, in the order of the sub-environments and their agents. It is None if the group has them all
            in this order. The groups are sorted by their ``sort_key``, so that their order does not depend on the order
            in which agents joined.
        pick_actions: Reorders the concatenated actions of all groups into that order. None if they are in it.
        counts: The counts of steps by agent and by module.
    """

    def __init__(
        self,
        num_envs: int,
        agent_spaces: Callable[[AgentID], tuple[Space, Space]],
        rl_module: MultiRLModule,
        lookback: int,
        action_units: str = MODULE,
    ):
        self.groups: list[LaneGroup] = []
        self.ongoing: list[Any] = []
        self.by_env: list[dict[AgentID, Lane]] = [{} for _ in range(num_envs)]
        self.live: list[tuple[LaneGroup, Pick | None]] = []
        self.pick_actions: Pick | None = None
        self.counts = StepCounts()
        self._known_spaces: dict[tuple[int, int, Hashable], tuple[LaneGroup, Space, Space]] = {}
        self._agent_spaces = agent_spaces
        self._rl_module = rl_module
        self._lookback = lookback
        self._action_units = action_units
        self._kinds: dict[ModuleID, tuple[RLModule, Hashable]] = {}
        self._num_rows = 0
        self._arrays: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._asked: tuple[Sequence[int], EnvLanes] | None = None
        self._members: dict[int, tuple[tuple[AgentID, ...], tuple[ModuleID, ...]]] = {}
        self._places_of_kinds: dict[Hashable, int] = {}
        self.module_ids: list[ModuleID] = []
        self._module_places: dict[ModuleID, int] = {}
        self._changed: set[int] = set()  # sub-environments whose agents' ranks must be computed again
        self._num_ranks = 0
        self._is_sorted = True

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state without the data that is keyed by objects' ids in memory."""
        return {**vars(self), "_known_spaces": {}}

    # Opening and closing lanes.

    def in_order(self) -> list[Lane]:
        """Returns all live lanes, in the order of the sub-environments and their agents."""
        return [lane for lanes in self.by_env for lane in lanes.values()]

    def members(self, env_index: int) -> tuple[tuple[AgentID, ...], tuple[ModuleID, ...]]:
        """Returns the agents of a sub-environment that have lanes, and their modules."""
        known = self._members.get(env_index)
        if known is None:
            lanes = self.by_env[env_index]
            module_ids = tuple([lane.module_id for lane in lanes.values()])
            known = self._members[env_index] = tuple(lanes), module_ids
        return known

    def of_envs(self, indices: Sequence[int]) -> EnvLanes:
        """Returns the lanes of sub-environments, the same object for the same ``indices`` as in the previous call.

        Args:
            indices: The ``env_index`` of each sub-environment, at least one.
        """
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
        found = EnvLanes(tuple(self.groups), group[which], number[which], counts)
        self._asked = indices, found
        return found

    def open(self, agents: Sequence[tuple[int, AgentID, ModuleID]]) -> None:
        """Opens lanes for agents, in the groups for their spaces and modules, and begins their episodes there.

        Args:
            agents: The ``env_index``, the agent id and the module id of each agent.
        """
        by_group: dict[LaneGroup, list[tuple[int, AgentID, ModuleID]]] = {}
        groups: dict[tuple[AgentID, ModuleID], LaneGroup] = {}
        for own in agents:
            group = groups.get(own[1:])
            if group is None:
                group = groups[own[1:]] = self.group_of(*own[1:])
            by_group.setdefault(group, []).append(own)
        opened = {group: iter(group.open(own)) for group, own in by_group.items()}
        for own in agents:
            self._add(next(opened[groups[own[1:]]]))

    def fit(self, env_index: int, modules: Mapping[AgentID, ModuleID]) -> bool:
        """Returns whether exactly these agents, in this order, have lanes in groups for these modules.

        Args:
            env_index: The sub-environment.
            modules: Agent id to module id.
        """
        lanes = self.by_env[env_index]
        return list(lanes) == list(modules) and all(
            lane.group.kind == self._kind(modules[agent_id]) for agent_id, lane in lanes.items()
        )

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
        """Sets the module that chooses the actions of a lane's agent from now on."""
        if lane.module_id != module_id:
            self.counts.settle(lane.group, np.array([lane.number]))
            self._is_sorted = False
            self._members.pop(lane.env_index, None)
            lane.module_id = module_id
            lane.group.module_of[lane.number] = self._place_of(module_id)

    def close(self, lanes: Collection[Lane]) -> None:
        """Closes lanes."""
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
        """Forgets all lanes and groups, so that the following steps do not depend on the previous ones.

        New groups get as many rows as the largest former group had.
        """
        self.settle_counts()
        self._kinds = {module_id: own for module_id, own in self._kinds.items() if module_id in self._rl_module}
        self._num_rows = max([group.rollout.num_rows for group in self.groups], default=0)
        self.groups, self._arrays, self._asked, self.live = [], None, None, []
        self._known_spaces, self._changed, self._members, self._places_of_kinds = {}, set(), {}, {}
        self.by_env = [{} for _ in self.by_env]

    def settle_counts(self) -> None:
        """Adds the steps of all lanes to ``counts``."""
        for group in self.groups:
            self.counts.settle(group, np.flatnonzero(group.is_live))

    def open_all(self, modules_by_env: Sequence[Mapping[AgentID, ModuleID]]) -> None:
        """Opens lanes for the agents of all sub-environments.

        The lanes are opened module by module, so that the rows of a module are a slice.

        Args:
            modules_by_env: For each sub-environment, agent id to module id.
        """
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

    def group_of(self, agent_id: AgentID, module_id: ModuleID) -> LaneGroup:
        """Returns the group for an agent with a module. It is added if there is none."""
        observation_space, action_space = self._agent_spaces(agent_id)
        kind = self._kind(module_id)
        key = (id(observation_space), id(action_space), kind)
        known = self._known_spaces.get(key)
        if known is None:
            matching = (group for group in self.groups if group.matches(observation_space, action_space, kind))
            group = next(matching, None) or self._add_group(agent_id, module_id)
            if len(self._known_spaces) >= _REMEMBERED_SPACES:
                self._known_spaces.clear()
            self._known_spaces[key] = group, observation_space, action_space
        else:
            group = known[0]
        return group

    def _place_of_kind(self, kind: Hashable) -> int:
        """Returns the place of the first module of a kind among the modules."""
        if kind not in self._places_of_kinds:
            kinds = [self._kind(module_id) for module_id in self._rl_module]
            self._places_of_kinds = {own: len(kinds) - 1 - i for i, own in enumerate(reversed(kinds))}
        return self._places_of_kinds.get(kind, len(self._rl_module))

    def modules_unchanged(self, module_ids: Collection[ModuleID]) -> bool:
        """Whether these modules are the objects that the lanes were opened for."""
        known, modules = self._kinds, self._rl_module
        return all(m in known and m in modules and known[m][0] is modules[m] for m in set(module_ids))

    def _kind(self, module_id: ModuleID) -> Hashable:
        module = self._rl_module[module_id]
        known = self._kinds.get(module_id)
        if known is None or known[0] is not module:
            wanted = module.observation_space
            described = [None if s is None else spaces.describe(s) for s in (wanted, module.action_space)]
            kind = output_kind(module), *described
            known = self._kinds[module_id] = (module, kind)
        return known[1]

    def _add_group(self, agent_id: AgentID, module_id: ModuleID) -> LaneGroup:
        """Adds a group for agents with the same spaces as an agent, and modules of the same kind as a module."""
        kind, its_spaces = self._kind(module_id), self._agent_spaces(agent_id)
        sort_key = self._place_of_kind(kind), *map(spaces.sort_key, its_spaces)
        group = LaneGroup(
            len(self.groups),
            *its_spaces,
            self._lookback,
            kind,
            self._rl_module[module_id].action_space,
            self.ongoing,
            self._num_rows,
            sort_key,
            self._action_units,
        )
        self.groups.append(group)
        return group

    # For checkpoints.

    def keep_states(
        self, observed: Sequence[Tree] | None, batches: Mapping[LaneGroup, Mapping[str, Any]]
    ) -> Callable[[], list[list[LanesState]]]:
        """Returns a function that returns the present states of all lanes, of each sub-environment group by group.

        Args:
            observed: As for ``LaneGroup.keep_states``, for each group; None if no piece may overwrite observations.
            batches: The columns of a prepared forward batch for each group.
        """
        num_envs = len(self.by_env)
        of_groups = sorted(self.of_envs(range(num_envs)).by_group, key=lambda own: own[0].sort_key)
        kept = [
            group.keep_states(numbers, None if observed is None else observed[group.index], batches.get(group, {}))
            for group, _, numbers in of_groups
        ]

        def states() -> list[list[LanesState]]:
            found: list[list[LanesState]] = [[] for _ in range(num_envs)]
            for of_group in kept:
                for env_index, state in of_group().items():
                    found[env_index].append(state)
            return found

        return states

    def set_states(self, states: Sequence[Sequence[LanesState]]) -> dict[LaneGroup, RestoredLanes]:
        """Opens the lanes of ``keep_states`` in new groups, which it returns with what was restored of each.

        Raises:
            CheckpointError: If the lanes do not fit the agents and modules, or are damaged.
        """
        self.clear()
        by_group: dict[LaneGroup, dict[int, LanesState]] = {}
        for env_index, groups in enumerate(states):
            for own in groups:
                group, *others = {self.group_of(lane.agent_id, lane.module_id): None for lane in own.lanes}
                if others:
                    agent_ids = [lane.agent_id for lane in own.lanes]
                    raise CheckpointError(
                        f"checkpoint: it is damaged, or of other modules: the agents {brief(agent_ids)} share a "
                        f"rollout, but their spaces or modules differ."
                    )
                by_group.setdefault(group, {})[env_index] = own
        modules = {module_id: i for i, module_id in enumerate(self._rl_module)}
        restored = {group: group.set_states(own, modules) for group, own in by_group.items()}
        lanes = [pair for found in restored.values() for pair in found.lanes]
        for lane, _ in sorted(lanes, key=lambda pair: pair[1].place):
            self._add(lane)
        return restored

    # The lane layout.

    def arrange(self) -> None:
        """Computes which lanes act next and in what order, after lanes were opened or closed, or wait or rest."""
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
        groups = sorted([group for group in self.groups if group.num_acting], key=attrgetter("sort_key"))
        if len(groups) == len(groups[:1]) == 1 and len(groups[0].rows.module_ids) == 1:  # they are in that order
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
        """Sets the env step of each lane in all groups.

        Args:
            t: ``[num_envs]``, the env step of each sub-environment.
        """
        for group in self.groups:
            group.t = t[group.env_indices].astype(np.int32)

    def set_reset_step(self, env_index: int, is_reset_step: bool) -> bool:
        """Sets whether a sub-environment's agents rest, and returns whether this is a change."""
        changed = False
        for lane in self.by_env[env_index].values():
            changed |= bool(lane.group.is_reset_step[lane.number]) != is_reset_step
            lane.group.is_reset_step[lane.number] = is_reset_step
        return changed

    def write_infos(self, env_index: int, infos: dict[AgentID, dict[str, Any]]) -> None:
        """Records the infos of live agents with their newest observations."""
        lanes = self.by_env[env_index]
        for agent_id, info in infos.items():
            lane = lanes.get(agent_id)
            if lane is not None and info:
                rollout = lane.group.rollout
                rollout.infos[int(rollout.cursor[lane.number])] = info


def id_key(agent_id: AgentID) -> tuple[str, Any]:
    """Returns a key that sorts agents of all types, strings and numbers as usual."""
    kind = type(agent_id)  # numpy's bool has the name of Python's
    return f"{kind.__module__}.{kind.__name__}", agent_id if isinstance(agent_id, (str, int)) else repr(agent_id)


class SampledSteps(State):
    """The numbers of steps of sub-environments, agents and modules.

    Attributes:
        env_steps: The number of env steps.
        agents: The number of steps of each agent. The ``REMEMBERED_AGENTS`` that were seen last are remembered.
        modules: The number of agent steps of each module.
    """

    env_steps: Count = 0
    agents: dict[ID, Count] = {}
    modules: dict[ModuleID, Count] = {}

    def add(self, agent_id: AgentID, module_id: ModuleID, steps: int) -> None:
        """Adds steps of an agent."""
        self.agents[agent_id] = self.agents.get(agent_id, 0) + steps
        self.modules[module_id] = self.modules.get(module_id, 0) + steps

    def forget_agents(self) -> None:
        """Forgets the agents that were seen first, if there are too many."""
        for agent_id in list(islice(self.agents, max(len(self.agents) - REMEMBERED_AGENTS, 0))):
            del self.agents[agent_id]

    def in_order(self) -> SampledSteps:
        """Returns a copy that is sorted by agent and module."""
        agents = {agent_id: self.agents[agent_id] for agent_id in sorted(self.agents, key=id_key)}
        return SampledSteps(self.env_steps, agents, dict(sorted(self.modules.items())))

    @staticmethod
    def merged(counts: Sequence[SampledSteps]) -> SampledSteps:
        """Returns the sums of several counts, sorted by agent and module."""
        agents: Counter[AgentID] = Counter()
        modules: Counter[ModuleID] = Counter()
        for own in counts:
            agents.update(own.agents)
            modules.update(own.modules)
        return SampledSteps(sum(own.env_steps for own in counts), dict(agents), dict(modules)).in_order()


class StepCounts:
    """Counts the steps of sub-environments, agents and modules.

    While a lane layout lasts, only its vector steps are counted, so that a vector step costs one addition, however many
    agents act in it.

    Attributes:
        vector_steps: The number of vector steps in the current lane layout that are not in the counts yet.
        sampled: The counts since the last ``take``.
    """

    def __init__(self) -> None:
        self.vector_steps = 0
        self.sampled = SampledSteps()

    def end_layout(self, groups: Iterable[LaneGroup], num_envs: int) -> None:
        """Counts the steps in the current lane layout, before the layout changes or the counts are read.

        Args:
            groups: The groups with lanes that act.
            num_envs: The number of sub-environments that make a step in each vector step.
        """
        steps, self.vector_steps = self.vector_steps, 0
        if steps:
            self.sampled.env_steps += steps * num_envs
            for group in groups:
                group.count_steps(steps)

    def settle(self, group: LaneGroup, numbers: np.ndarray) -> None:
        """Adds the steps of lanes to the counts, before the lanes get other agents or modules.

        Args:
            group: The group of the lanes.
            numbers: The numbers of the lanes.
        """
        counted = group.num_steps[numbers]
        group.num_steps[numbers] = 0
        for lane, steps in zip(group.at(numbers), counted.tolist(), strict=True):
            if steps:
                self.sampled.add(lane.agent_id, lane.module_id, steps)
        self.sampled.forget_agents()

    def add_episodes(self, episodes: Sequence[Any]) -> None:
        """Counts the steps of whole episodes, for samples that drop what belongs to no such episode."""
        for episode in episodes:
            self.sampled.env_steps += episode.env_steps()
            for chunk in chunks_of([episode]):
                steps = chunk.num_steps if isinstance(chunk, AgentChunk) else len(chunk)
                if steps:
                    agent_id = DEFAULT_AGENT_ID if chunk.agent_id is None else chunk.agent_id
                    self.sampled.add(agent_id, chunk.module_id or DEFAULT_MODULE_ID, steps)
        self.sampled.forget_agents()

    def take(self) -> dict[str, Any]:
        """Returns the counts since the last call, sorted by agent and module, and resets them."""
        found, self.sampled = self.sampled.in_order(), SampledSteps()
        return {
            "num_env_steps_sampled": found.env_steps,
            "num_agent_steps_sampled": found.agents,
            "num_module_steps_sampled": found.modules,
        }
