"""Lanes, the places of agents in a rollout, and groups of lanes of agents with equal spaces."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import MODULE
from marl_connectors.episodes.agent_views import AgentChunk, view_of
from marl_connectors.episodes.items import alike
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode, agent_episode_id
from marl_connectors.episodes.rollout import Positions, Rollout, RolloutState, take
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.state import encode, storable
from marl_connectors.errors import CheckpointError
from marl_connectors.seeding import name_word
from marl_connectors.state import ID, Column, Index, State
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID, EpisodeID, ModuleID, Tree

_BY_NUMBER = (
    "first_row",
    "start_row",
    "t_started",
    "earlier_return",
    "carried",
    "is_reset_step",
    "is_live",
    "env_of",
    "rank",
    "module_of",
    "word_of",
    "num_steps",
    "next_row",
)
"""The names of the LaneGroup arrays with an entry for each lane."""
_REMEMBERED = 64
"""The number of selections of lanes that act together that a group remembers."""


class LaneState(State):
    """The state of one agent of an ongoing episode, without its rows.

    Attributes:
        place: Its place among all agents of the sub-environment.
        agent_id: The agent.
        module_id: The module that chooses its actions.
        episode_id: The id of the agent's episode.
        earlier_return: The sum of its rewards in earlier chunks.
        t_started: The number of its steps before the newest row.
        kept: The number of rows before the newest one that belong to its episode.
        infos: The infos of these rows and of the newest one: the row, counted from the oldest kept one, to the info.
            Empty ones are left out. None for an info that cannot be stored, so that it has to come from a replay.
        custom_data: What callbacks and pieces have left in the agent's episode.
    """

    place: Index
    agent_id: ID
    module_id: ModuleID
    episode_id: EpisodeID
    earlier_return: float
    t_started: Index
    kept: Index
    infos: dict[Index, Any] = {}
    custom_data: dict[str, Any] = {}


class LanesState(State):
    """The state of the lanes that one sub-environment has in a LaneGroup.

    Attributes:
        lanes: The lanes, in the order of the sub-environment's agents.
        rollout: Their rows.
        observed: The environment's newest observations of their agents; None if no piece may have overwritten them.
        batch: The rows of those lanes that act next in the forward batch that pieces have prepared.
        tensors: The columns of the batch that are tensors.
    """

    lanes: list[LaneState]
    rollout: RolloutState
    observed: Column | None = None
    batch: dict[str, Column] = {}
    tensors: list[str] = []

    def __post_init__(self) -> None:
        num_lanes, size = len(self.lanes), len(self.rollout.acted)
        if not num_lanes or size % num_lanes:
            raise ValueError(f"Expected the rows of {num_lanes} lanes, 1 or more, got {size}")
        num_acting = num_lanes - int(self.rollout.acted[-num_lanes:].sum())
        if any(len(leaf) != num_acting for column in self.batch.values() for leaf in leaves(column)):
            raise ValueError(f"Expected {num_acting} rows of a forward batch, got others")
        if self.observed is not None and any(len(leaf) != num_lanes for leaf in leaves(self.observed)):
            raise ValueError(f"Expected {num_lanes} observations, got others")


class RestoredLanes(NamedTuple):
    """The lanes of a group that were restored from states.

    Attributes:
        lanes: Each lane and its state.
        observed: ``[N, ...]``, the environment's newest observations in the sequence of ``order``; None if they are
            not known apart from the rows.
        batch: The rows of the lanes that act next in the forward batch; None if those of the states do not fit
            together.
        tensors: The columns of the batch that were tensors.
    """

    lanes: list[tuple[Lane, LaneState]]
    observed: Tree | None
    batch: dict[str, Tree] | None
    tensors: Collection[str]


class Lane:
    """The place of one live agent in a rollout.

    Attributes:
        group: The group whose rollout the lane is in.
        number: The number of the lane in that rollout.
        env_index: The agent's sub-environment.
        agent_id: The agent.
        module_id: The module that chooses the agent's actions.
    """

    __slots__ = ("_episode", "agent_id", "env_index", "group", "module_id", "number")

    def __init__(self, group: LaneGroup, number: int, env_index: int, agent_id: AgentID, module_id: ModuleID = ""):
        self.group = group
        self.number = number
        self.env_index = env_index
        self.agent_id = agent_id
        self.module_id = module_id
        self._episode: SingleAgentEpisode | None = None

    @property
    def episode(self) -> SingleAgentEpisode:
        """The agent's ongoing episode, a view of the lane. It is created when it is first read."""
        if self._episode is None:
            ongoing: Any = self.group.ongoing[self.env_index]
            _ = ongoing.agent_episodes  # creates the views of all agents
        return self._episode  # type: ignore[return-value]

    @episode.setter
    def episode(self, episode: SingleAgentEpisode) -> None:
        self._episode = episode

    @property
    def has_episode(self) -> bool:
        """Whether ``episode`` has been created."""
        return self._episode is not None

    def forget_episode(self) -> None:
        """Forgets ``episode``. A new one is created when it is next read."""
        self._episode = None

    @property
    def row(self) -> int:
        """The row of the newest observation."""
        rollout = self.group.rollout
        return int(rollout.cursor[self.number]) // rollout.num_lanes

    @property
    def is_waiting(self) -> bool:
        """Whether the agent has acted on its newest observation, and other agents act before its next turn."""
        return bool(self.group.rollout.pending[self.number])

    @property
    def storage(self) -> LaneStorage:
        """The storage that the agent's episode is a view of."""
        return self.episode.storage  # type: ignore[return-value]

    def keep_id_and_data(self) -> tuple[EpisodeID, dict[str, Any]]:
        """Returns the id of the agent's episode and its custom data, encoded.

        Raises:
            EpisodeError: If the custom data cannot be stored.
        """
        if self._episode is None:  # nobody has seen it, and the agent has been in the ongoing one from its beginning
            ongoing: Any = self.group.ongoing[self.env_index]
            return agent_episode_id(ongoing.id_, self.agent_id, 0), {}
        id_, data = self._episode.id_, self._episode._custom_data
        return id_, encode(data, f"custom_data of episode {id_!r}") if data else {}

    def continue_episode(self) -> None:
        """Creates the next chunk of the episode, after the group has continued in another rollout."""
        former = self.episode
        self.view(former.id_, former.agent_id, former.module_id, former.multi_agent_episode_id)
        if former._custom_data:
            self.episode._custom_data = copy.deepcopy(former._custom_data)

    def new_storage(self) -> LaneStorage:
        """Returns a new storage for a view of the lane."""
        group, number = self.group, self.number
        first_row, start_row = group.first_row.item(number), group.start_row.item(number)
        return LaneStorage(group.rollout, number, first_row=first_row, start_row=start_row)

    def view(
        self,
        id_: EpisodeID,
        agent_id: AgentID | None = None,
        module_id: ModuleID | None = None,
        multi_agent_episode_id: EpisodeID | None = None,
    ) -> SingleAgentEpisode:
        """Creates ``episode`` and returns it.

        Args:
            id_: The id of the episode.
            agent_id: The agent, if the episode is part of a MultiAgentEpisode.
            module_id: The agent's module, if the episode is part of a MultiAgentEpisode.
            multi_agent_episode_id: The id of that MultiAgentEpisode.
        """
        rollout = self.group.rollout
        self._episode = SingleAgentEpisode.from_storage(
            self.new_storage(),
            id_=id_,
            agent_id=agent_id,
            module_id=module_id,
            multi_agent_episode_id=multi_agent_episode_id,
            t_started=self.group.t_started.item(self.number),
            observation_space=rollout.observation_space,
            action_space=rollout.action_space,
        )
        return self._episode


