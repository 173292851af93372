"""Ring: the newest rows of a run, in columns of a fixed size.

A row is a step of an agent, or an env step with a place for each agent. The rows are divided into lanes, each of which
is a ring. An episode is in one lane, from its first to its last observation, so its steps follow one another although
steps of other episodes arrive between them:

====  ==========  ==========
row   lane 0      lane 1
====  ==========  ==========
0     step 3      last obs      an older episode's end
1     step 4      step 0        the lane's next episode
2     last obs    step 1
3     (oldest)    last obs      continued by the next chunk of this episode
====  ==========  ==========

Rows of a lane are numbered without end; row ``r`` is kept at ``r % num_rows``. The next observation of a step is that
of the next row, so every observation is kept once.

Where a row is an env step, its columns have a place for each agent that can appear, whether it is there or not:

====  =============  ===========  ============
row   env step       agent a      agent b
====  =============  ===========  ============
0     3              acted        acted
1     4              acted        (has ended)
2     5              acted        acted          b has joined again
3     6              observed     observed       the last observations
====  =============  ===========  ============
"""

from __future__ import annotations

import copy
import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV, MODULE, have_same_numbers
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.multi_agent_episode import REMEMBERED_AGENTS, MultiAgentEpisode, agent_episode_id
from marl_connectors.episodes.packing import chunks_of, late_reward, lives_on, num_steps_of, packed, rows_of_episodes
from marl_connectors.episodes.rollout import put, spans, take
from marl_connectors.episodes.rows import Rows, env_number_of
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import CheckpointError, EpisodeError, did_you_mean
from marl_connectors.names import brief
from marl_connectors.replay_buffers.ring_state import (
    OpenEpisode,
    Priorities,
    RingState,
    spaces_from_json,
    spaces_to_json,
)
from marl_connectors.replay_buffers.spilled_arrays import zeros
from marl_connectors.replay_buffers.sum_tree import SumTree
from marl_connectors.spaces import WHOLE, counted_from_0, describe, outside, parts_with_values, unlike
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID, EpisodeID, ModuleID, Tree

Chunk = SingleAgentEpisode | AgentChunk
ACTED, TERMINATED, TRUNCATED = 1, 2, 4
"""Bits of a row's flags: a step was taken there; the episode ended after it."""
ALIVE = 8
"""Bit of an agent's flags, beside those of rows: the agent has an observation there that it acts on or could act on."""
AGENT_FLAGS = "agent_flags"
"""The column of the agents' flags, ``[size, K]`` uint8 of each module."""
ENVIRONMENT = "environment"
"""Stands for a module in the column of the environment's states, ``[size, 1, ...]``: all agents have the same."""
_NO_EPISODE = -1
"""The number of no episode."""
_ALWAYS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T)


class Head(NamedTuple):
    """What a ring needs to know of an episode, or of a chunk of it, beside its rows.

    Attributes:
        actor: Stands for who has one episode at a time: an agent in its sub-environment, or all agents there. It is
            the episode's id if that names no sub-environment.
        episode_id: The episode's id, the same for all of its chunks.
        t_started: The number of steps before the chunk.
        ends: The flags of the chunk's last step besides ``ACTED``.
        late: A reward for the step before the chunk.
    """

    actor: str
    episode_id: str
    t_started: int
    ends: int
    late: float

    @classmethod
    def of(cls, chunk: Chunk | MultiAgentEpisode) -> Head:
        """Returns what there is to know of a chunk."""
        if isinstance(chunk, MultiAgentEpisode):
            agent_id, t_started, late = None, chunk.env_t_started, 0.0
        else:
            agent_id, t_started, late = chunk.agent_id, chunk.t_started, late_reward(chunk)
        episode_id = _life(chunk.whole.id_, agent_id) if isinstance(chunk, AgentChunk) else str(chunk.id_)
        number = env_number_of(chunk)
        actor = episode_id if number is None else _life(number, agent_id)
        return cls(actor, episode_id, t_started, _ends(chunk), late)


class Places(NamedTuple):
    """Where chunks of episodes go.

    Attributes:
        lanes: ``[E]`` the lane of each chunk.
        starts: ``[E]`` the row of its first observation.
        numbers: ``[E]`` the number of its episode.
    """

    lanes: np.ndarray
    starts: np.ndarray
    numbers: np.ndarray


class AgentChunks(NamedTuple):
    """The chunks of the agents of one module, in some episodes.

    Attributes:
        chunks: The chunks.
        slots: ``[C]`` the place of each chunk's agent among the agents of its module.
        episodes: ``[C]`` the index of its episode.
        lives_on: ``[C]`` whether the agent is there at its last observation.
        has_steps: Whether each of the chunks has steps, or none has.
    """

    chunks: list[Any]
    slots: list[int]
    episodes: list[int]
    lives_on: list[bool]
    has_steps: bool


