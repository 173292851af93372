"""Turns the calls of a Policy into step results, as if they came from sub-environments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.algorithms.inference.observation_batches import as_batch, infos_by_env
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import env_actions
from marl_connectors.env_runners.action_noise import ActionNoise
from marl_connectors.env_runners.lane_group import LaneGroup, LiveRows
from marl_connectors.env_runners.lane_table import LaneTable
from marl_connectors.environments.rules.step_result import Event, StepResult
from marl_connectors.environments.vector.sub_environment import SubEnvironment
from marl_connectors.episodes.rollout import Positions, take
from marl_connectors.seeding import name_word
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree

_REMEMBERED = 64
"""The number of sets of agents acting together whose rows are known, and that have random numbers for several steps."""


class _AgentRows(NamedTuple):
    """The agents to which the rows of a group belong.

    Attributes:
        group: The group.
        live: The rows themselves.
        agents: The agents with rows in the group, as indices of ``ExternalVectorEnv.agents``.
        rows: ``[len(agents), num_envs]`` the row of each agent in each sub-environment; -1 where its row is in another
            group, because it acts with a module of another kind there.
        first: The row of each agent in the first sub-environment.
        order: ``[B]`` the index of each row in the flattened ``rows``; None if both have the same order.
        agent_of: ``[B]`` the agent of each row, as an index of ``ExternalVectorEnv.agents``.
    """

    group: LaneGroup
    live: LiveRows
    agents: list[int]
    rows: np.ndarray
    first: list[int]
    order: np.ndarray | None
    agent_of: np.ndarray

    def joined(self, of_agents: Sequence[Tree]) -> Tree:
        """Returns ``[B, ...]`` values in the order of the rows, given ``[num_envs, ...]`` values of each agent."""
        whole = of_agents[0] if len(of_agents) == 1 else tree_map(lambda *own: np.concatenate(own), *of_agents)
        return whole if self.order is None else take(whole, self.order)


class ExternalVectorEnv:
    """Stands in for the VectorEnv when the user steps the environments.

    A call with observations is a step. Agents that act in it and have acted before get the results of their last
    actions, and all other agents wait. A new agent joins. After the end of an episode, the next one begins with the
    next call.

    Attributes:
        sub_envs: The sub-environments.
        agents: The agents of the newest call; empty if their rows have to be worked out again.
        calls: The number of calls since the last ``restart``.
        over: The sub-environments in which the next call begins an episode.
        moved: The lanes that the newest call has moved forward, by group, with their former rows. None stands for all
            lanes of the group that act, with the positions of these rows.
        joined: The sub-environments and agents that have joined in the newest call.
        num_acted: The number of actions of each agent so far.
    """

    turn_based = has_reset_steps = False
    is_batched = True
    seed = 0

    def __init__(self, agent_spaces: Mapping[AgentID, tuple[Space, Space]]):
        """Creates it without sub-environments, from the observation and action space of each agent."""
        self.agent_spaces = dict(agent_spaces)
        self.num_acted: dict[AgentID, int] = {}
        self._numbers: dict[int, int] = {}
        self.restart(0)

    def restart(self, num_envs: int) -> None:
        """Sets the number of sub-environments. None of their episodes has begun."""
        self.sub_envs = [SubEnvironment(None, index) for index in range(num_envs)]
        self.calls = 0
        self.over = frozenset(range(num_envs))
        self._begun_at: dict[int, int] = {}
        self._layouts: dict[tuple[AgentID, ...], list[_AgentRows]] = {}
        self.forget_layout()

    def forget_layout(self) -> None:
        """Forgets the agents of the newest call, so that the next one works out their rows."""
        self.agents: tuple[AgentID, ...] = ()
        self.moved: list[tuple[LaneGroup, np.ndarray | None, Positions]] = []
        self.joined: list[tuple[int, AgentID]] = []
        self._rows: list[_AgentRows] = []

    def spaces_of(self, agent_id: AgentID) -> tuple[Space, Space]:
        """Returns an agent's observation and action space."""
        return self.agent_spaces[agent_id]

    def states(self) -> None:
        """Returns None, because the states of the environments are unknown."""

    @property
    def all_begin(self) -> bool:
        """Whether the next call begins an episode in every sub-environment."""
        return len(self.over) == len(self.sub_envs)

    def end(self, indices: Collection[int]) -> None:
        """Ends the episodes of these sub-environments."""
        self.over |= frozenset(indices)

    def sync(self) -> None:
        """Updates the step counts of the sub-environments to the newest call."""
        for sub_env in self.sub_envs:
            sub_env.t = self.calls - 1 - self._begun_at.get(sub_env.index, 0)

    def now(self) -> Callable[[], None]:
        """Returns a function that goes back to before the next call. What it keeps is not changed in place."""
        self.moved, self.joined = [], []
        kept = self.sub_envs, self.calls, self.over, self._begun_at, self._numbers

        def go_back() -> None:
            self.sub_envs, self.calls, self.over, self._begun_at, self._numbers = kept
            for sub_env in self.sub_envs:
                sub_env.episode_number = self._numbers.get(sub_env.index, -1)
            self.forget_layout()

        return go_back

    # From a call to a step.

    def step(self, agents: tuple[AgentID, ...], rewards: Mapping[AgentID, Any] | None, lanes: LaneTable) -> StepResult:
        """Returns the results of the agents' last actions, without observations.

        Args:
            agents: The agents that act now.
            rewards: Maps agents to their rewards, ``[num_envs]`` or one number for all sub-environments.
            lanes: The lanes of the agents that have acted before.
        """
        is_same, begin = agents == self.agents, sorted(self.over)
        self.calls += 1
        if is_same and not begin:
            self.moved = [(own.group, None, copy(own.group.positions)) for own in self._rows]
            return StepResult(self._rewards_by_row(rewards), [], in_rows=True)
        if begin:
            self._begin(begin)
        self.agents = agents
        for sub_env in self.sub_envs:
            sub_env.agents = list(agents)
        self.sync()
        events = {index: Event(index, 0, is_over=True, is_dropped=True) for index in begin}
        if is_same:
            self.moved = [_moving(own.group, _others(own.group, begin)) for own in self._rows]
            return StepResult(self._rewards_by_row(rewards), [], events=list(events.values()), in_rows=True)
        acted_before: list[tuple[int, AgentID]] = []
        for sub_env in self.sub_envs:
            if sub_env.index not in events:
                known = lanes.by_env[sub_env.index]
                acted_before += [(sub_env.index, agent_id) for agent_id in agents if agent_id in known]
                joining = [(sub_env.index, agent_id) for agent_id in agents if agent_id not in known]
                if joining:
                    events[sub_env.index] = Event(sub_env.index, sub_env.t)
                    self.joined += joining
        numbers: dict[LaneGroup, list[int]] = {}
        for index, agent_id in acted_before:
            lane = lanes.by_env[index][agent_id]
            numbers.setdefault(lane.group, []).append(lane.number)
        self.moved = [_moving(group, np.array(own)) for group, own in numbers.items()]
        rewards_of_lanes = [
            _reward_of(agent_id, index, rewards) if rewards else np.nan for index, agent_id in acted_before
        ]
        return StepResult(
            rewards_of_lanes, [], events=[events[i] for i in sorted(events)], rewarded=acted_before, in_rows=True
        )

    def _begin(self, indices: Sequence[int]) -> None:
        """Begins the next episodes in some sub-environments."""
        self.over = frozenset()
        self._begun_at = {**self._begun_at, **dict.fromkeys(indices, self.calls - 1)}
        self._numbers = self._numbers | {index: self._numbers.get(index, -1) + 1 for index in indices}
        for index in indices:
            self.sub_envs[index].episode_number = self._numbers[index]

    def _rewards_by_row(self, rewards: Mapping[AgentID, Any] | None) -> list[Any]:
        """Returns ``[B]`` rewards of each group that acted; NaN where the user has passed none."""
        if not rewards:
            return [np.nan] * len(self._rows)
        size = len(self.sub_envs)
        given = [np.asarray(rewards.get(agent_id, np.nan)) for agent_id in self.agents]
        given = [own if own.shape == (size,) else np.broadcast_to(own, size) for own in given]
        return [own.joined([given[i] for i in own.agents]) for own in self._rows]

    def leaving(self, agent_ids: Collection[AgentID], index: int, lanes: LaneTable) -> StepResult:
        """Returns the result of a step in which some agents of a sub-environment end, and its episode continues."""
        own = [agent_id for agent_id in lanes.by_env[index] if agent_id in agent_ids]
        self.sub_envs[index].agents = []
        event = Event(index, self.sub_envs[index].t, truncations=dict.fromkeys(own, True))
        return StepResult([np.nan] * len(own), [], events=[event], rewarded=[(index, agent_id) for agent_id in own])

    # Rows and agents.

    def lay_out(self, lanes: LaneTable) -> None:
        """Finds the agents of all rows, after a change of the lanes that act. Agents that take turns recur."""
        known = self._layouts.get(self.agents, [])
        live = [group for group, _ in lanes.live]
        if len(known) == len(live) and all(own.live is group.rows for own, group in zip(known, live, strict=True)):
            self._rows = known
            return
        if len(self._layouts) >= _REMEMBERED:
            self._layouts.clear()
        self._rows = self._layouts[self.agents] = list(map(self._agent_rows, live))

    def _agent_rows(self, group: LaneGroup) -> _AgentRows:
        size = len(self.sub_envs)
        words = np.array([name_word(agent_id) for agent_id in self.agents], np.uint64)
        by_word = np.argsort(words)
        agent_of = by_word[np.searchsorted(words[by_word], group.agent_words)]
        present = np.unique(agent_of)
        order = np.searchsorted(present, agent_of) * size + group.env_indices
        rows = np.full(len(present) * size, -1)
        rows[order] = np.arange(len(order))
        in_order = len(order) == len(rows) and bool((order == np.arange(len(order))).all())
        whole = rows.reshape(len(present), size)
        agents, first = present.tolist(), whole[:, 0].tolist()
        return _AgentRows(group, group.rows, agents, whole, first, None if in_order else order, agent_of)

    def place(self, noise: ActionNoise) -> None:
        """Assigns each row the random numbers of its agent. They depend only on how often the agent has acted.

        The step of ``noise`` is that of the first agent. So agents that always act together continue with the numbers
        that were drawn for them, whatever other agents do in between.
        """
        counts = np.array([self.num_acted.get(agent_id, 0) for agent_id in self.agents])
        noise.step = int(counts[0])
        noise.limit_groups(_REMEMBERED)
        for own in self._rows:
            group = own.group
            if group.words is None:
                group.words = noise.words_of(group.env_indices, group.agent_words)
            never = np.zeros(len(group.words), np.int64)
            noise.place((self.agents, group.index), group.rows, group.words, never, counts[own.agent_of])

    def torch_stream_of(self) -> tuple[str, ...]:
        """Returns the name of a random stream, made of the agents that act and their steps."""
        return tuple(sorted({repr((agent_id, self.num_acted.get(agent_id, 0))) for agent_id in self.agents}))

    def acted(self) -> None:
        """Counts the actions of the newest call."""
        for agent_id in self.agents:
            self.num_acted[agent_id] = self.num_acted.get(agent_id, 0) + 1

    def rows_of_agents(self) -> list[list[tuple[AgentID, np.ndarray]]]:
        """Returns the agents of each group with their rows."""
        return [[(self.agents[i], rows) for i, rows in zip(own.agents, own.rows, strict=True)] for own in self._rows]

    # Observations and actions.

    def observe(
        self,
        result: StepResult,
        observations: Mapping[AgentID, Any],
        infos: Mapping[AgentID, Any] | None,
        is_batch: bool,
    ) -> None:
        """Adds observations and infos to the result of a step."""
        result.observations = [self._of_rows(own, observations, is_batch) for own in self._rows]
        if not infos:
            return
        by_env: dict[int, dict[AgentID, dict[str, Any]]] = {}
        for agent_id in self.agents:
            given = infos.get(agent_id)
            for index, info in enumerate(infos_by_env(given, len(self.sub_envs), is_batch) if given else ()):
                if info:
                    by_env.setdefault(index, {})[agent_id] = dict(info)
        result.infos = list(by_env.items())

    def _of_rows(self, own: _AgentRows, observations: Mapping[AgentID, Any], is_batch: bool) -> Tree:
        space = own.group.rollout.observation_space
        if is_batch:
            return own.joined([as_batch(space, observations[self.agents[i]], True) for i in own.agents])
        items = [observations[self.agents[i]] for i in own.agent_of.tolist()]
        try:
            return spaces.stack(items, space)
        except (TypeError, ValueError):
            return own.joined([as_batch(space, observations[self.agents[i]], False) for i in own.agents])

    def by_agent(self, actions: Sequence[Tree], is_batch: bool) -> dict[AgentID, Any]:
        """Maps each agent to its action, or to ``[num_envs, ...]`` actions, from the actions of each group."""
        found: dict[AgentID, Any] = {}
        for own, values in zip(self._rows, actions, strict=True):
            if not is_batch:
                items = env_actions(values)
                found.update({self.agents[i]: items[row] for i, row in zip(own.agents, own.first, strict=True)})
                continue
            for i, rows in zip(own.agents, own.rows, strict=True):
                agent_id = self.agents[i]
                if rows.min() >= 0 or agent_id not in found:
                    found[agent_id] = take(values, rows)
                else:  # in other sub-environments the agent is in a group before this one
                    found[agent_id] = tree_map(partial(_filled, own=rows), found[agent_id], values)
        return {agent_id: found[agent_id] for agent_id in self.agents}


def _moving(group: LaneGroup, numbers: np.ndarray) -> tuple[LaneGroup, np.ndarray, np.ndarray]:
    return group, numbers, group.rows_of(numbers)


def _others(group: LaneGroup, indices: Sequence[int]) -> np.ndarray:
    """Returns the numbers of the lanes that act, except those of some sub-environments."""
    return group.acting_numbers[~np.isin(group.env_indices, indices)]


def _reward_of(agent_id: AgentID, index: int, rewards: Mapping[AgentID, Any] | None) -> float:
    reward = np.asarray((rewards or {}).get(agent_id, np.nan))
    return float(reward if reward.ndim == 0 else reward[index])


def _filled(whole: np.ndarray, leaf: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Adds the rows of another group to ``[B, ...]`` values. ``own`` is -1 for rows that are in ``whole`` already."""
    there = own >= 0
    whole[there] = leaf[own[there]]
    return whole