class LiveViews(NamedTuple):
    """The agents of an ongoing episode, all of which have been in it from its beginning.

    Attributes:
        lanes: Agent id to lane. No lane has a view yet.
    """

    lanes: dict[AgentID, Lane]

    def agent_steps(self) -> int:
        """Returns how many steps all agents together have made in the chunk."""
        return sum(lane.row - int(lane.group.start_row[lane.number]) for lane in self.lanes.values())

    def chunks(self, episode: MultiAgentEpisode) -> list[AgentChunk]:
        """Returns the data of the agents' episodes that a batch needs, without creating the episodes."""
        found = []
        for agent_id, lane in self.lanes.items():
            group, number = lane.group, lane.number
            known = (column.item(number) for column in (group.first_row, group.start_row, group.t_started))
            first_row, start_row, t_started = known
            found.append(
                AgentChunk(
                    episode,
                    agent_id,
                    lane.module_id,
                    group.rollout,
                    number,
                    first_row,
                    start_row,
                    lane.row,
                    t_started,
                    is_terminated=False,
                    is_truncated=False,
                )
            )
        return found

    def make(self, episode: MultiAgentEpisode) -> dict[AgentID, SingleAgentEpisode]:
        """Creates the agents' episodes, stores them in their lanes, and returns them by agent id."""
        for agent_id, lane in self.lanes.items():
            t_started = int(lane.group.t_started[lane.number])
            lane.episode = view_of(episode, agent_id, lane.new_storage(), t_started)
        return {agent_id: lane.episode for agent_id, lane in self.lanes.items()}


