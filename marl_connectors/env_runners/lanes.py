"""Who stands in which lane of a runner's rollouts, and in which order their rows go to the modules."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import Positions, Rollout
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, EpisodeID, ModuleID


class Lane:
    """One live agent's place.

    Attributes:
        number: The lane of the group's rollout.
        env_index: The environment copy.
        slot: The agent's place among its copy's lanes of this group; names its random stream.
        agent_id: Who.
        module_id: For whom the agent's rows are.
        episode: The agent's ongoing episode, a view of the lane.
        earlier_return: What the agent was paid in earlier chunks of the episode.
        rests: Whether the episode has no first observation yet, as the copy's next step only resets it.
    """

    __slots__ = ("agent_id", "earlier_return", "env_index", "episode", "group", "module_id", "number", "rests", "slot")

    def __init__(self, group: LaneGroup, number: int, env_index: int, slot: int, agent_id: AgentID):
        self.group = group
        self.number = number
        self.env_index = env_index
        self.slot = slot
        self.agent_id = agent_id
        self.module_id: ModuleID = ""
        self.episode: SingleAgentEpisode = None  # type: ignore[assignment]
        self.earlier_return = 0.0
        self.rests = False

    @property
    def row(self) -> int:
        """The row of the newest observation."""
        rollout = self.group.rollout
        return int(rollout.cursor[self.number]) // rollout.num_lanes

    @property
    def acts_next(self) -> bool:
        """Whether there is a new observation that the agent has to act on."""
        return not (self.rests or self.is_waiting)

    @property
    def is_waiting(self) -> bool:
        """Whether the agent has acted on its newest observation, and other agents' turns come before its next one."""
        return bool(self.group.rollout.pending[self.number])

    @property
    def storage(self) -> LaneStorage:
        """What the agent's episode is a view of."""
        return self.episode.storage  # type: ignore[return-value]

    def begin_episode(
        self,
        id_: EpisodeID,
        agent_id: AgentID | None = None,
        module_id: ModuleID | None = None,
        multi_agent_episode_id: EpisodeID | None = None,
    ) -> SingleAgentEpisode:
        """An episode whose first observation is in the newest row."""
        rollout = self.group.rollout
        position = int(rollout.cursor[self.number])
        rollout.infos.pop(position, None)  # of the lane's former agent
        self.earlier_return = 0.0
        return self.view(id_, agent_id, module_id, multi_agent_episode_id, start_row=position // rollout.num_lanes)

    def continue_episode(self, last_row: int) -> None:
        """Freezes the episode's chunk, and begins its successor in the rollout that the group goes on in.

        Args:
            last_row: The chunk's last observation, in the rollout before.
        """
        former = self.episode
        storage: Any = former.storage
        storage.stop_row = last_row
        lookback, kept = self.group.lookback, last_row - storage.first_row
        self.view(
            former.id_,
            former.agent_id,
            former.module_id,
            former.multi_agent_episode_id,
            start_row=lookback,
            lookback=lookback if lookback < kept else kept,
            t_started=former.t_started + last_row - storage.start_row,
        )
        if former._custom_data:
            self.episode._custom_data = copy.deepcopy(former._custom_data)

    def view(
        self,
        id_: EpisodeID,
        agent_id: AgentID | None,
        module_id: ModuleID | None,
        multi_agent_episode_id: EpisodeID | None,
        *,
        start_row: int,
        lookback: int = 0,
        t_started: int = 0,
    ) -> SingleAgentEpisode:
        """Makes ``episode`` a view of the lane, from ``start_row`` on and with ``lookback`` rows before it."""
        rollout = self.group.rollout
        self.episode = SingleAgentEpisode.from_storage(
            LaneStorage(rollout, self.number, first_row=start_row - lookback, start_row=start_row),
            id_=id_,
            agent_id=agent_id,
            module_id=module_id,
            multi_agent_episode_id=multi_agent_episode_id,
            t_started=t_started,
            observation_space=rollout.observation_space,
            action_space=rollout.action_space,
        )
        return self.episode

    def end_episode(self, position: int, terminated: bool, truncated: bool) -> float:
        """Ends the episode at its newest row's position; what the agent was paid in all of its chunks."""
        episode, rollout = self.episode, self.group.rollout
        lanes, storage = rollout.num_lanes, self.storage
        storage.stop_row = position // lanes
        episode.is_terminated, episode.is_truncated = terminated, truncated
        paid = rollout.columns[Columns.REWARDS][storage.start_row * lanes + self.number : position : lanes]
        return self.earlier_return + float(paid.sum())


class LaneGroup:
    """All lanes of agents with like spaces whose modules have like states, over one rollout.

    Attributes:
        index: The group's place among the groups.
        rollout: The columns of the current fragment.
        kind: What the lanes' modules have in common; ``CopyLanes`` says what.
        env_action_space: Of the environment. The rollout's, of recorded actions, is the modules'.
        lanes: The live lanes, by module, copy and slot.
        acting: Those that act next, in the same order; all of them unless the environment is turn-based.
        numbers: ``[B]`` the numbers of the lanes that act, in the order of the rows, or None if they are ``0, 1, ...,
            num_lanes - 1``.
        positions: Of the newest rows, in that order.
        rows: What the pipelines get.
        t: ``[B]`` int32, the env step of each newest observation, in the order of the rows.
    """

    def __init__(
        self,
        index: int,
        observation_space: Space,
        action_space: Space,
        lookback: int,
        kind: Hashable = None,
        module_action_space: Space | None = None,
    ):
        self.index = index
        self.kind = kind
        self.env_action_space = action_space
        self.lookback = lookback
        recorded = action_space if module_action_space is None else module_action_space
        self.rollout = Rollout(observation_space, recorded, num_rows=lookback + 2, num_lanes=0)
        self.lanes: list[Lane] = []
        self.acting: list[Lane] = []
        self.numbers: np.ndarray | None = None
        self.positions: Positions = slice(0, 0)
        self.rows: Rows = LiveRows(self, module_ids=(), splits=(0,))
        self.t = np.zeros(0, np.int32)
        self.last_row = lookback
        self._numbers_in_use: set[int] = set()
        self._next_row: dict[int, int] = {}
        self._first: np.ndarray | None = None
        self._slots: dict[int, dict[AgentID, int]] = {}
        self.num_slots = 0
        """Slots that every copy has from the start; lanes beyond are of late joiners."""

    def matches(self, observation_space: Space, action_space: Space, kind: Hashable) -> bool:
        """Whether agents of these spaces, and of modules with such a state, belong here."""
        return (
            self.rollout.observation_space == observation_space
            and self.env_action_space == action_space
            and self.kind == kind
        )

    def make_room(self, num_lanes: int) -> None:
        """Makes the rollout exactly wide enough for that many lanes, if it is not yet."""
        if num_lanes > self.rollout.num_lanes:
            self.rollout.widened(num_lanes)

    def open(self, env_index: int, agent_id: AgentID) -> Lane:
        """A free lane for an agent; its first row is the next one that is unused there."""
        slots = self._slots.setdefault(env_index, {})
        if agent_id not in slots:
            slots[agent_id] = _lowest_not_in(set(slots.values()))
        slot = slots[agent_id]
        number = _lowest_not_in(self._numbers_in_use)
        if number >= self.rollout.num_lanes:
            self.rollout.widened(max(number + 1, number * 3 // 2))
        self._numbers_in_use.add(number)
        row = self._next_row.get(number, self.lookback)
        self.rollout.reserve(row + 1)
        position = self.rollout.cursor[number] = row * self.rollout.num_lanes + number
        self.rollout.columns[Columns.T][position] = -1  # after a cut, it holds the former agent's last observation
        self._next_row[number] = row + 1
        self.last_row = max(self.last_row, row)
        return Lane(self, number, env_index, slot, agent_id)

    def reopen(self, number: int, env_index: int, slot: int, agent_id: AgentID) -> Lane:
        """A lane as it was at a checkpoint: its newest row is the first one after the lookback."""
        self._numbers_in_use.add(number)
        self._slots.setdefault(env_index, {})[agent_id] = slot
        self.rollout.cursor[number] = self.lookback * self.rollout.num_lanes + number
        return Lane(self, number, env_index, slot, agent_id)

    def get_slots(self) -> list[list[Any]]:
        """``[env index, agent id, slot]`` of all agents that have a slot, live or not; for checkpoints."""
        return [[i, agent_id, slot] for i, slots in self._slots.items() for agent_id, slot in slots.items()]

    def set_slots(self, slots: Sequence[Sequence[Any]]) -> None:
        """Takes what ``get_slots`` gave."""
        self._slots = {}
        for env_index, agent_id, slot in slots:
            self._slots.setdefault(env_index, {})[agent_id] = slot

    def close(self, lane: Lane) -> None:
        """Frees a lane; its rows stay for the episodes that are views of them."""
        self._numbers_in_use.discard(lane.number)
        self.rollout.pending[lane.number] = False
        self._next_row[lane.number] = lane.row + 1
        if lane.slot >= self.num_slots:  # a late joiner: forget the id, or a stream of new ids would grow for ever
            self._slots[lane.env_index].pop(lane.agent_id, None)

    def advance(self) -> None:
        """Closes all newest rows: the rows after them are open now. A hot path."""
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

    def skip_row(self, lane: Lane) -> None:
        """Moves a lane on by a row: its newest one is a last observation, the next episode starts after it."""
        self.rollout.cursor[lane.number] += self.rollout.num_lanes
        self.last_row = max(self.last_row, lane.row)
        self.rollout.reserve(self.last_row + 1)
        self._first = None

    def go_on(self, numbers: list[int], rewards: list[float]) -> None:
        """Pays lanes that wait for what they did in their newest rows, and closes these. A hot path."""
        rollout = self.rollout
        positions = rollout.cursor[numbers]
        rollout.columns[Columns.REWARDS][positions] = rewards
        rollout.pending[numbers] = False
        positions += rollout.num_lanes
        rollout.cursor[numbers] = positions
        self.last_row = max(self.last_row, int(positions.max()) // rollout.num_lanes)
        rollout.reserve(self.last_row + 1)
        self._first = None

    def first_positions(self) -> np.ndarray:
        """``[B]`` where the oldest rows are that the acting lanes' episodes keep, in the order of the rows."""
        if self._first is None:
            lanes = self.rollout.num_lanes
            self._first = np.array([lane.storage.first_row * lanes + lane.number for lane in self.acting], np.int64)
        return self._first

    def arrange(self, module_order: dict[ModuleID, int]) -> None:
        """Puts the lanes in row order and makes ``rows``, after lanes were opened or closed."""
        self.lanes.sort(key=lambda lane: (module_order.get(lane.module_id, -1), lane.env_index, lane.slot))
        waiting = self.rollout.pending
        self.acting = [lane for lane in self.lanes if not lane.rests]
        if waiting.any():
            self.acting = [lane for lane in self.acting if not waiting[lane.number]]
        numbers = [lane.number for lane in self.acting]
        identity = numbers == list(range(self.rollout.num_lanes))
        self._first = None
        self.numbers = None if identity else np.array(numbers, np.int64)
        self.locate()
        modules = [lane.module_id for lane in self.acting]
        present = sorted(set(modules), key=lambda m: module_order.get(m, -1))
        splits = [0]
        for module_id in present:
            splits.append(splits[-1] + modules.count(module_id))
        self.rows = LiveRows(self, module_ids=tuple(present), splits=tuple(splits))

    def locate(self) -> None:
        """Works out ``positions`` after single lanes have moved."""
        cursor = self.rollout.cursor if self.numbers is None else self.rollout.cursor[self.numbers]
        if self.numbers is None and len(cursor) and (cursor == cursor[0] + np.arange(len(cursor))).all():
            self.positions = slice(int(cursor[0]), int(cursor[0]) + len(cursor))
        else:
            self.positions = cursor

    def newest(self) -> Positions:
        """Where the newest rows of all lanes are, in the order of ``lanes``."""
        if len(self.acting) == len(self.lanes):
            return self.positions
        return self.rollout.cursor[[lane.number for lane in self.lanes]]

    def chunk_ends(self) -> tuple[list[int], list[float]]:
        """For each lane, in the order of the rows: its newest row, and what it was paid in this chunk."""
        rollout = self.rollout
        numbers = [lane.number for lane in self.lanes]
        starts = np.array([lane.storage.start_row for lane in self.lanes])
        ends = rollout.cursor[numbers] // max(rollout.num_lanes, 1)
        rewards = rollout.columns[Columns.REWARDS].reshape(rollout.num_rows, -1)[:, numbers]
        rows = np.arange(rollout.num_rows)[:, None]
        returns = np.where((rows >= starts) & (rows < ends), rewards, 0.0).sum(axis=0)
        return ends.tolist(), returns.tolist()

    def restart(self, num_rows: int) -> None:
        """Goes on in a fresh rollout in which all lanes are in step."""
        self.rollout = self.rollout.continued(num_rows + self.lookback + 2, self.lookback)
        self.last_row = self.lookback
        self._next_row = {}
        self._first = None
        self.locate()


class LiveRows(Rows):
    """The newest rows of a group's lanes: the same object all the time, while they move on."""

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
        """Where the rows are now."""
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
        """Of all lanes, as the environment has it."""
        return self.group.env_action_space

    def get(self, column: str, offset: int = 0, fill: float | None = None) -> Any:
        """A hot path for the newest observations: no index arithmetic."""
        if offset == 0 and column in self.group.rollout.columns:
            return self.group.rollout.read(column, self.group.positions)
        return super().get(column, offset, fill)

    def set(self, column: str, values: Any) -> None:
        """Writes to the newest rows."""
        self.check_length(column, values)
        self.group.rollout.write(column, self.group.positions, values)


def _lowest_not_in(taken: set[int]) -> int:
    return next(n for n in range(len(taken) + 1) if n not in taken)


def picker(order: Sequence[int], length: int) -> Callable[[Any], Any] | None:
    """A function that takes ``length`` items (a list, or arrays) and gives those of ``order``; None if all stand so."""
    if list(order) == list(range(length)):
        return None
    index = np.array(order, np.int64)
    pick_items = itemgetter(*order) if len(order) > 1 else lambda items: [items[i] for i in order]

    def pick(items: Any) -> Any:
        return pick_items(items) if type(items) is list else tree_map(lambda leaf: leaf[index], items)

    return pick
