"""Which agent stands in which lane of the rollouts, and which lanes act next, in what order."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.env_runners.live_rows import LiveRows, Pick, picker
from marl_connectors.env_runners.step_counts import StepCounts
from marl_connectors.episodes.agent_views import AgentChunk, EndedLanes, view_of
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rollout import Positions, Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.rl_module.module_states import state_kind
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.seeding import name_word
from marl_connectors.typing import AgentID, EpisodeID, ModuleID

_BY_NUMBER = (
    "first_row",
    "start_row",
    "t_started",
    "earlier_return",
    "carried",
    "rests",
    "is_live",
    "env_of",
    "rank",
    "module_of",
    "word_of",
    "num_steps",
    "next_row",
)
"""The arrays of a LaneGroup with an entry for each lane."""
_REMEMBERED_SPACES = 1000
"""Of so many pairs of spaces it is remembered which group they belong to: comparing spaces takes its time."""


class Lane:
    """The place of one live agent.

    Attributes:
        group: The group whose rollout the lane is in.
        number: The lane of that rollout.
        env_index: The sub-environment.
        agent_id: Who.
        module_id: Who chooses the agent's actions.
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
        """The agent's ongoing episode, a view of the lane. Made now if nobody has asked for it before."""
        if self._episode is None:
            ongoing: Any = self.group.ongoing[self.env_index]
            _ = ongoing.agent_episodes  # makes those of all agents
        return self._episode  # type: ignore[return-value]

    @episode.setter
    def episode(self, episode: SingleAgentEpisode) -> None:
        self._episode = episode

    @property
    def has_episode(self) -> bool:
        """Whether ``episode`` has been made."""
        return self._episode is not None

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

    def continue_episode(self) -> None:
        """Makes the successor of the episode's chunk, after the group has gone on in another rollout."""
        former = self.episode
        self.view(former.id_, former.agent_id, former.module_id, former.multi_agent_episode_id)
        if former._custom_data:
            self.episode._custom_data = copy.deepcopy(former._custom_data)

    def new_storage(self) -> LaneStorage:
        """For a view of the lane."""
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
        """Makes ``episode``."""
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
    """The agents of an ongoing episode, all of whom have been there from its beginning.

    Attributes:
        lanes: Agent to lane; none of them has a view yet.
    """

    lanes: dict[AgentID, Lane]

    def agent_steps(self) -> int:
        """How many steps all agents have made in the chunk."""
        return sum(lane.row - int(lane.group.start_row[lane.number]) for lane in self.lanes.values())

    def chunks(self, episode: MultiAgentEpisode) -> list[AgentChunk]:
        """What a batch has to know of the agents' episodes, which makes none."""
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
        """The agents' episodes, which their lanes know from now on."""
        for agent_id, lane in self.lanes.items():
            t_started = int(lane.group.t_started[lane.number])
            lane.episode = view_of(episode, agent_id, lane.new_storage(), t_started)
        return {agent_id: lane.episode for agent_id, lane in self.lanes.items()}