class Ring:
    """The newest steps of one module's agents, or the newest env steps with the rows of all agents.

    The columns of steps are ``[size, ...]`` arrays: ``columns["obs"]``. Those of env steps have, for each module,
    ``[size, K, ...]`` arrays for its ``K`` agents: ``columns["obs"]["pi"]``. What stands in the places of agents that
    have no row at an env step has no meaning, except that their flags are 0.

    Attributes:
        key: The module; of env steps, a name for all of them.
        capacity: The greatest number of rows.
        extra_columns: Recorded module outputs that are kept where episodes have them.
        agents: The agents of each module, in the order of their places; None if a row is a step of one agent.
        tree: The weight of each row in draws, 0 where there is no step; None if all steps are equally likely.
        greatest: The greatest weight so far, which new steps get.
        spill_folder: Where the files are that hold the columns; None to hold them in memory.
        num_lanes: The number of lanes: the greatest number of episodes that went on at the same time. An episode with
            an id of its own goes on until a quarter of the capacity was added without it.
        num_rows: The number of rows of each lane.
        columns: Name to arrays or trees of arrays, as above, where ``size`` is ``num_rows * num_lanes``.
        flags: ``[size]`` uint8, see ``ACTED``.
        numbers: ``[size]`` int32, the number of the row's episode.
        written: ``[num_lanes]`` int64, the number of rows that each lane has ever had.
        num_steps: The number of steps that are kept.
        num_steps_added: The number of steps that were ever added.
        num_episodes_added: The number of episodes of which steps were added.
        spaces: The observation and action space of each module whose agents' steps were added.
        action_units: Whose actions they are.
    """

    def __init__(
        self,
        key: ModuleID,
        capacity: int,
        extra_columns: Sequence[str] = (),
        *,
        agents: Mapping[ModuleID, Sequence[AgentID]] | None = None,
        has_priorities: bool = False,
        spill_folder: Path | None = None,
    ):
        """Creates an empty ring, whose columns are allocated when the first chunks are added.

        Args:
            key: As above.
            capacity: As above.
            extra_columns: As above.
            agents: As above.
            has_priorities: Whether steps have weights in draws.
            spill_folder: As above.
        """
        self.key = key
        self.capacity = capacity
        self.spill_folder = spill_folder
        self.extra_columns = tuple(extra_columns)
        self.agents = None if agents is None else {module_id: tuple(own) for module_id, own in agents.items()}
        self.tree = SumTree(1) if has_priorities else None
        self.greatest = 1.0
        self.num_lanes = 0
        self.num_rows = 0
        self.columns: dict[str, Any] = {}
        self.flags = np.zeros(0, np.uint8)
        self.numbers = np.zeros(0, np.int32)
        self.written = np.zeros(0, np.int64)
        self.num_steps = 0
        self.num_steps_added = 0
        self.num_episodes_added = 0
        self.spaces: dict[ModuleID, tuple[Any, Any]] = {}
        self.action_units = MODULE
        self._slots = {a: (m, slot) for m, own in (self.agents or {}).items() for slot, a in enumerate(own)}
        self._open: dict[str, OpenEpisode] = {}
        self._free: list[tuple[int, int]] = []
        self._ended: dict[str, dict[str, tuple[int, int]]] = {}
        self._overwritten: list[tuple[Callable[[np.ndarray, Any], None], np.ndarray, np.ndarray]] | None = None

    @property
    def nbytes(self) -> int:
        """The size of all arrays, in bytes."""
        arrays = (*leaves(self.columns), self.flags, self.numbers, self.written)
        return sum(array.nbytes for array in arrays) + (self.tree.nbytes if self.tree is not None else 0)

    @property
    def kept(self) -> np.ndarray:
        """``[num_lanes]`` int64, the number of rows of each lane that are still kept."""
        return np.minimum(self.written, self.num_rows)

    @property
    def num_episodes(self) -> int:
        """The number of episodes of which steps are kept."""
        return len(np.unique(self.numbers[(self.flags & ACTED) > 0]))

    def positions(self, lanes: np.ndarray | int, rows: np.ndarray) -> np.ndarray:
        """Returns the positions in the columns of some rows."""
        return rows % self.num_rows * self.num_lanes + lanes

    def modules(self) -> list[ModuleID]:
        """Returns the modules whose agents' steps were added, in the order of ``agents``."""
        return [self.key] if self.agents is None else [m for m in self.agents if self.has(AGENT_FLAGS, m)]

    def agents_of(self, module_id: ModuleID) -> tuple[AgentID, ...]:
        """Returns the agents of a module in the order of their places."""
        return (self.agents or {})[module_id]

    def has(self, name: str, module_id: ModuleID) -> bool:
        """Whether the rows of a module's agents have a column."""
        return name in self.columns and (self.agents is None or module_id in self.columns[name])

    def own(self, name: str, module_id: ModuleID) -> Any:
        """Returns a module's part of a column: ``[size, ...]``, or ``[size, K, ...]`` of env steps."""
        return self.columns[name] if self.agents is None else self.columns[name][module_id]

    def _zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return zeros(shape, dtype, self.spill_folder)

    def _room_for(self, values: Tree, *places: int) -> Tree:
        """Returns a column for values like these, which has ``places`` in each row."""
        size = self.num_rows * self.num_lanes
        return tree_map(lambda leaf: self._zeros((size, *places, *leaf.shape[1:]), leaf.dtype), values)

    # Going back.

    def now(self) -> Callable[[], None]:
        """Returns a function that brings the ring back to where it is now; see ``ReplayBuffer.now``."""
        attributes = {
            name: copy.copy(value) if isinstance(value, (dict, list)) else value
            for name, value in vars(self).items()
            if name != "_overwritten"
        }
        attributes["columns"] = {name: tree_map(lambda leaf: leaf, column) for name, column in self.columns.items()}
        attributes["_ended"] = {episode_id: dict(own) for episode_id, own in self._ended.items()}
        self._overwritten = overwritten = [] if self._overwritten is None else self._overwritten
        number = len(overwritten)

        def go_back() -> None:
            while len(overwritten) > number:
                restore, positions, values = overwritten.pop()
                restore(positions, values)
            vars(self).update(attributes)

        return go_back

    def forget_overwritten(self) -> None:
        """Forgets the rows that were kept to go back."""
        self._overwritten = None

    def _overwrites(self, positions: np.ndarray) -> None:
        """Keeps rows that are about to change."""
        if self._overwritten is not None:
            for array in (self.flags, self.numbers, *leaves(self.columns)):
                self._overwritten.append((array.__setitem__, positions, array[positions]))

    # Adding steps of agents.

    def add(self, chunks: Sequence[Any]) -> None:
        """Adds the steps of episodes, or of chunks of them; the oldest steps give way.

        Args:
            chunks: Those of the module's agents; of a ring of env steps, MultiAgentEpisodes or chunks of these. Chunks
                of one episode come in their order. One without steps may tell how the episode has ended, or bring a
                reward for the step before.

        Raises:
            EpisodeError: If the columns do not fit those of the episodes before, or the agents are others.
        """
        if self.agents is not None:
            self._add_env_steps(chunks)
            return
        steps = np.array([num_steps_of(chunk) for chunk in chunks], np.int64)
        with_steps = [chunk for chunk, number in zip(chunks, steps.tolist(), strict=True) if number]
        columns: dict[str, Tree] = {}
        if with_steps:
            rows = rows_of_episodes(with_steps, [self.key])
            columns = self._checked_columns(self.key, rows, _ALWAYS)
            assert rows.acted is not None
            without = ~rows.acted
            for name in columns:  # nobody has computed an output for a last observation, but it has a mask
                if name not in _ALWAYS and name != Columns.ACTION_MASK:
                    tree_map(lambda leaf: leaf.__setitem__(without, 0), columns[name])
        places = self._insert([Head.of(chunk) for chunk in chunks], columns, steps + (steps > 0))
        self._note_ends(chunks, places.lanes, places.numbers)

    def _checked_columns(self, module_id: ModuleID, rows: Rows, always: Sequence[str]) -> dict[str, Tree]:
        """Returns the columns of a module's rows that are kept, and learns its spaces.

        Args:
            module_id: The module.
            rows: The rows.
            always: The columns that are kept of all rows.

        Raises:
            EpisodeError: If they do not fit those before.
        """
        names = [*always, *(name for name in self.extra_columns if rows.has(name))]
        columns = {name: rows.get(name) for name in names}
        if Columns.T in columns:  # as env runners count; other episodes may differ
            columns[Columns.T] = np.asarray(columns[Columns.T], np.int32)
        before = self._known(module_id)
        if before and before.keys() != columns.keys():
            (name, *_) = sorted(before.keys() ^ columns.keys())
            without = "these episodes do not have" if name in before else "the episodes before do not have"
            raise self._misfit(module_id, f"{without} the column {name!r}")
        num_axes = 1 if self.agents is None else 2
        for name, column in before.items():
            kept = [(leaf.shape[num_axes:], leaf.dtype) for leaf in leaves(column)]
            new = [(leaf.shape[1:], leaf.dtype) for leaf in leaves(columns[name])]
            if kept != new:
                what = f"{name!r} has items of {_described(new)}, those before of {_described(kept)}"
                raise self._misfit(module_id, what)
        if self.spaces.get(module_id, (None, None))[1] is None:
            self.spaces[module_id] = rows.observation_space, rows.action_space
        self.action_units = self._common_units(module_id, rows)
        return columns

    def _known(self, module_id: ModuleID) -> dict[str, Tree]:
        """Returns a module's columns, without those of flags and times of env steps; none before its first steps."""
        if self.agents is None:
            return self.columns
        keys = {name: _key(name, module_id) for name in self.columns if name not in (AGENT_FLAGS, Columns.T)}
        known = {name: self.columns[name][key] for name, key in keys.items() if key in self.columns[name]}
        return known if Columns.OBS in known else {}

    def _misfit(self, module_id: ModuleID, what: str) -> EpisodeError:
        return EpisodeError(
            f"Replay buffer, module {module_id!r}: {what}. All episodes in a buffer need the same columns. "
            f"Make a new buffer after a change of environments, pieces or modules."
        )

    def _common_units(self, module_id: ModuleID, rows: Rows) -> str:
        """Returns whose actions the ring holds with some more rows.

        Raises:
            EpisodeError: If some are the environment's and others the modules', or those of other scales, and their
                numbers differ.
        """
        before = [self.action_units] if self.columns else []
        first, *others = dict.fromkeys([*before, *(part.rollout.action_units for part in rows.parts)])
        space = rows.action_space
        if any(space is not None and not have_same_numbers(space, first, other) for other in others):
            raise EpisodeError(
                f"Replay buffer: of module {module_id!r}, it would hold actions of several kinds: "
                f"{', '.join(sorted([first, *others]))}. Add episodes of one kind, or use the "
                f"buffer of a run, algo.replay_buffer, which turns all of them into those of modules."
            )
        return first

    # Adding rows to lanes.

    def _insert(self, heads: Sequence[Head], columns: Mapping[str, Tree], counts: np.ndarray) -> Places:
        """Adds the rows of chunks, and returns where they are.

        An episode of an env runner continues, or another one of the same sub-environment follows. One with an id of its
        own may never continue, so many of these are added in parts, between which the oldest ones are let go.

        Args:
            heads: The chunks.
            columns: The columns of their rows, ``[B, ...]``, one chunk after another.
            counts: The number of rows of each chunk: one for each step, and one for the last observation. A chunk that
                has no step has no row; its last observation is that of the chunk before.
        """
        bounds, number, most = [0], 0, self.capacity // 8
        if counts.sum() > most and any(not head.ends and head.actor == head.episode_id for head in heads):
            for i, count in enumerate(counts.tolist()):
                if number and number + count > most:
                    bounds.append(i)
                    number = 0
                number += count
        if len(bounds) == 1:
            return self._insert_together(heads, columns, counts, ())
        bounds.append(len(heads))
        rows = np.concatenate([[0], counts.cumsum()])[bounds].tolist()
        found = []
        for (begin, end), own_rows in zip(pairwise(bounds), pairwise(rows), strict=True):
            own = {name: take(column, slice(*own_rows)) for name, column in columns.items()}
            later = [head.actor for head in heads[end:]]
            found.append(self._insert_together(heads[begin:end], own, counts[begin:end], later))
        return Places(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _insert_together(
        self, heads: Sequence[Head], columns: Mapping[str, Tree], counts: np.ndarray, later: Sequence[str]
    ) -> Places:
        """Adds the rows of chunks that are added together.

        Args:
            heads: As for ``_insert``.
            columns: As for ``_insert``.
            counts: As for ``_insert``.
            later: The actors of whom chunks are added afterwards.
        """
        continued = {head.actor for head, n in zip(heads, counts, strict=True) if n and not head.ends}
        with_end = any(head.ends for head in heads)
        if len(self._open.keys() | continued) + with_end > self.num_lanes:
            self._let_go({*later, *(head.actor for head in heads)})
        self._widen(len(self._open.keys() | continued) + with_end)
        if not self.columns:
            self.columns = {name: self._room_for(values) for name, values in columns.items()}
        places = self._places(heads, counts)
        ends = np.array([head.ends for head in heads], np.uint8)
        self._write(columns, counts, places, ends)
        self._complete_last_steps(ends * (counts == 0), np.array([head.late for head in heads]), places)
        self.num_steps_added += int(counts.sum() - (counts > 0).sum())
        return places

    @property
    def num_rows_added(self) -> int:
        """The number of rows that were ever added."""
        return self.num_steps_added + self.num_episodes_added

    def _let_go(self, kept: Collection[str]) -> None:
        """Frees the lanes of episodes with ids of their own that have not continued for a quarter of the capacity.

        Args:
            kept: The actors whose episodes keep their lanes.
        """
        oldest = self.num_rows_added - self.capacity // 4
        for actor, episode in list(self._open.items()):
            if actor == episode.episode_id and episode.added_at <= oldest and actor not in kept:
                del self._open[actor]
                heapq.heappush(self._free, (int(self.written[episode.lane]), episode.lane))

    def _places(self, heads: Sequence[Head], counts: np.ndarray) -> Places:
        """Returns a place for each chunk: behind the chunk before, or else in the emptiest free lane."""
        lanes, starts, numbers = [], [], []
        written, added_at = self.written.tolist(), self.num_rows_added
        for head, count in zip(heads, counts.tolist(), strict=True):
            known = self._open.pop(head.actor, None)
            if known is not None and known.episode_id == head.episode_id and known.num_steps == head.t_started:
                lane, number, start = known.lane, known.number, written[known.lane] - 1
            else:
                if known is not None:  # the rest of its episode never came, or a part is missing
                    heapq.heappush(self._free, (written[known.lane], known.lane))
                lane, start, number = 0, 0, _NO_EPISODE  # if it has no row, it tells of a step that is not here
                if count:
                    start, lane = heapq.heappop(self._free)
                    number = self.num_episodes_added % 2**31
                    self.num_episodes_added += 1
            if number != _NO_EPISODE:
                count = max(count, 1)
                written[lane] = start + count
                if head.ends:
                    heapq.heappush(self._free, (written[lane], lane))
                else:
                    num_steps = head.t_started + count - 1
                    self._open[head.actor] = OpenEpisode(head.episode_id, lane, number, num_steps, added_at)
            lanes.append(lane)
            starts.append(start)
            numbers.append(number)
        self.written = np.array(written, np.int64)
        return Places(np.array(lanes), np.array(starts), np.array(numbers, np.int32))

    def _write(self, columns: Mapping[str, Tree], counts: np.ndarray, places: Places, ends: np.ndarray) -> None:
        after = counts.cumsum()
        lanes, numbers = places.lanes.repeat(counts), places.numbers.repeat(counts)
        rows = (places.starts - after + counts).repeat(counts) + np.arange(len(lanes))
        flags = np.full(len(rows), ACTED, np.uint8)
        with_steps = counts > 0
        flags[after[with_steps] - 1] = 0
        flags[after[with_steps] - 2] |= ends[with_steps]
        is_kept = rows >= self.written[lanes] - self.num_rows
        if not is_kept.all():  # a lane gets more rows than it keeps
            rows, lanes, flags, numbers = rows[is_kept], lanes[is_kept], flags[is_kept], numbers[is_kept]
            columns = {name: take(column, np.flatnonzero(is_kept)) for name, column in columns.items()}
        positions = self.positions(lanes, rows)
        self._overwrites(positions)
        # Of two chunks of one episode, the second overwrites the row of the first one's last observation.
        is_one_each = len(set(places.lanes.tolist())) == len(places.lanes)
        replaced = self.flags[positions if is_one_each else np.unique(positions)]
        self.num_steps -= int((replaced & ACTED).sum())
        self.flags[positions] = flags
        self.num_steps += int((flags & ACTED).sum())
        self.numbers[positions] = numbers
        for name, values in columns.items():
            put(self.columns[name], positions, values)
        if self.tree is not None:
            self._set_weights(positions, np.where(self.flags[positions] & ACTED, self.greatest, 0.0))

    def _complete_last_steps(self, ends: np.ndarray, late: np.ndarray, places: Places) -> None:
        """Adds to last steps in chunks before, as far as they are kept, what chunks tell of them.

        Args:
            ends: ``[E]`` how the episode has ended, of chunks without steps.
            late: ``[E]`` rewards that came late.
            places: Where the chunks are.
        """
        told = np.flatnonzero((ends > 0) | (late != 0))
        if not len(told):
            return
        rows, lanes = places.starts[told] - 1, places.lanes[told]
        positions = self.positions(lanes, rows)
        is_kept = rows >= self.written[lanes] - self.num_rows
        is_kept &= self.numbers[positions] == places.numbers[told]
        positions, told = positions[is_kept], told[is_kept]
        self._overwrites(positions)
        np.bitwise_or.at(self.flags, positions, ends[told])
        if late[told].any():
            np.add.at(self.columns[Columns.REWARDS], positions, late[told])

    def _rows_per_lane(self, num_lanes: int) -> int:
        return max(self.capacity // num_lanes, 2)

    def _widen(self, num_lanes: int) -> None:
        """Makes enough lanes, which have as many rows as the capacity allows.

        What no longer fits into shorter lanes is forgotten, the oldest rows first.
        """
        num_lanes = max(num_lanes, self.num_lanes)
        num_rows = self._rows_per_lane(num_lanes) if num_lanes else 0
        if (num_lanes, num_rows) == (self.num_lanes, self.num_rows):
            return
        kept = np.minimum(self.written, min(self.num_rows, num_rows))
        lanes, rows = np.repeat(np.arange(self.num_lanes), kept), spans(self.written - kept, kept)
        old = self.positions(lanes, rows) if len(rows) else rows
        if num_rows > self.num_rows:  # rows that were forgotten do not come back
            rows = rows - (self.written - kept)[lanes]
            self.written = kept
        self.written = np.concatenate([self.written, np.zeros(num_lanes - self.num_lanes, np.int64)])
        free = [*(lane for _, lane in self._free), *range(self.num_lanes, num_lanes)]
        self._free = [(int(self.written[lane]), lane) for lane in free]
        heapq.heapify(self._free)
        self.num_lanes, self.num_rows = num_lanes, num_rows
        new = self.positions(lanes, rows)

        def moved(leaf: np.ndarray) -> np.ndarray:
            fresh = self._zeros((num_rows * num_lanes, *leaf.shape[1:]), leaf.dtype)
            fresh[new] = leaf[old]
            return fresh

        self.columns = {name: tree_map(moved, column) for name, column in self.columns.items()}
        self.flags, self.numbers = moved(self.flags), moved(self.numbers)
        self.num_steps = int((self.flags & ACTED).sum())
        if self.tree is not None:
            self.tree = SumTree.of(moved(self.tree.weights))

    # Adding env steps.

    def _add_env_steps(self, episodes: Sequence[MultiAgentEpisode]) -> None:
        by_module = sorted(self._by_module(episodes).items())
        own = [(m, part, *self._columns_of_agents(m, part)) for (*_, m), part in by_module]
        started = np.array([e.env_t_started for e in episodes], np.int64)
        steps = np.array([e.env_t for e in episodes], np.int64) - started
        counts = steps + (steps > 0)
        times = {Columns.T: spans(started, counts).astype(np.int32)}
        places = self._insert([Head.of(episode) for episode in episodes], times, counts)
        positions = self.positions(np.repeat(places.lanes, counts), spans(places.starts, counts))
        for flags in self.columns.get(AGENT_FLAGS, {}).values():
            flags[positions] = 0
        for module_id, part, rows, columns in own:
            self._put(module_id, part, rows, columns, places, started)
            self._complete_agents(module_id, part, rows, places, started)
        for episode, lane, number in zip(episodes, places.lanes, places.numbers, strict=True):
            if not episode.is_done:
                own_chunks = list(chunks_of([episode]))
                self._note_ends(own_chunks, [lane] * len(own_chunks), [number] * len(own_chunks))

    def _by_module(self, episodes: Iterable[MultiAgentEpisode]) -> dict[tuple[int, int, ModuleID], AgentChunks]:
        """Returns the agents' chunks by module and, in the order in which they are written, by what they hold.

        The chunks of one episode are written one after another. Of each, agents' chunks without steps that tell of an
        end are first, then those with steps, then observations that wait for an action. So of two lives of an agent,
        the later one comes last.
        """
        found: dict[tuple[int, int, ModuleID], AgentChunks] = {}
        numbers: Counter[Any] = Counter()
        for i, episode in enumerate(episodes):
            number = numbers[episode.id_]
            numbers[episode.id_] += 1
            for chunk in chunks_of([episode]):
                module_id, slot = self._place_of(chunk)
                order = 1 if num_steps_of(chunk) else 0 if chunk.is_done else 2
                own = found.setdefault((number, order, module_id), AgentChunks([], [], [], [], has_steps=order == 1))
                own.chunks.append(chunk)
                own.slots.append(slot)
                own.episodes.append(i)
                own.lives_on.append(lives_on(chunk, episode))
        return found

    def _place_of(self, chunk: Any) -> tuple[ModuleID, int]:
        place = self._slots.get(chunk.agent_id)
        if place is None:
            hint = did_you_mean(str(chunk.agent_id), map(str, self._slots))
            raise EpisodeError(
                f"Team replay buffer: agent {chunk.agent_id!r} is not among its agents. {hint} Name all agents that "
                f"can appear in the environment's possible_agents."
            )
        if chunk.module_id != place[0]:
            raise EpisodeError(
                f"Team replay buffer: agent {chunk.agent_id!r} acted with module {chunk.module_id!r}, but belongs to "
                f"module {place[0]!r} here. Let policy_mapping_fn map each agent to the same module in all episodes."
            )
        return place

    def _columns_of_agents(self, module_id: ModuleID, own: AgentChunks) -> tuple[Rows, dict[str, Tree]]:
        """Returns the rows of one module's agents, and their columns.

        Those without steps have an observation, and maybe what was known with it. No types are learned from them.

        Raises:
            EpisodeError: If the columns do not fit those before.
        """
        if own.has_steps:
            rows = rows_of_episodes(own.chunks, [module_id])
            return rows, self._checked_columns(module_id, rows, _ALWAYS[:3])
        rows = rows_of_episodes(packed(own.chunks), [module_id])
        names = [n for n in (Columns.ACTION_MASK, Columns.ENV_STATE) if n in self.extra_columns and rows.has(n)]
        return rows, {name: rows.get(name) for name in (Columns.OBS, *names)}

    def _put(
        self,
        module_id: ModuleID,
        own: AgentChunks,
        rows: Rows,
        columns: Mapping[str, Tree],
        places: Places,
        started: np.ndarray,
    ) -> None:
        """Writes the rows of one module's agents to the rows of their env steps.

        An agent that waits has its row at an env step before the chunk, where its action and reward are added now.

        Args:
            module_id: The module.
            own: The chunks.
            rows: Their rows.
            columns: The columns of these.
            places: Where the episodes' chunks are.
            started: ``[E]`` the env steps at which they begin.
        """
        episodes = np.repeat(own.episodes, rows.counts)
        offset = rows.get(Columns.T) - started[episodes]
        at, lanes = places.starts[episodes] + offset, places.lanes[episodes]
        positions = self.positions(lanes, at)
        flags = _flags_of(own, np.array(rows.counts))
        is_kept = (at >= 0) & (at >= self.written[lanes] - self.num_rows)
        is_kept &= self.numbers[positions] == places.numbers[episodes]
        fresh = np.flatnonzero(is_kept)  # of two lives in one row, the later one comes last
        positions, slots = positions[fresh], np.repeat(own.slots, rows.counts)[fresh]
        self._overwrites(positions)
        for name, values in {**columns, AGENT_FLAGS: flags}.items():
            known = self.columns.setdefault(name, {})
            key = _key(name, module_id)
            if key not in known and own.has_steps:
                known[key] = self._room_for(values, 1 if key == ENVIRONMENT else len(self.agents_of(module_id)))
            if key in known:
                index: Any = (positions, 0 if key == ENVIRONMENT else slots)
                put(known[key], index, take(values, fresh))

    def _complete_agents(
        self, module_id: ModuleID, own: AgentChunks, rows: Rows, places: Places, started: np.ndarray
    ) -> None:
        """Adds to the last steps of agents, in chunks before, what chunks tell of them; see ``_complete_last_steps``.

        The arguments are those of ``_put``.
        """
        if not self.has(AGENT_FLAGS, module_id):
            return
        flags, rewards = self.own(AGENT_FLAGS, module_id), self.own(Columns.REWARDS, module_id)
        counts = np.array(rows.counts)
        first = rows.get(Columns.T)[counts.cumsum() - counts]
        for chunk, slot, e, t in zip(own.chunks, own.slots, own.episodes, first, strict=True):
            end = 0 if own.has_steps else _ends(chunk)
            late, has_moved = late_reward(chunk), t > started[e]
            if not (has_moved or (chunk.t_started and (end or late))):
                continue
            stop, kept = int(places.starts[e] + t - started[e]), int(self.written[places.lanes[e]]) - self.num_rows
            positions = self.positions(places.lanes[e], np.arange(max(stop - int(t), kept, 0), max(stop, 0)))
            positions = positions[self.numbers[positions] == places.numbers[e]]
            self._overwrites(positions)
            if has_moved:  # an observation that it waited with until another one came is no row any more
                flags[positions[flags[positions, slot] == ALIVE], slot] = 0
            if chunk.t_started:
                at = positions[(flags[positions, slot] & ACTED) > 0][-1:]
                flags[at, slot] |= end
                rewards[at, slot] += late

    # Rewards after the end.

    def _note_ends(self, chunks: Sequence[Chunk], lanes: Iterable[int], numbers: Iterable[int]) -> None:
        """Notes in which lane, under which number, the lives of a MultiAgentEpisode's agents are that have ended.

        The newest life of each agent counts. One without a step has no rows. An episode whose rest never comes is
        forgotten at some time, and of an endless one the agents that ended first.
        """
        for chunk, lane, number in zip(chunks, lanes, numbers, strict=True):
            if chunk.is_done and chunk.multi_agent_episode_id is not None:
                ended = self._ended.setdefault(str(chunk.multi_agent_episode_id), {})
                ended.pop(_agent(chunk.agent_id), None)
                if number != _NO_EPISODE and (chunk.t_started or num_steps_of(chunk)):
                    ended[_agent(chunk.agent_id)] = int(lane), int(number)
                for found, most in ((ended, REMEMBERED_AGENTS), (self._ended, self.capacity)):
                    if len(found) > most:
                        del found[next(iter(found))]

    def credit_ended(self, episode_id: EpisodeID, agent_id: AgentID, reward: float) -> None:
        """Adds a reward to the last step of an agent's life that ended in an earlier chunk, as far as it is kept.

        Args:
            episode_id: The id of the MultiAgentEpisode.
            agent_id: The agent. Nothing is done if none of its lives has ended there with steps.
            reward: The reward.
        """
        lane, number = self._ended.get(str(episode_id), {}).get(_agent(agent_id), (0, _NO_EPISODE))
        if number == _NO_EPISODE:
            return
        positions = self.positions(lane, np.arange(self.written[lane] - self.kept[lane], self.written[lane]))
        positions = positions[self.numbers[positions] == number]
        flags, rewards = self.flags, self.columns[Columns.REWARDS]
        if self.agents is not None:
            module_id, slot = self._slots[agent_id]
            flags, rewards = (self.own(name, module_id)[:, slot] for name in (AGENT_FLAGS, Columns.REWARDS))
        last = positions[(flags[positions] & ACTED) > 0][-1:]
        self._overwrites(last)
        rewards[last] += reward

    def forget_ended(self, episode_id: EpisodeID) -> None:
        """Forgets where the agents of a MultiAgentEpisode have ended, which is over."""
        self._ended.pop(str(episode_id), None)

    # Drawing.

    def set_priorities(self, positions: np.ndarray, weights: np.ndarray) -> None:
        """Sets the weights of some steps; of a step that comes twice, the last one."""
        self._set_weights(positions, weights)
        self.greatest = max(self.greatest, float(weights.max(initial=0.0)))

    def _set_weights(self, positions: np.ndarray, weights: np.ndarray) -> None:
        assert self.tree is not None
        if self._overwritten is not None:
            self._overwritten.append((self.tree.set, positions, self.tree.weights[positions]))
        self.tree.set(positions, weights)

    def importance(self, positions: np.ndarray, beta: float) -> np.ndarray:
        """Returns ``[N]`` float32, the importance of drawn steps in a loss: 1 for the rarest one, less for the others.

        Args:
            positions: ``[N]`` their positions.
            beta: How much it corrects for unequal probabilities: 0 for not at all, 1 for fully.
        """
        assert self.tree is not None
        weights = (self.num_steps * self.tree.weights[positions] / self.tree.total) ** -beta
        return (weights / weights.max()).astype(np.float32)

    def draw(
        self, number: int, generator: np.random.Generator, module_ids: Collection[ModuleID] | None = None
    ) -> np.ndarray:
        """Returns ``[number]`` positions of steps, drawn with replacement.

        All steps have the same probability, unless they have weights.

        Args:
            number: The number of steps.
            generator: Draws them.
            module_ids: Of env steps, those are drawn in which an agent of these modules has acted; None for all.

        Raises:
            EpisodeError: If there are no such steps.
        """
        if not self.num_steps:
            raise EpisodeError(f"Replay buffer, module {self.key!r}: there are no steps to draw from.")
        if self.agents is None:
            return self._draw_positions(number, generator)
        found, missing = [], number
        team = [self.own(AGENT_FLAGS, m) for m in self.modules() if module_ids is None or m in module_ids]
        while missing > 0:
            drawn = self._draw_positions(missing, generator)
            drawn = drawn[reduce(np.logical_or, [(own[drawn] & ACTED).any(1) for own in team])] if team else drawn[:0]
            if not len(drawn) and not any((own & ACTED).any() for own in team):
                raise EpisodeError(
                    f"Team replay buffer: it has no steps of "
                    f"{'the modules ' + ', '.join(map(repr, module_ids)) if module_ids else 'any module'}. Add "
                    f"episodes in which their agents act."
                )
            found.append(drawn)
            missing -= len(drawn)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _draw_positions(self, number: int, generator: np.random.Generator) -> np.ndarray:
        if self.tree is not None:
            return self.tree.draw(generator.random(number) * self.tree.total)
        found: list[np.ndarray] = []
        missing = number
        kept = self.kept
        bounds = kept.cumsum()
        share = self.num_steps / int(bounds[-1])
        while missing > 0:
            drawn = generator.integers(bounds[-1], size=int(missing / share * 1.1) + 8)
            lanes = bounds.searchsorted(drawn, side="right")
            # Which row of a lane a number stands for does not matter, as long as each row has one.
            positions = (drawn - (bounds - kept)[lanes]) * self.num_lanes + lanes
            found.append(positions[(self.flags[positions] & ACTED) > 0][:missing])
            missing -= len(found[-1])
        return found[0] if len(found) == 1 else np.concatenate(found)

    def reach(self, positions: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the positions at some offsets in the same lane, and whether they belong to the same episode.

        Args:
            positions: ``[N]`` positions of rows that are kept.
            offsets: ``[K]`` numbers of rows, from the oldest to the newest; 0 for the row itself.

        Returns:
            ``[K, N]`` positions and ``[K, N]`` bool.
        """
        places, lanes = np.divmod(positions, self.num_lanes)
        written = self.written[lanes]
        age = (written - 1 - places) % self.num_rows  # the number of rows of the lane that are newer
        offsets = offsets[:, None]
        wanted = age - offsets
        found = (places + offsets) % self.num_rows * self.num_lanes + lanes
        is_kept = (wanted >= 0) & (wanted < np.minimum(written, self.num_rows))
        return found, is_kept & (self.numbers[found] == self.numbers[positions])

    # State.

    def _with_room(self, values: Any) -> np.ndarray:
        """Returns the first rows of an array, in one with room for all rows."""
        found = np.asarray(values)
        whole = self._zeros((self.num_rows * self.num_lanes, *found.shape[1:]), found.dtype)
        whole[: len(found)] = found
        return whole

    def get_state(self) -> RingState:
        """Returns everything that the ring holds."""
        used = int(self.kept.max(initial=0)) * self.num_lanes  # no row behind these has been written
        return RingState(
            columns={name: tree_map(lambda leaf: leaf[:used], column) for name, column in self.columns.items()},
            flags=self.flags[:used],
            numbers=self.numbers[:used],
            written=self.written,
            num_rows=self.num_rows,
            num_steps_added=self.num_steps_added,
            num_episodes_added=self.num_episodes_added,
            action_units=self.action_units,
            open=dict(self._open),
            ended={key: dict(own) for key, own in self._ended.items()},
            spaces=spaces_to_json(self.spaces),
            priorities=None if self.tree is None else Priorities(self.tree.weights[:used].copy(), self.greatest),
        )

    def set_state(self, state: RingState) -> None:
        """Loads a state that ``get_state`` returned. As many of the newest rows are kept as there is room for.

        Raises:
            CheckpointError: If an action is not in its space, if the rewards are not one number a step, or if the
                priorities are missing.
        """
        self.written = state.written.astype(np.int64)
        self.num_lanes, self.num_rows = len(self.written), state.num_rows
        if self.num_lanes:  # rows that no lane has had yet need no room, unless this ring has room for them
            longest = max(int(self.written.max()), self._rows_per_lane(self.num_lanes))
            self.num_rows = min(self.num_rows, longest)
        self.columns = {name: tree_map(self._with_room, column) for name, column in state.columns.items()}
        self.flags = self._with_room(state.flags.astype(np.uint8))
        self.numbers = self._with_room(state.numbers.astype(np.int32))
        self.num_steps_added, self.num_episodes_added = state.num_steps_added, state.num_episodes_added
        self.action_units = state.action_units
        self.spaces = spaces_from_json(state.spaces)
        for module_id, (_, action_space) in self.spaces.items():
            if Columns.ACTIONS in self.columns:
                self._check_steps(module_id, action_space)
        self.num_steps = int((self.flags & ACTED).sum())
        self._open = dict(state.open)
        self._ended = {key: dict(own) for key, own in state.ended.items()}
        taken = {episode.lane for episode in self._open.values()}
        self._free = [(int(self.written[lane]), lane) for lane in range(self.num_lanes) if lane not in taken]
        heapq.heapify(self._free)
        if self.tree is not None:
            if state.priorities is None:
                raise CheckpointError(
                    "checkpoint: its replay buffer has no priorities. Use a replay buffer of the same type in "
                    "replay_buffer_config."
                )
            self.tree = SumTree.of(self._with_room(state.priorities.weights))
            self.greatest = state.priorities.greatest
        self._widen(self.num_lanes)  # the state may be one of another capacity

    def _check_steps(self, module_id: ModuleID, space: Space) -> None:
        """Checks the actions that were taken, and their rewards. Actions of modules may be out of the bounds of a Box.

        Raises:
            CheckpointError: If an action is not in its space, or the rewards are not one number a step.
        """
        flags = self.flags if self.agents is None else self.own(AGENT_FLAGS, module_id)
        acted = (flags & ACTED) > 0
        rewards = self.own(Columns.REWARDS, module_id)
        space = space if self.action_units == ENV else counted_from_0(space)
        column = tree_map(lambda leaf: leaf[acted], self.own(Columns.ACTIONS, module_id))
        found = f"the actions {why}" if (why := unlike(space, column)) else ""
        if rewards.shape != acted.shape or rewards.dtype.kind != "f":
            found = f"the rewards are {brief(rewards)}, not one number a step"
        if flags.dtype != np.uint8:
            found = f"the flags are {flags.dtype}"
        for _, part, values in () if found else parts_with_values(space, column):
            if isinstance(part, WHOLE) and (why := outside(part, values)[1]):
                found = f"an action {why}"
        if found:
            raise CheckpointError(
                f"checkpoint: it is damaged, or of another version. In the replay buffer of module {module_id!r}, "
                f"{found}, but the space is {describe(space)}. Use another checkpoint, or the version that wrote it."
            )


def _life(whole: object, agent_id: AgentID | None) -> str:
    """Returns the id of an agent's first life in an episode, or a name of the agent in a sub-environment."""
    return str(agent_episode_id(str(whole), agent_id, 0))


def _agent(agent_id: AgentID) -> str:
    """Returns a name of an agent; those of agents ``3`` and ``"3"`` differ."""
    return _life("", agent_id)


def _ends(chunk: Any) -> int:
    """Returns the flags of a chunk's last step besides ``ACTED``."""
    return TERMINATED * chunk.is_terminated + TRUNCATED * chunk.is_truncated


def _key(name: str, module_id: ModuleID) -> str:
    """Returns the key of a module's part of a column of env steps."""
    return ENVIRONMENT if name == Columns.ENV_STATE else module_id


def _flags_of(own: AgentChunks, counts: np.ndarray) -> np.ndarray:
    """Returns ``[B]`` uint8, the flags of all rows of some agents' chunks."""
    flags = np.full(counts.sum(), ACTED | ALIVE, np.uint8)
    after = np.cumsum(counts)
    flags[after - 1] = np.where(own.lives_on, ALIVE, 0)
    if own.has_steps:
        flags[after - 2] |= np.array([_ends(chunk) for chunk in own.chunks], np.uint8)
    return flags


def _described(items: Sequence[tuple[tuple[int, ...], Any]]) -> str:
    return ", ".join(f"{list(shape)} {dtype}" for shape, dtype in items)