class _Selection(NamedTuple):
    """Lanes that act together, with the attributes of a ``LaneGroup`` that follow from them."""

    numbers: np.ndarray | None
    env_indices: np.ndarray
    agent_words: np.ndarray
    places: np.ndarray
    rows: LiveRows


class LaneGroup:
    """All lanes of agents with equal spaces whose modules have equal kinds of state, in one rollout.

    ``B`` is the number of lanes that act next.

    Attributes:
        index: The index of the group among all groups.
        rollout: The columns of the current fragment.
        kind: What the modules of the lanes have in common. ``LaneTable`` defines it.
        sort_key: The place of the group among all groups. ``LaneTable`` defines it.
        env_action_space: The action space of the environment. The action space of the rollout, which holds the recorded
            actions, is that of the modules.
        ongoing: The ongoing episodes of all sub-environments.
        first_row: ``[num_lanes]`` int64, the oldest row that the lane's ongoing episode keeps.
        start_row: ``[num_lanes]`` int64, the row of the chunk's first observation. Rows before it are lookback.
        t_started: ``[num_lanes]`` int64, the number of the agent's steps before ``start_row``.
        earlier_return: ``[num_lanes]``, the sum of the agent's rewards in earlier chunks.
        carried: ``[num_lanes]`` bool, whether the first row after the lookback was in the previous fragment, too.
        is_reset_step: ``[num_lanes]`` bool, whether the episode has no first observation yet, because the next step
            only resets the sub-environment.
        is_live: ``[num_lanes]`` bool, whether an agent has the lane.
        env_of: ``[num_lanes]`` int64, the ``env_index`` of the agent's sub-environment.
        rank: ``[num_lanes]`` int64, the agent's place in its sub-environment.
        module_of: ``[num_lanes]`` int64, the index of the agent's module in ``LaneTable.module_ids``.
        word_of: ``[num_lanes]`` uint64, the word that identifies the agent's random streams.
        num_steps: ``[num_lanes]`` int64, the number of the agent's steps that are in no ``StepCounts`` yet.
        next_row: ``[num_lanes]`` int64, the first unused row of a free lane. 0 if all its rows are unused.
        order: The numbers of all live lanes, sorted by module, sub-environment and rank.
        numbers: ``[B]``, the numbers of the lanes that act next, in the same order. None if they are ``0, 1, ...,
            num_lanes - 1``.
        positions: The positions of the newest rows of the lanes that act next.
        env_indices: ``[B]``, their ``env_index``.
        places: ``[B]``, sort keys that increase with the sub-environment and the agent's rank.
        agent_words: ``[B]`` uint64, the words that identify the agents' random streams.
        words: ``[B]`` uint64, the words of the streams themselves. None until they are computed.
        rows: The rows that the pipelines get. It is the same object whenever the same lanes act.
        t: ``[B]`` int32, the env step of each newest observation.
        last_row: The row of the newest observation of any lane.
    """

    def __init__(
        self,
        index: int,
        observation_space: Space,
        action_space: Space,
        lookback: int,
        kind: Hashable = None,
        module_action_space: Space | None = None,
        ongoing: Sequence[Any] = (),
        num_rows: int = 0,
        sort_key: Any = (),
        action_units: str = MODULE,
    ):
        self.index = index
        self.kind = kind
        self.sort_key = sort_key
        self.env_action_space = action_space
        self.lookback = lookback
        recorded = action_space if module_action_space is None else module_action_space
        self.rollout = Rollout(observation_space, recorded, num_rows=max(num_rows, lookback + 2), num_lanes=0)
        self.rollout.action_units = action_units
        self.ongoing = ongoing
        self.first_row = np.zeros(0, np.int64)
        self.start_row = np.zeros(0, np.int64)
        self.t_started = np.zeros(0, np.int64)
        self.earlier_return = np.zeros(0)
        self.carried = np.zeros(0, bool)
        self.is_reset_step = np.zeros(0, bool)
        self.is_live = np.zeros(0, bool)
        self.env_of = np.zeros(0, np.int64)
        self.rank = np.zeros(0, np.int64)
        self.module_of = np.zeros(0, np.int64)
        self.word_of = np.zeros(0, np.uint64)
        self.num_steps = np.zeros(0, np.int64)
        self.next_row = np.zeros(0, np.int64)
        self._lanes: list[Lane | None] = []
        self.order = np.zeros(0, np.int64)
        self.numbers: np.ndarray | None = None
        self.positions: Positions = slice(0, 0)
        self.env_indices = np.zeros(0, np.int64)
        self.agent_words = np.zeros(0, np.uint64)
        self.words: np.ndarray | None = None
        self.rows = LiveRows(self, module_ids=(), splits=(0,))
        self.t = np.zeros(0, np.int32)
        self.last_row = lookback
        self._num_opened = self._spare_rows = 0
        self._free_numbers: list[int] = []  # a heap of the free numbers below ``_num_opened``
        self._first: np.ndarray | None = None
        self.places = np.zeros(0, np.int64)
        self._selections: dict[bytes, _Selection] = {}

    def matches(self, observation_space: Space, action_space: Space, kind: Hashable) -> bool:
        """Returns whether agents with these spaces and modules of this kind belong to the group."""
        return (
            spaces.same(self.rollout.observation_space, observation_space, ordered=False)
            and spaces.same(self.env_action_space, action_space, ordered=False)
            and self.kind == kind
        )

    # Opening and closing lanes.

    @property
    def lanes(self) -> list[Lane]:
        """The live lanes, in the sequence of ``order``."""
        return self.at(self.order)

    @property
    def acting(self) -> list[Lane]:
        """The lanes that act next, in the order of ``rows``."""
        return self.at(self.acting_numbers)

    @property
    def num_acting(self) -> int:
        """The number of lanes that act next."""
        return len(self.env_indices)

    @property
    def acting_numbers(self) -> np.ndarray:
        """``[B]``, the numbers of the lanes that act next, in the order of ``rows``."""
        return np.arange(self.rollout.num_lanes) if self.numbers is None else self.numbers

    def at(self, numbers: np.ndarray) -> list[Lane]:
        """Returns the lanes with the given numbers."""
        return [self._lanes[number] for number in numbers.tolist()]  # type: ignore[misc]

    def make_room(self, num_lanes: int) -> None:
        """Widens the rollout to ``num_lanes`` lanes, if it has fewer."""
        more = num_lanes - self.rollout.num_lanes
        if more <= 0:
            return
        self.rollout.widened(num_lanes)
        for name in _BY_NUMBER:
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self._lanes += [None] * more
        self._selections.clear()

    def open(self, agents: Sequence[tuple[int, AgentID, ModuleID]]) -> list[Lane]:
        """Opens lanes for agents. Their episodes begin in the first unused row of their lane.

        Args:
            agents: The ``env_index``, the agent id and the module id of each agent.

        Returns:
            The lanes, in the order of ``agents``.
        """
        free = [heappop(self._free_numbers) for _ in range(min(len(agents), len(self._free_numbers)))]
        opened = self._num_opened
        self._num_opened += len(agents) - len(free)
        if self._num_opened > self.rollout.num_lanes:
            self.make_room(max(self._num_opened, self.rollout.num_lanes * 3 // 2))
        rollout = self.rollout
        numbers = np.array([*free, *range(opened, self._num_opened)])
        rows = np.maximum(self.next_row[numbers], self.lookback)
        self.last_row = max(self.last_row, int(rows.max()))
        rollout.reserve(self.last_row + 1)
        rollout.cursor[numbers] = rows * rollout.num_lanes + numbers
        self.begin(numbers, rows)
        return [self._occupied(number, *own) for number, own in zip(numbers.tolist(), agents, strict=True)]

    def _occupied(self, number: int, env_index: int, agent_id: AgentID, module_id: ModuleID) -> Lane:
        lane = self._lanes[number] = Lane(self, number, env_index, agent_id, module_id)
        self.is_live[number], self.env_of[number], self.word_of[number] = True, env_index, _word_of(agent_id)
        return lane

    def keep_states(
        self, numbers: np.ndarray, observed: Tree | None, batch: Mapping[str, Any]
    ) -> Callable[[], dict[int, LanesState]]:
        """Returns a function that returns the present states of all live lanes by their ``env_index``.

        To be called right after a cut. Making the states takes more time than keeping what they are made of.

        Args:
            numbers: ``[N]``, the numbers of the lanes, in the order of the sub-environments and their agents.
            observed: ``[N, ...]``, the environment's newest observations in the sequence of ``order``; None if no piece
                may have overwritten them.
            batch: The rows of the lanes that act next in a prepared forward batch.

        Raises:
            EpisodeError: If custom data of an agent's episode cannot be stored.
        """
        rollout, env_of = self.rollout.copy_of(numbers), self.env_of[numbers]
        ranks, returns, t_started = self.rank[numbers], self.earlier_return[numbers], self.t_started[numbers]
        kept_rows = self.lookback - self.first_row[numbers]
        lanes = [(lane.agent_id, lane.module_id, *lane.keep_id_and_data()) for lane in self.at(numbers)]
        infos: list[dict[int, Any]] = [{} for _ in lanes]  # copies, as pieces and callbacks may change infos
        for position, info in rollout.infos.items():
            number = position % len(lanes)
            row = position // len(lanes) - self.first_row.item(numbers.item(number))
            if info and row >= 0:
                infos[number][row] = storable(info)
        places = np.zeros(self.rollout.num_lanes, np.int64)
        places[self.acting_numbers] = np.arange(self.num_acting)
        acts = ~rollout.pending
        columns = {name: take(_on_host(column), places[numbers[acts]]) for name, column in batch.items()}
        tensors = [name for name, column in batch.items() if isinstance(leaves(column)[0], torch.Tensor)]
        places[self.order] = np.arange(len(self.order))
        observed = None if observed is None else take(observed, places[numbers])

        def states() -> dict[int, LanesState]:
            env_indices, counts = np.unique(env_of, return_counts=True)
            ends = np.cumsum(counts)
            of_lanes = (ranks.tolist(), returns.tolist(), t_started.tolist(), kept_rows.tolist(), infos)
            every_lane = [
                LaneState(place, agent_id, module_id, id_, earlier_return, t, kept, own, custom_data)
                for (agent_id, module_id, id_, custom_data), place, earlier_return, t, kept, own in zip(
                    lanes, *of_lanes, strict=True
                )
            ]
            rollouts = rollout.get_states(np.arange(len(lanes)), counts.tolist())
            bounds = pairwise([0, *ends.tolist()])
            of_batch = pairwise([0, *np.cumsum(acts)[ends - 1].tolist()])
            return {
                env_index: LanesState(
                    lanes=every_lane[begin:end],
                    rollout=own,
                    observed=None if observed is None else take(observed, slice(begin, end)),
                    batch={name: take(column, slice(*rows)) for name, column in columns.items() if rows[0] < rows[1]},
                    tensors=tensors if rows[0] < rows[1] else [],
                )
                for env_index, own, (begin, end), rows in zip(
                    env_indices.tolist(), rollouts, bounds, of_batch, strict=True
                )
            }

        return states

    def set_states(self, states: Mapping[int, LanesState], module_places: Mapping[ModuleID, int]) -> RestoredLanes:
        """Opens the lanes of ``keep_states`` in a new group. They are numbered by module, sub-environment and agent.

        Args:
            states: The states by ``env_index``.
            module_places: Module id to its place among the modules.

        Raises:
            CheckpointError: If the states do not fit this group, or are damaged.
        """
        known = [(env_index, own) for env_index, state in states.items() for own in state.lanes]
        keys = [(module_places[own.module_id], env_index, own.place) for env_index, own in known]
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__))
        self.make_room(len(known))
        self._num_opened = len(known)
        counts, rollouts = [len(own.lanes) for own in states.values()], [own.rollout for own in states.values()]
        self.rollout.set_states(rollouts, counts, order, self.lookback + 1)
        self.rollout.cursor = self.lookback * self.rollout.num_lanes + np.arange(len(known))
        lanes = []
        for number, i in enumerate(order.tolist()):
            env_index, own = known[i]
            if own.kept > self.lookback:
                raise CheckpointError(f"checkpoint: it is damaged: {own.agent_id!r} keeps {own.kept} earlier rows.")
            self.earlier_return[number], self.t_started[number] = own.earlier_return, own.t_started
            self.first_row[number] = self.lookback - own.kept
            lanes.append((self._occupied(number, env_index, own.agent_id, own.module_id), own))
        self.start_row[:] = self.lookback
        self.note_carried()
        observed = [own.observed for own in states.values() if own.observed is not None]
        number_of = np.argsort(order)  # of each lane in the order of the states
        acting = np.argsort(number_of[~self.rollout.pending[number_of]])
        batches = [own for own in states.values() if own.batch]
        names = list(batches[0].batch) if batches else []
        fit = all(
            own.batch.keys() == set(names) and all(alike(own.batch[name], batches[0].batch[name]) for name in names)
            for own in batches
        )
        return RestoredLanes(
            lanes,
            _joined(observed, order) if len(observed) == len(states) else None,
            {name: _joined([own.batch[name] for own in batches], acting) for name in names} if fit else None,
            batches[0].tensors if batches else (),
        )

    def close(self, numbers: np.ndarray) -> None:
        """Closes lanes. Their rows stay for the episodes that are views of them."""
        for number in numbers.tolist():
            heappush(self._free_numbers, number)
            self._lanes[number] = None
        self.rollout.pending[numbers] = self.is_reset_step[numbers] = self.is_live[numbers] = False
        self.next_row[numbers] = self.rows_of(numbers) + 1

    def begin(self, numbers: Any, rows: Any) -> None:
        """Begins episodes in lanes.

        Args:
            numbers: ``[N]``, the numbers of the lanes.
            rows: ``[N]``, the rows of the episodes' first observations.
        """
        self.first_row[numbers] = self.start_row[numbers] = rows
        self.t_started[numbers] = 0
        self.earlier_return[numbers] = 0.0

    # Moving lanes from row to row.

    def advance(self) -> None:
        """Moves the lanes that act to their next rows."""
        # This runs in every step: slices stay slices, which are faster to index than arrays.
        rollout = self.rollout
        step = rollout.num_lanes
        self.t += 1
        self.last_row += 1
        if self.last_row + 1 >= rollout.num_rows:
            rollout.reserve(self.last_row + 1)
        if self.numbers is None:
            rollout.cursor += step
        else:
            rollout.cursor[self.numbers] += step
        if isinstance(self.positions, slice):
            self.positions = slice(self.positions.start + step, self.positions.stop + step)
        else:
            self.positions = rollout.cursor if self.numbers is None else rollout.cursor[self.numbers]

    def begin_again(self, numbers: np.ndarray) -> None:
        """Begins episodes in the rows after the newest ones, which hold the previous episodes' last observations."""
        self.begin(numbers, self._move_on(numbers))

    def _move_on(self, numbers: Any) -> np.ndarray:
        rollout = self.rollout
        positions = rollout.cursor[numbers] + rollout.num_lanes
        rollout.cursor[numbers] = positions
        rollout.pending[numbers] = False
        rows = positions // rollout.num_lanes
        self.last_row = max(self.last_row, int(rows.max()))
        rollout.reserve(self.last_row + 1)
        self._first = None
        return rows

    def credit_and_advance(self, numbers: Any, rewards: Any) -> None:
        """Records the rewards of waiting lanes for their newest rows, and moves the lanes to their next rows.

        Args:
            numbers: ``[N]``, the numbers of the lanes.
            rewards: ``[N]``, their rewards.
        """
        rollout = self.rollout
        rollout.columns[Columns.REWARDS][rollout.cursor[numbers]] = rewards
        self._move_on(numbers)

    def rows_of(self, numbers: np.ndarray) -> np.ndarray:
        """Returns ``[N]`` the newest rows of lanes."""
        return self.rollout.cursor[numbers] // self.rollout.num_lanes

    def rewind(self, numbers: np.ndarray, positions: Positions) -> None:
        """Moves lanes back to the rows in which they have acted, and lets them wait there.

        Observations in later rows are marked as unused.

        Args:
            numbers: ``[N]``, the numbers of the lanes.
            positions: The ``N`` positions of the rows to go back to.
        """
        rollout, newest = self.rollout, self.rollout.cursor[numbers]
        is_slice = isinstance(positions, slice)
        before = np.arange(positions.start, positions.stop) if is_slice else positions
        for position in (undone := newest[newest != before]).tolist():
            rollout.infos.pop(position, None)
        rollout.columns[Columns.T][undone] = -1
        rollout.cursor[numbers] = before
        rollout.pending[numbers] = True
        self._first = None

    def count_steps(self, steps: int) -> None:
        """Adds ``steps`` to the number of steps of the lanes that act."""
        self.num_steps[self.acting_numbers] += steps

    def wait(self) -> None:
        """Marks the lanes that have acted as waiting for the result of their actions."""
        self.rollout.pending[self.acting_numbers] = True

    def first_positions(self) -> np.ndarray:
        """Returns ``[B]`` positions of the oldest kept rows of the acting lanes, in the order of ``rows``."""
        if self._first is None:
            numbers = self.acting_numbers
            self._first = self.first_row[numbers] * self.rollout.num_lanes + numbers
        return self._first

    # The order of the rows.

    def sort(self, module_order: np.ndarray) -> None:
        """Computes ``order``, after lanes were opened or closed, or got another module.

        Args:
            module_order: ``[num_modules]``, the place of each of ``LaneTable.module_ids`` among the modules.
        """
        self._selections.clear()
        live = np.flatnonzero(self.is_live)
        by_row = np.lexsort((self.rank[live], self.env_of[live], module_order[self.module_of[live]]))
        self.order = live[by_row]

    def select(self, module_ids: Sequence[ModuleID], num_ranks: int) -> None:
        """Finds the lanes that act next, and their ``rows``.

        What follows from these lanes is remembered until lanes are opened or closed or get other modules, because
        agents that take turns recur.

        Args:
            module_ids: ``LaneTable.module_ids``.
            num_ranks: A number greater than any ``rank``.
        """
        order = self.order
        numbers = order[~(self.rollout.pending | self.is_reset_step)[order]]
        key = numbers.tobytes()
        known = self._selections.get(key)
        if known is None:
            if len(self._selections) >= _REMEMBERED:
                self._selections.clear()
            known = self._selections[key] = self._selection(numbers, module_ids, num_ranks)
        self.numbers, self.env_indices, self.agent_words, self.places, self.rows = known
        self.words = self._first = None
        self.locate()

    def _selection(self, numbers: np.ndarray, module_ids: Sequence[ModuleID], num_ranks: int) -> _Selection:
        is_all = len(numbers) == self.rollout.num_lanes and bool((numbers == np.arange(len(numbers))).all())
        modules, env_indices = self.module_of[numbers], self.env_of[numbers]
        borders = (modules[1:] != modules[:-1]).nonzero()[0] + 1
        splits = [0, *borders.tolist(), len(numbers)] if len(numbers) else [0]
        present = tuple([module_ids[int(modules[begin])] for begin in splits[:-1]])
        return _Selection(
            None if is_all else numbers,
            env_indices,
            self.word_of[numbers],
            env_indices * num_ranks + self.rank[numbers],
            LiveRows(self, module_ids=present, splits=tuple(splits)),
        )

    def locate(self) -> None:
        """Computes ``positions``, after single lanes have moved."""
        cursor = self.rollout.cursor if self.numbers is None else self.rollout.cursor[self.numbers]
        first = cursor.item(0) if len(cursor) else 0
        if len(cursor) == 1 or (len(cursor) and (cursor == first + np.arange(len(cursor))).all()):
            self.positions = slice(first, first + len(cursor))
        else:
            self.positions = cursor

    def newest(self) -> Positions:
        """Returns the positions of the newest rows of all lanes, in the sequence of ``order``."""
        return self.positions if self.num_acting == len(self.order) else self.rollout.cursor[self.order]

    # Returns and fragments.

    def returns(self, numbers: np.ndarray) -> np.ndarray:
        """Returns ``[N]`` the sums of the rewards in the current chunk. ``numbers`` must not be empty."""
        rollout, first_rows = self.rollout, self.start_row[numbers]
        last_rows = self.rows_of(numbers)
        low, high = int(first_rows.min()), int(last_rows.max())
        rewards = rollout.columns[Columns.REWARDS].reshape(rollout.num_rows, -1)[low:high]
        if len(numbers) < rollout.num_lanes or (numbers[1:] - numbers[:-1] != 1).any():
            rewards = rewards.take(numbers, axis=1)
        if int(first_rows.max()) == low and int(last_rows.min()) == high:
            return _sums(rewards)
        rows = np.arange(low, high)[:, None]
        return _sums(np.where((rows >= first_rows) & (rows < last_rows), rewards, 0.0))

    def total_returns(self, numbers: np.ndarray) -> np.ndarray:
        """Returns ``[N]`` the sums of the rewards in all chunks of the episodes. ``numbers`` must not be empty."""
        return self.earlier_return[numbers] + self.returns(numbers)

    def continue_episodes(self, numbers: np.ndarray, last_rows: np.ndarray, returns: np.ndarray) -> None:
        """Begins the next chunks of episodes after the lookback. It must be called after ``restart``.

        Args:
            numbers: ``[N]``, the numbers of the lanes.
            last_rows: ``[N]``, the rows in which the former chunks ended.
            returns: ``[N]``, the sums of the rewards in the former chunks.
        """
        self.t_started[numbers] += last_rows - self.start_row[numbers]
        self.first_row[numbers] = self.lookback - np.minimum(self.lookback, last_rows - self.first_row[numbers])
        self.start_row[numbers] = self.lookback
        self.earlier_return[numbers] += returns

    def restart(self, num_rows: int) -> None:
        """Continues in a fresh rollout in which all lanes are at the same row.

        Args:
            num_rows: The number of steps that the rollout has rows for. There are spare rows for the last observations
                of episodes: as many as were used in the former rollout, or half of its spare rows if that is more.
        """
        spare = max(self.last_row - self.lookback - num_rows, (self._spare_rows + 1) // 2)
        spare = self._spare_rows = min(spare, num_rows)
        oldest = self.rollout.cursor // max(self.rollout.num_lanes, 1) + 1
        oldest[self.order] = self.first_row[self.order]
        self.rollout = self.rollout.continued(num_rows + spare + self.lookback + 2, self.lookback, oldest)
        self.last_row = self.lookback
        self.note_carried()
        self.next_row[:] = 0
        self._first = None
        self.locate()

    def note_carried(self) -> None:
        """Marks the lanes whose first row after the lookback was recorded before this fragment."""
        first, lanes = self.lookback * self.rollout.num_lanes, self.rollout.num_lanes
        self.carried = self.rollout.columns[Columns.T][first : first + lanes] >= 0


def _sums(rewards: np.ndarray) -> np.ndarray:
    """Returns the sum of each column, added row by row, so that it does not depend on the other columns.

    numpy adds the rows one after another, unless a column is contiguous in memory, which it adds in another order.
    """
    if rewards.shape[1] == 1:
        return np.add.accumulate(rewards)[-1] if len(rewards) else np.zeros(1)
    return np.ascontiguousarray(rewards).sum(axis=0)


@lru_cache(maxsize=4096)
def _word_of(agent_id: AgentID) -> int:
    return name_word(agent_id)


class LiveRows(Rows):
    """The newest rows of the lanes of a group that act. It stays the same object while the lanes move to later rows."""

    __slots__ = ("group",)

    def __init__(self, group: LaneGroup, *, module_ids: tuple[ModuleID, ...], splits: tuple[int, ...]):
        self.group = group
        super().__init__(
            (),
            module_ids=module_ids,
            splits=splits,
            episodes=[],
            counts=[1] * splits[-1],
        )

    @property
    def parts(self) -> tuple[RowPart, ...]:  # type: ignore[override]
        """The current positions of the rows."""
        group, positions = self.group, self.group.positions
        last = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        return (RowPart(group.rollout, positions, group.first_positions(), last),)

    @parts.setter
    def parts(self, value: tuple[RowPart, ...]) -> None:
        pass

    @property
    def episodes(self) -> list[SingleAgentEpisode]:  # type: ignore[override]
        """The ongoing episodes."""
        return [lane.episode for lane in self.group.acting]

    @episodes.setter
    def episodes(self, value: list[SingleAgentEpisode]) -> None:
        pass

    @property
    def action_space(self) -> Space:
        """The environment's action space of all lanes."""
        return self.group.env_action_space

    def get(self, column: str, offset: int = 0, fill: float | None = None) -> Any:
        """Returns a column at the rows. See ``Rows.get``."""
        # Reading the newest observations in every step must be fast, so offset 0 needs no index arithmetic.
        rollout = self.group.rollout
        if offset == 0 and column in rollout.columns:
            positions, values = self.group.positions, rollout.columns[column]
            if column not in rollout.layered and type(positions) is slice and type(values) is np.ndarray:
                return values[positions]
            return rollout.read(column, positions)
        return super().get(column, offset, fill)

    def own_steps(self) -> np.ndarray:
        """Returns ``[B]`` int64; see ``Rows.own_steps``."""
        group, positions = self.group, self.group.positions
        last = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        numbers = group.acting_numbers
        return group.t_started[numbers] + last // group.rollout.num_lanes - group.start_row[numbers]

    def reach(self, column: str, offset: int) -> tuple[Any, np.ndarray]:
        """Returns a column at an offset from the rows. See ``Rows.reach``."""
        # The previous step is often read. If all lanes have one, no index arithmetic is needed.
        group = self.group
        rollout, positions = group.rollout, group.positions
        begin = positions.start - rollout.num_lanes if type(positions) is slice else -1
        if offset == -1 and begin >= 0 and column not in rollout.layered and column in rollout.columns:
            end = begin + len(self)
            reached = group.first_positions() <= np.arange(begin, end)
            if reached.all():
                return _copied(rollout.columns[column], slice(begin, end)), reached
        return super().reach(column, offset)

    def set(self, column: str, values: Any) -> None:
        """Writes a column at the newest rows. See ``Rows.set``."""
        if type(values) is not np.ndarray or values.shape[:1] != (self._length,):
            self.check_length(column, values)
        self.group.rollout.write(column, self.group.positions, values)


def _on_host(column: Any) -> Tree:
    return tree_map(lambda leaf: leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf, column)


def _joined(columns: Sequence[Tree], order: np.ndarray) -> Tree:
    """Concatenates columns and puts their rows in an order."""
    return tree_map(lambda *parts: np.concatenate(parts)[order], *columns)


def _copied(column: Any, positions: slice) -> Any:
    if type(column) is dict:
        return {key: _copied(part, positions) for key, part in column.items()}
    return column[positions].copy() if type(column) is np.ndarray else tree_map(np.copy, take(column, positions))


class Pick:
    """Selects items of a list or of arrays, in another order."""

    __slots__ = ("_index", "_of_list")

    def __init__(self, index: np.ndarray):
        """Stores ``[N]`` the places of the selected items."""
        self._index = index
        self._of_list: Callable[[list], Any] | None = None

    def __call__(self, items: Any) -> Any:
        """Returns the selected items of ``items``, a list or a tree of arrays."""
        if type(items) is not list:
            return tree_map(lambda leaf: leaf[self._index], items)
        if self._of_list is None:
            places = self._index.tolist()
            self._of_list = itemgetter(*places) if len(places) > 1 else lambda given: [given[i] for i in places]
        return self._of_list(items)


def picker(index: Sequence[int] | np.ndarray, length: int) -> Pick | None:
    """Returns a Pick for the items at ``index`` of ``length`` items. None if these are all items in their order."""
    places = np.asarray(index, np.int64)
    return None if len(places) == length and (places == np.arange(length)).all() else Pick(places)