class LaneGroup:
    """All lanes of agents with like spaces whose modules have like states, over one rollout.

    Attributes:
        index: The group's place among the groups.
        rollout: The columns of the current fragment.
        kind: What the lanes' modules have in common; ``LaneTable`` says what.
        env_action_space: Of the environment. The rollout's, of recorded actions, is the modules'.
        ongoing: The episodes of all sub-environments.
        first_row: ``[num_lanes]`` int64, the oldest row that each lane's ongoing episode keeps.
        start_row: ``[num_lanes]`` int64, the row of its chunk's first observation; rows before it are lookback.
        t_started: ``[num_lanes]`` int64, the agent's own steps before ``start_row``.
        earlier_return: ``[num_lanes]``, what the agent was paid in earlier chunks.
        carried: ``[num_lanes]`` bool, whose first row after the lookback was in the fragment before, too.
        rests: ``[num_lanes]`` bool, whose episode has no first observation yet, as the next step only resets it.
        is_live: ``[num_lanes]`` bool, whose lane is somebody's.
        env_of: ``[num_lanes]`` int64, the sub-environment.
        rank: ``[num_lanes]`` int64, the agent's place in its sub-environment.
        module_of: ``[num_lanes]`` int64, the module's place in ``LaneTable.module_ids``.
        word_of: ``[num_lanes]`` uint64, what names the agent's random streams.
        num_steps: ``[num_lanes]`` int64, the agent's steps that are in no ``StepCounts`` yet.
        next_row: ``[num_lanes]`` int64, the first row that is unused, of lanes that are nobody's; 0 if all are.
        order: The numbers of all live lanes, by module, sub-environment and the agents' order there.
        numbers: ``[B]`` those of the lanes that act next, in the same order, or None if they are ``0, 1, ...,
            num_lanes - 1``.
        positions: Of the newest rows of those.
        env_indices: ``[B]`` their sub-environments.
        places: ``[B]`` ascending with the sub-environment and the agent's rank.
        agent_words: ``[B]`` uint64, what names the agents' random streams.
        words: ``[B]`` uint64, of the streams themselves; None until somebody has asked.
        rows: What the pipelines get; the same object as long as the same lanes act.
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
    ):
        self.index = index
        self.kind = kind
        self.env_action_space = action_space
        self.lookback = lookback
        recorded = action_space if module_action_space is None else module_action_space
        self.rollout = Rollout(observation_space, recorded, num_rows=max(num_rows, lookback + 2), num_lanes=0)
        self.ongoing = ongoing
        self.first_row = np.zeros(0, np.int64)
        self.start_row = np.zeros(0, np.int64)
        self.t_started = np.zeros(0, np.int64)
        self.earlier_return = np.zeros(0)
        self.carried = np.zeros(0, bool)
        self.rests = np.zeros(0, bool)
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
        self._free_numbers: list[int] = []  # a heap, of those below ``_num_opened``
        self._first: np.ndarray | None = None
        self.places = np.zeros(0, np.int64)

    def matches(self, observation_space: Space, action_space: Space, kind: Hashable) -> bool:
        """Whether agents of these spaces, and of modules with such a state, belong here."""
        return (
            spaces.same(self.rollout.observation_space, observation_space, ordered=False)
            and spaces.same(self.env_action_space, action_space, ordered=False)
            and self.kind == kind
        )

    # Lanes come and go.

    @property
    def lanes(self) -> list[Lane]:
        """The live lanes, in ``order``."""
        return self.at(self.order)

    @property
    def acting(self) -> list[Lane]:
        """The lanes that act next, in the order of ``rows``."""
        return self.at(self.acting_numbers)

    @property
    def num_acting(self) -> int:
        """How many lanes act next."""
        return len(self.env_indices)

    @property
    def acting_numbers(self) -> np.ndarray:
        """``[B]`` the numbers of the lanes that act next, in the order of ``rows``."""
        return np.arange(self.rollout.num_lanes) if self.numbers is None else self.numbers

    def at(self, numbers: np.ndarray) -> list[Lane]:
        """The lanes with some numbers."""
        return [self._lanes[number] for number in numbers.tolist()]  # type: ignore[misc]

    def make_room(self, num_lanes: int) -> None:
        """Makes the rollout exactly wide enough for that many lanes, if it is not yet."""
        more = num_lanes - self.rollout.num_lanes
        if more <= 0:
            return
        self.rollout.widened(num_lanes)
        for name in _BY_NUMBER:
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        self._lanes += [None] * more

    def open(self, agents: Sequence[tuple[int, AgentID, ModuleID]]) -> list[Lane]:
        """Gives agents free lanes, whose episodes begin in the first rows that are unused there.

        Args:
            agents: Their sub-environments, who they are, and who acts for them.
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
        positions = rollout.cursor[numbers] = rows * rollout.num_lanes + numbers
        rollout.columns[Columns.T][positions] = -1  # after a cut, they hold the former agents' last observations
        if rollout.infos:
            for position in positions.tolist():
                rollout.infos.pop(position, None)  # of the lane's former agent
        self.carried[numbers] &= rows != self.lookback
        self.begin(numbers, rows)
        return [self._occupied(number, *own) for number, own in zip(numbers.tolist(), agents, strict=True)]

    def _occupied(self, number: int, env_index: int, agent_id: AgentID, module_id: ModuleID) -> Lane:
        lane = self._lanes[number] = Lane(self, number, env_index, agent_id, module_id)
        self.is_live[number], self.env_of[number], self.word_of[number] = True, env_index, _word_of(agent_id)
        return lane

    def reopen(self, number: int, env_index: int, agent_id: AgentID, module_id: ModuleID) -> Lane:
        """A lane as it was at a checkpoint: its newest row is the first one after the lookback."""
        for other in range(self._num_opened, number + 1):
            self._free_numbers.append(other)
        self._num_opened = max(self._num_opened, number + 1)
        self._free_numbers.remove(number)
        heapify(self._free_numbers)
        self.rollout.cursor[number] = self.lookback * self.rollout.num_lanes + number
        return self._occupied(number, env_index, agent_id, module_id)

    def close(self, numbers: np.ndarray) -> None:
        """Frees lanes; their rows stay for the episodes that are views of them."""
        for number in numbers.tolist():
            heappush(self._free_numbers, number)
            self._lanes[number] = None
        self.rollout.pending[numbers] = self.rests[numbers] = self.is_live[numbers] = False
        self.next_row[numbers] = self.rows_of(numbers) + 1

    def begin(self, numbers: Any, rows: Any) -> None:
        """Episodes begin, with their first observations in some rows."""
        self.first_row[numbers] = self.start_row[numbers] = rows
        self.t_started[numbers] = 0
        self.earlier_return[numbers] = 0.0

    # Lanes move from row to row.

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

    def begin_again(self, numbers: np.ndarray) -> None:
        """Begins episodes in the rows after the newest ones, which hold the last observations of those before."""
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

    def go_on(self, numbers: Any, rewards: Any) -> None:
        """Pays lanes that wait for what they did in their newest rows, and closes these. A hot path."""
        rollout = self.rollout
        rollout.columns[Columns.REWARDS][rollout.cursor[numbers]] = rewards
        self._move_on(numbers)

    def rows_of(self, numbers: np.ndarray) -> np.ndarray:
        """``[N]`` the newest rows of some lanes."""
        return self.rollout.cursor[numbers] // self.rollout.num_lanes

    def go_back(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Lets lanes wait in the rows where they have acted. Rows after those are as if nobody had observed."""
        rollout, before = self.rollout, rows * self.rollout.num_lanes + numbers
        newest = rollout.cursor[numbers]
        for position in (undone := newest[newest != before]).tolist():
            rollout.infos.pop(position, None)
        rollout.columns[Columns.T][undone] = -1
        rollout.cursor[numbers] = before
        rollout.pending[numbers] = True
        self._first = None

    def count_steps(self, steps: int) -> None:
        """The lanes that act have made some steps."""
        self.num_steps[self.acting_numbers] += steps

    def wait(self) -> None:
        """Lets the lanes that have acted wait for what comes of it."""
        self.rollout.pending[self.acting_numbers] = True

    def first_positions(self) -> np.ndarray:
        """``[B]`` where the oldest rows are that the acting lanes' episodes keep, in the order of the rows."""
        if self._first is None:
            numbers = self.acting_numbers
            self._first = self.first_row[numbers] * self.rollout.num_lanes + numbers
        return self._first

    # The order of the rows.

    def sort(self, module_order: np.ndarray) -> None:
        """Puts the lanes in ``order``, after lanes were opened or closed, or act for other modules.

        Args:
            module_order: ``[num_modules]`` the place of each of ``LaneTable.module_ids`` among the modules.
        """
        live = np.flatnonzero(self.is_live)
        by_row = np.lexsort((self.rank[live], self.env_of[live], module_order[self.module_of[live]]))
        self.order = live[by_row]

    def select(self, module_ids: Sequence[ModuleID], num_ranks: int) -> None:
        """Finds the lanes that act next, and makes ``rows``.

        Args:
            module_ids: ``LaneTable.module_ids``.
            num_ranks: More than any ``rank``.
        """
        order, rollout = self.order, self.rollout
        idle = rollout.pending[order] | self.rests[order]
        numbers = order[~idle] if idle.any() else order
        is_all = len(numbers) == rollout.num_lanes and bool((numbers == np.arange(len(numbers))).all())
        self.numbers = None if is_all else numbers
        self.env_indices = self.env_of[numbers]
        self.agent_words = self.word_of[numbers]
        self.places = self.env_indices * num_ranks + self.rank[numbers]
        self.words = self._first = None
        self.locate()
        modules = self.module_of[numbers]
        borders = (modules[1:] != modules[:-1]).nonzero()[0] + 1
        splits = [0, *borders.tolist(), len(numbers)] if len(numbers) else [0]
        present = tuple([module_ids[int(modules[begin])] for begin in splits[:-1]])
        self.rows = LiveRows(self, module_ids=present, splits=tuple(splits))

    def locate(self) -> None:
        """Works out ``positions`` after single lanes have moved."""
        cursor = self.rollout.cursor if self.numbers is None else self.rollout.cursor[self.numbers]
        if self.numbers is None and len(cursor) and (cursor == cursor[0] + np.arange(len(cursor))).all():
            self.positions = slice(int(cursor[0]), int(cursor[0]) + len(cursor))
        else:
            self.positions = cursor

    def newest(self) -> Positions:
        """Where the newest rows of all lanes are, in ``order``."""
        return self.positions if self.num_acting == len(self.order) else self.rollout.cursor[self.order]

    # Returns, and fragments.

    def returns(self, numbers: np.ndarray) -> np.ndarray:
        """``[N]`` what the agents of some lanes, one at least, were paid in this chunk."""
        rollout, first_rows = self.rollout, self.start_row[numbers]
        last_rows = self.rows_of(numbers)
        low, high = int(first_rows.min()), int(last_rows.max())
        rewards = rollout.columns[Columns.REWARDS].reshape(rollout.num_rows, -1)[low:high]
        if len(numbers) < rollout.num_lanes or (numbers[1:] - numbers[:-1] != 1).any():
            rewards = rewards[:, numbers]
        if int(first_rows.max()) == low and int(last_rows.min()) == high:
            return rewards.sum(axis=0)
        rows = np.arange(low, high)[:, None]
        return np.where((rows >= first_rows) & (rows < last_rows), rewards, 0.0).sum(axis=0)

    def paid(self, numbers: np.ndarray) -> np.ndarray:
        """``[N]`` what they were paid in all chunks of their episodes."""
        return self.earlier_return[numbers] + self.returns(numbers)

    def continue_episodes(self, numbers: np.ndarray, last_rows: np.ndarray, returns: np.ndarray) -> None:
        """After ``restart``: the successors of chunks that ended in some rows begin behind the lookback."""
        self.t_started[numbers] += last_rows - self.start_row[numbers]
        self.first_row[numbers] = self.lookback - np.minimum(self.lookback, last_rows - self.first_row[numbers])
        self.start_row[numbers] = self.lookback
        self.earlier_return[numbers] += returns

    def restart(self, num_rows: int) -> None:
        """Goes on in a fresh rollout in which all lanes are in step.

        Args:
            num_rows: How many steps it is for. A row more is needed for each last observation of an episode, and there
                is room for as many of them as in the rollout before; where those were fewer than there was room for,
                for half as many as that, but one.
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
        """Takes note of the lanes whose first row after the lookback was there before this fragment."""
        first, lanes = self.lookback * self.rollout.num_lanes, self.rollout.num_lanes
        self.carried = self.rollout.columns[Columns.T][first : first + lanes] >= 0


@lru_cache(maxsize=4096)
def _word_of(agent_id: AgentID) -> int:
    return name_word(agent_id)


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
