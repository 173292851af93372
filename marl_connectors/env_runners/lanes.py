"""Who stands in which lane of a runner's rollouts, and in which order their rows go to the modules."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.env_runners.live_rows import LiveRows
from marl_connectors.env_runners.lives import Lives
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import Positions, Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.seeding import name_word
from marl_connectors.typing import AgentID, EpisodeID, ModuleID


class Lane:
    """One live agent's place.

    Attributes:
        number: The lane of the group's rollout.
        env_index: The environment copy.
        agent_id: Who.
        rank: The agent's place in the copy's list of agents.
        module_id: For whom the agent's rows are.
        rests: Whether the episode has no first observation yet, as the copy's next step only resets it.
    """

    __slots__ = ("_episode", "agent_id", "env_index", "group", "module_id", "number", "rank", "rests")

    def __init__(self, group: LaneGroup, number: int, env_index: int, agent_id: AgentID):
        self.group = group
        self.number = number
        self.env_index = env_index
        self.agent_id = agent_id
        self.rank = 0
        self.module_id: ModuleID = ""
        self.rests = False
        self._episode: SingleAgentEpisode | None = None

    @property
    def episode(self) -> SingleAgentEpisode:
        """The agent's ongoing episode, a view of the lane. Made now if nobody has asked for it before."""
        if self._episode is None:
            ongoing: Any = self.group.ongoing[self.env_index]
            _ = ongoing.agent_episodes  # makes those of all agents
        return self._episode  # type: ignore[return-value]

    @episode.setter
    def episode(self, episode: SingleAgentEpisode) -> None:
        self._episode = episode

    def has_no_view(self) -> None:
        """From now on: whoever asks for ``episode`` gets a new one."""
        self._episode = None

    @property
    def row(self) -> int:
        """The row of the newest observation."""
        rollout = self.group.rollout
        return int(rollout.cursor[self.number]) // rollout.num_lanes

    @property
    def is_waiting(self) -> bool:
        """Whether the agent has acted on its newest observation, and other agents' turns come before its next one."""
        return bool(self.group.rollout.pending[self.number])

    @property
    def storage(self) -> LaneStorage:
        """What the agent's episode is a view of."""
        return self.episode.storage  # type: ignore[return-value]

    def begin(self) -> None:
        """An episode begins, whose first observation is in the newest row."""
        rollout = self.group.rollout
        position = int(rollout.cursor[self.number])
        rollout.infos.pop(position, None)  # of the lane's former agent
        self.group.lives.begin(self.number, position // rollout.num_lanes)
        self._episode = None

    def continue_episode(self) -> None:
        """Makes the successor of the episode's chunk, after the group has gone on in another rollout."""
        former = self.episode
        self.view(former.id_, former.agent_id, former.module_id, former.multi_agent_episode_id)
        if former._custom_data:
            self.episode._custom_data = copy.deepcopy(former._custom_data)

    def new_storage(self) -> LaneStorage:
        """For a view of the lane."""
        lives, number = self.group.lives, self.number
        first_row, start_row = lives.first_row.item(number), lives.start_row.item(number)
        return LaneStorage(self.group.rollout, number, first_row=first_row, start_row=start_row)

    def view(
        self,
        id_: EpisodeID,
        agent_id: AgentID | None = None,
        module_id: ModuleID | None = None,
        multi_agent_episode_id: EpisodeID | None = None,
    ) -> SingleAgentEpisode:
        """Makes ``episode``."""
        rollout = self.group.rollout
        self._episode = SingleAgentEpisode.from_storage(
            self.new_storage(),
            id_=id_,
            agent_id=agent_id,
            module_id=module_id,
            multi_agent_episode_id=multi_agent_episode_id,
            t_started=self.group.lives.t_started.item(self.number),
            observation_space=rollout.observation_space,
            action_space=rollout.action_space,
        )
        return self._episode

    def end_episode(self, position: int, terminated: bool, truncated: bool) -> tuple[float, int]:
        """Ends the episode at its newest row's position; what the agent was paid, and its steps, in all chunks."""
        episode, group = self.episode, self.group
        rollout, lanes, storage = group.rollout, group.rollout.num_lanes, self.storage
        storage.stop_row = position // lanes
        episode.is_terminated, episode.is_truncated = terminated, truncated
        paid = rollout.columns[Columns.REWARDS][storage.start_row * lanes + self.number : position : lanes]
        return group.lives.earlier_return.item(self.number) + float(paid.sum()), episode.t_started + len(paid)


class LaneGroup:
    """All lanes of agents with like spaces whose modules have like states, over one rollout.

    Attributes:
        index: The group's place among the groups.
        rollout: The columns of the current fragment.
        kind: What the lanes' modules have in common; ``CopyLanes`` says what.
        env_action_space: Of the environment. The rollout's, of recorded actions, is the modules'.
        lives: Of the agent episodes in the lanes.
        carried: ``[num_lanes]`` bool, whose first row after the lookback was in the fragment before, too.
        ongoing: All copies' episodes.
        lanes: The live lanes, by module, copy and rank.
        acting: Those that act next, in the same order; all of them unless the environment is turn-based.
        numbers: ``[B]`` the numbers of the lanes that act, in the order of the rows, or None if they are ``0, 1, ...,
            num_lanes - 1``.
        positions: Of the newest rows, in that order.
        env_indices: ``[B]`` the copies of the lanes that act, likewise.
        agent_words: ``[B]`` uint64, what names the agents' random streams, likewise.
        words: ``[B]`` uint64, of the streams themselves, likewise; None until somebody has asked.
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
        ongoing: Sequence[Any] = (),
        num_rows: int = 0,
    ):
        self.index = index
        self.kind = kind
        self.env_action_space = action_space
        self.lookback = lookback
        recorded = action_space if module_action_space is None else module_action_space
        self.rollout = Rollout(observation_space, recorded, num_rows=max(num_rows, lookback + 2), num_lanes=0)
        self.lives = Lives()
        self.ongoing = ongoing
        self.carried = np.zeros(0, bool)
        self.lanes: list[Lane] = []
        self.acting: list[Lane] = []
        self.numbers: np.ndarray | None = None
        self.positions: Positions = slice(0, 0)
        self.env_indices = np.zeros(0, np.int64)
        self.agent_words = np.zeros(0, np.uint64)
        self.words: np.ndarray | None = None
        self.rows = LiveRows(self, module_ids=(), splits=(0,))
        self.t = np.zeros(0, np.int32)
        self.last_row = lookback
        self._num_opened = 0
        self._free_numbers: list[int] = []  # a heap, of those below ``_num_opened``
        self._next_row: dict[int, int] = {}
        self._first: np.ndarray | None = None

    def matches(self, observation_space: Space, action_space: Space, kind: Hashable) -> bool:
        """Whether agents of these spaces, and of modules with such a state, belong here."""
        return (
            spaces.same(self.rollout.observation_space, observation_space, ordered=False)
            and spaces.same(self.env_action_space, action_space, ordered=False)
            and self.kind == kind
        )

    def make_room(self, num_lanes: int) -> None:
        """Makes the rollout exactly wide enough for that many lanes, if it is not yet."""
        if num_lanes > self.rollout.num_lanes:
            self.rollout.widened(num_lanes)
            self.lives.widen(num_lanes)
            self.carried = np.pad(self.carried, (0, num_lanes - len(self.carried)))

    def open(self, env_index: int, agent_id: AgentID) -> Lane:
        """A free lane for an agent; its first row is the next one that is unused there."""
        number = self._lowest_free_number()
        if number >= self.rollout.num_lanes:
            self.make_room(max(number + 1, number * 3 // 2))
        row = self._next_row.get(number, self.lookback)
        self.rollout.reserve(row + 1)
        position = self.rollout.cursor[number] = row * self.rollout.num_lanes + number
        self.rollout.columns[Columns.T][position] = -1  # after a cut, it holds the former agent's last observation
        self._next_row[number] = row + 1
        self.last_row = max(self.last_row, row)
        if row == self.lookback:
            self.carried[number] = False
        return Lane(self, number, env_index, agent_id)

    def reopen(self, number: int, env_index: int, agent_id: AgentID) -> Lane:
        """A lane as it was at a checkpoint: its newest row is the first one after the lookback."""
        for other in range(self._num_opened, number + 1):
            self._free_numbers.append(other)
        self._num_opened = max(self._num_opened, number + 1)
        self._free_numbers.remove(number)
        heapify(self._free_numbers)
        self.rollout.cursor[number] = self.lookback * self.rollout.num_lanes + number
        return Lane(self, number, env_index, agent_id)

    def _lowest_free_number(self) -> int:
        if self._free_numbers:
            return heappop(self._free_numbers)
        self._num_opened += 1
        return self._num_opened - 1

    def close(self, lane: Lane) -> None:
        """Frees a lane; its rows stay for the episodes that are views of them."""
        heappush(self._free_numbers, lane.number)
        self.rollout.pending[lane.number] = False
        self._next_row[lane.number] = lane.row + 1

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

    def begin_again(self, numbers: np.ndarray) -> None:
        """Moves lanes on by a row, as ``skip_row``, and begins episodes there."""
        rollout = self.rollout
        positions = rollout.cursor[numbers] + rollout.num_lanes
        rollout.cursor[numbers] = positions
        rows = positions // rollout.num_lanes
        self.last_row = max(self.last_row, int(rows.max()))
        rollout.reserve(self.last_row + 1)
        self.lives.begin(numbers, rows)
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

    def go_back(self, numbers: Sequence[int]) -> None:
        """Undoes ``go_on``: the lanes wait in the rows before; their newest ones are as if nobody had observed."""
        rollout = self.rollout
        for position in rollout.cursor[numbers].tolist():
            rollout.infos.pop(position, None)
        rollout.columns[Columns.T][rollout.cursor[numbers]] = -1
        rollout.cursor[numbers] -= rollout.num_lanes
        rollout.pending[numbers] = True
        self._first = None

    def first_positions(self) -> np.ndarray:
        """``[B]`` where the oldest rows are that the acting lanes' episodes keep, in the order of the rows."""
        if self._first is None:
            numbers = np.arange(self.rollout.num_lanes) if self.numbers is None else self.numbers
            self._first = self.lives.first_row[numbers] * self.rollout.num_lanes + numbers
        return self._first

    def arrange(self, module_order: Mapping[ModuleID, int]) -> None:
        """Puts the lanes in row order and makes ``rows``, after lanes were opened or closed."""
        self.lanes.sort(key=lambda lane: (module_order.get(lane.module_id, -1), lane.env_index, lane.rank))
        waiting = self.rollout.pending
        self.acting = [lane for lane in self.lanes if not lane.rests]
        if waiting.any():
            self.acting = [lane for lane in self.acting if not waiting[lane.number]]
        numbers = [lane.number for lane in self.acting]
        identity = numbers == list(range(self.rollout.num_lanes))
        self._first = None
        self.numbers = None if identity else np.array(numbers, np.int64)
        self.env_indices = np.array([lane.env_index for lane in self.acting], np.int64)
        self.words = None
        self.agent_words = np.array([name_word(lane.agent_id) for lane in self.acting], np.uint64)
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

    def returns(self, numbers: np.ndarray) -> np.ndarray:
        """``[N]`` what the agents of some lanes, one at least, were paid in this chunk."""
        rollout, first_rows = self.rollout, self.lives.start_row[numbers]
        last_rows = rollout.cursor[numbers] // rollout.num_lanes
        low, high = int(first_rows.min()), int(last_rows.max())
        rewards = rollout.columns[Columns.REWARDS].reshape(rollout.num_rows, -1)[low:high]
        if len(numbers) < rollout.num_lanes or (np.diff(numbers) != 1).any():
            rewards = rewards[:, numbers]
        if int(first_rows.max()) == low and int(last_rows.min()) == high:
            return rewards.sum(axis=0)
        rows = np.arange(low, high)[:, None]
        return np.where((rows >= first_rows) & (rows < last_rows), rewards, 0.0).sum(axis=0)

    def paid(self, numbers: np.ndarray) -> np.ndarray:
        """``[N]`` what they were paid in all chunks of their episodes."""
        return self.lives.earlier_return[numbers] + self.returns(numbers)

    def restart(self, num_rows: int) -> None:
        """Goes on in a fresh rollout in which all lanes are in step.

        Args:
            num_rows: How many steps it is for. A row more is needed for each last observation of an episode, and there
                is room for as many of them as in the rollout before.
        """
        spare = min(max(self.last_row - self.lookback - num_rows, 0), num_rows)
        oldest = self.rollout.cursor // max(self.rollout.num_lanes, 1) + 1
        in_use = [lane.number for lane in self.lanes]
        oldest[in_use] = self.lives.first_row[in_use]
        self.rollout = self.rollout.continued(num_rows + spare + self.lookback + 2, self.lookback, oldest)
        self.last_row = self.lookback
        self.note_carried()
        self._next_row = {}
        self._first = None
        self.locate()

    def note_carried(self) -> None:
        """Takes note of the lanes whose first row after the lookback was there before this fragment."""
        first, lanes = self.lookback * self.rollout.num_lanes, self.rollout.num_lanes
        self.carried = self.rollout.columns[Columns.T][first : first + lanes] >= 0
