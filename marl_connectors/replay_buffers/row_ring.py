"""RowRing: the newest rows of one module's agents, in columns of a fixed size.

The rows are divided into lanes, each of which is a ring. An agent's episode is in one lane, from its first to its last
observation, so its steps follow one another although other agents' steps arrive between them:

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
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from gymnasium import Space
from msgspec import Meta

from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ENV, MODULE, ActionUnits, have_same_numbers
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.multi_agent_episode import REMEMBERED_AGENTS, agent_episode_id
from marl_connectors.episodes.packing import late_reward, num_steps_of, rows_of_episodes
from marl_connectors.episodes.rollout import put, take
from marl_connectors.episodes.rows import Rows, env_number_of
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import CheckpointError, ConfigError, EpisodeError
from marl_connectors.names import brief
from marl_connectors.replay_buffers.spilled_arrays import zeros
from marl_connectors.spaces import (
    WHOLE,
    counted_from_0,
    describe,
    from_json,
    outside,
    parts_with_values,
    to_json,
    unlike,
)
from marl_connectors.state import Column, Count, Floats, Index, Ints, State
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID, EpisodeID, ModuleID, Tree

Chunk = SingleAgentEpisode | AgentChunk
ACTED, TERMINATED, TRUNCATED = 1, 2, 4
"""Bits of a row's flags: a step was taken there; the episode ended after it."""
_NO_EPISODE = -1
"""The number of no episode."""
_ALWAYS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T)


class OpenEpisode(State):
    """An agent's episode that has not ended, and continues in the row of its last observation.

    Attributes:
        episode_id: The episode's id, with the agent's name and life.
        lane: Its lane.
        number: The number that its rows have.
        num_steps: The number of steps that the agent has taken in it.
        added_at: The number of rows that the ring had ever had before the newest chunk of it was added.
    """

    episode_id: str
    lane: Index
    number: Index
    num_steps: Count
    added_at: Count


class Priorities(State):
    """What makes some steps more likely to be drawn than others.

    Attributes:
        weights: The weight of each row that has been written.
        greatest: The greatest weight so far, which new steps get.
    """

    weights: Floats
    greatest: Annotated[float, Meta(gt=0)]

    def __post_init__(self) -> None:
        if not (np.isfinite(self.weights).all() and (self.weights >= 0).all() and np.isfinite(self.greatest)):
            raise ValueError("Expected weights that are finite, from 0")


class RowRingState(State):
    """The state of a ring, without the room that is still free.

    Attributes:
        columns: The columns of the rows that have been written.
        flags: As in the ring, of these rows.
        numbers: As in the ring, of these rows.
        written: As in the ring.
        num_rows: As in the ring.
        num_steps_added: As in the ring.
        num_episodes_added: As in the ring.
        action_units: Whose actions they are.
        open: Each agent that has an episode that has not ended.
        ended: The id of a MultiAgentEpisode to the agents that have ended in it, to the lane and the number of each.
        spaces: The observation space and the action space of each module as JSON data, where they have such a form.
        priorities: Those of a ring that draws by them.
    """

    columns: dict[str, Column]
    flags: Ints
    numbers: Ints
    written: Ints
    num_rows: Index
    num_steps_added: Count
    num_episodes_added: Count
    action_units: ActionUnits
    open: dict[str, OpenEpisode]
    ended: dict[str, dict[str, tuple[Index, Index]]]
    spaces: dict[ModuleID, tuple[dict[str, Any], dict[str, Any]]]
    priorities: Priorities | None = None

    def __post_init__(self) -> None:
        num_lanes = len(self.written)
        if (self.written < 0).any() or (self.written >= 2**62).any():
            raise ValueError(f"Expected written to be numbers from 0, got {brief(self.written)}")
        size = min(self.num_rows, int(self.written.max(initial=0))) * num_lanes
        rows: dict[str, Any] = {"flags": self.flags, "numbers": self.numbers, **self.columns}
        if self.priorities is not None:
            rows["priorities"] = self.priorities.weights
        for name, column in rows.items():
            if any(len(leaf) != size for leaf in leaves(column)):
                raise ValueError(f"Expected {name} to have {size} rows, got {brief(column)}")
        places = [place for own in self.ended.values() for place in own.values()]
        lanes = [*(episode.lane for episode in self.open.values()), *(lane for lane, _ in places)]
        if max(lanes, default=-1) >= num_lanes:
            raise ValueError(f"Expected open and ended episodes in {num_lanes} lanes, got {max(lanes)}")


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


class RowRing:
    """The newest rows of one module's agents.

    Attributes:
        capacity: The greatest number of rows.
        num_lanes: The number of lanes: the greatest number of agents that took part at the same time. An episode with
            an id of its own takes part until a quarter of the capacity was added without it.
        num_rows: The number of rows of each lane.
        columns: Name to ``[num_rows * num_lanes, ...]`` array or tree of arrays.
        flags: ``[num_rows * num_lanes]`` uint8, see ``ACTED``.
        numbers: ``[num_rows * num_lanes]`` int32, the number of the row's episode.
        written: ``[num_lanes]`` int64, the number of rows that each lane has ever had.
        num_steps: The number of steps that are kept.
        num_steps_added: The number of steps that were ever added.
        num_episodes_added: The number of agents' episodes of which steps were added.
    """

    def __init__(
        self,
        module_id: ModuleID,
        capacity: int,
        extra_columns: Sequence[str] = (),
        *,
        spill_folder: Path | None = None,
    ):
        """Creates an empty ring, whose columns are allocated when the first chunks are added.

        Args:
            module_id: The module whose agents' steps these are.
            capacity: The greatest number of rows.
            extra_columns: Recorded module outputs that are kept where episodes have them.
            spill_folder: Where the files are that hold the columns; None to hold them in memory.
        """
        self.module_id = module_id
        self.capacity = capacity
        self.spill_folder = spill_folder
        self.extra_columns = tuple(extra_columns)
        self.num_lanes = 0
        self.num_rows = 0
        self.columns: dict[str, Tree] = {}
        self.flags = np.zeros(0, np.uint8)
        self.numbers = np.zeros(0, np.int32)
        self.written = np.zeros(0, np.int64)
        self.num_steps = 0
        self.num_steps_added = 0
        self.num_episodes_added = 0
        self.observation_space: Any = None
        self.action_space: Any = None
        self.action_units = MODULE
        self._open: dict[str, OpenEpisode] = {}
        self._free: list[tuple[int, int]] = []
        self._ended: dict[str, dict[str, tuple[int, int]]] = {}
        self._overwritten: list[tuple[Callable[[np.ndarray, Any], None], np.ndarray, np.ndarray]] | None = None

    def _zeros(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        return zeros(shape, dtype, self.spill_folder)

    @property
    def nbytes(self) -> int:
        """The size of all arrays, in bytes."""
        columns = sum(leaf.nbytes for column in self.columns.values() for leaf in leaves(column))
        return columns + self.flags.nbytes + self.numbers.nbytes + self.written.nbytes

    @property
    def kept(self) -> np.ndarray:
        """``[num_lanes]`` int64, the number of rows of each lane that are still kept."""
        return np.minimum(self.written, self.num_rows)

    def positions(self, lanes: np.ndarray | int, rows: np.ndarray) -> np.ndarray:
        """Returns the positions in the columns of some rows."""
        return rows % self.num_rows * self.num_lanes + lanes

    # Going back.

    def now(self) -> Callable[[], None]:
        """Returns a function that brings the ring back to where it is now; see ``EpisodeReplayBuffer.now``."""
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

    # Adding.

    def add(self, chunks: Sequence[Chunk]) -> None:
        """Adds the steps of agents' episodes, or of chunks of them; the oldest steps give way.

        Args:
            chunks: Chunks of one episode come in their order. One without steps may tell how the episode has ended, or
                bring a reward for the step before.

        Raises:
            EpisodeError: If the columns do not fit those of the episodes before.
        """
        steps = np.array([num_steps_of(chunk) for chunk in chunks], np.int64)
        with_steps = [chunk for chunk, number in zip(chunks, steps.tolist(), strict=True) if number]
        columns: dict[str, Tree] = {}
        if with_steps:
            rows = rows_of_episodes(with_steps, [self.module_id])
            columns = self._columns_of(rows)
            if self.action_space is None:
                self.observation_space, self.action_space = rows.observation_space, rows.action_space
            self.action_units = self._common_units(rows)
        places = self.insert(chunks, columns, steps + (steps > 0))
        self._note_ends(chunks, places.lanes, places.numbers)

    def _common_units(self, rows: Rows) -> str:
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
                f"Replay buffer: of module {self.module_id!r}, it would hold actions of several kinds: "
                f"{', '.join(sorted([first, *others]))}. Add episodes of one kind, or use the "
                f"buffer of a run, algo.replay_buffer, which turns all of them into those of modules."
            )
        return first

    def insert(self, chunks: Sequence[Any], columns: Mapping[str, Tree], counts: np.ndarray) -> Places:
        """Adds the rows of chunks, and returns where they are.

        Args:
            chunks: Chunks as in ``add``, or objects with the same attributes.
            columns: The columns of their rows, ``[B, ...]``, one chunk after another.
            counts: The number of rows of each chunk: one for each step, and one for the last observation. A chunk that
                has no step has no row; its last observation is that of the chunk before.
        """
        bounds = self._bounds_of_inserts(chunks, counts)
        if len(bounds) == 2:
            return self._insert(chunks, columns, counts, ())
        rows = np.concatenate([[0], counts.cumsum()])[bounds].tolist()
        actors = [_actor(chunk) for chunk in chunks]
        found = []
        for i, (begin, end) in enumerate(pairwise(bounds)):
            own = {name: take(column, slice(*rows[i : i + 2])) for name, column in columns.items()}
            found.append(self._insert(chunks[begin:end], own, counts[begin:end], actors[end:]))
        return Places(*(np.concatenate(parts) for parts in zip(*found, strict=True)))

    def _bounds_of_inserts(self, chunks: Sequence[Any], counts: np.ndarray) -> list[int]:
        """Returns the bounds of chunks that are added together: all of them, unless many may keep a lane for nothing.

        An episode of an env runner continues, or another one of the same sub-environment follows. One with an id of its
        own may never continue, so these are added in parts, between which the oldest ones are let go.
        """
        most = self.capacity // 8
        if counts.sum() <= most or all(chunk.is_done or env_number_of(chunk) is not None for chunk in chunks):
            return [0, len(chunks)]
        bounds, number = [0], 0
        for i, count in enumerate(counts.tolist()):
            if number and number + count > most:
                bounds.append(i)
                number = 0
            number += count
        return [*bounds, len(chunks)]

    def _insert(
        self, chunks: Sequence[Any], columns: Mapping[str, Tree], counts: np.ndarray, later: Sequence[str]
    ) -> Places:
        """Adds the rows of chunks that are added together.

        Args:
            chunks: As for ``insert``.
            columns: As for ``insert``.
            counts: As for ``insert``.
            later: The agents of whom chunks are added afterwards.
        """
        continued = {_actor(chunk) for chunk, n in zip(chunks, counts, strict=True) if n and not chunk.is_done}
        with_end = any(chunk.is_done for chunk in chunks)
        if len(self._open.keys() | continued) + with_end > self.num_lanes:
            self._let_go({*later, *map(_actor, chunks)})
        self._widen(len(self._open.keys() | continued) + with_end)
        if not self.columns:
            size = self.num_rows * self.num_lanes
            for name, values in columns.items():
                self.columns[name] = tree_map(lambda leaf: self._zeros((size, *leaf.shape[1:]), leaf.dtype), values)
        places = self._places(chunks, counts)
        self._write(columns, counts, places, end_flags(chunks))
        self._complete_last_steps(chunks, counts, places)
        self.num_steps_added += int(counts.sum() - (counts > 0).sum())
        return places

    @property
    def num_rows_added(self) -> int:
        """The number of rows that were ever added."""
        return self.num_steps_added + self.num_episodes_added

    def _let_go(self, kept: Collection[str]) -> None:
        """Frees the lanes of episodes with ids of their own that have not continued for a quarter of the capacity.

        Args:
            kept: The agents whose episodes keep their lanes.
        """
        oldest = self.num_rows_added - self.capacity // 4
        for actor, episode in list(self._open.items()):
            if actor == episode.episode_id and episode.added_at <= oldest and actor not in kept:
                del self._open[actor]
                heapq.heappush(self._free, (int(self.written[episode.lane]), episode.lane))

    def _columns_of(self, rows: Rows) -> dict[str, Tree]:
        """Returns the columns of rows that are kept.

        Raises:
            EpisodeError: If they do not fit those before.
        """
        names = [*_ALWAYS, *(name for name in self.extra_columns if rows.has(name))]
        if self.columns and self.columns.keys() != set(names):
            (name, *_) = sorted(self.columns.keys() ^ set(names))
            without = "these episodes do not have" if name in self.columns else "the episodes before do not have"
            raise self._misfit(f"{without} the column {name!r}")
        columns = {name: rows.get(name) for name in names}
        columns[Columns.T] = np.asarray(columns[Columns.T], np.int32)  # as env runners count; other episodes may differ
        assert rows.acted is not None
        without = ~rows.acted
        for name in names[len(_ALWAYS) :]:  # nobody has computed an output for a last observation, but it has a mask
            if name != Columns.ACTION_MASK:
                tree_map(lambda leaf: leaf.__setitem__(without, 0), columns[name])
        for name, column in self.columns.items():
            own, new = ([(leaf.shape[1:], leaf.dtype) for leaf in leaves(tree)] for tree in (column, columns[name]))
            if own != new:
                raise self._misfit(f"{name!r} has items of {_described(new)}, those before of {_described(own)}")
        return columns

    def _places(self, chunks: Sequence[Any], counts: np.ndarray) -> Places:
        """Returns a place for each chunk: behind the chunk before, or else in the emptiest free lane."""
        lanes, starts, numbers = [], [], []
        written, added_at = self.written.tolist(), self.num_rows_added
        for chunk, count in zip(chunks, counts.tolist(), strict=True):
            actor, episode_id = _actor(chunk), _episode_id(chunk)
            known = self._open.pop(actor, None)
            if known is not None and known.episode_id == episode_id and known.num_steps == chunk.t_started:
                lane, number, start = known.lane, known.number, written[known.lane] - 1
            else:
                if known is not None:  # the rest of its episode never came, or a part is missing
                    heapq.heappush(self._free, (written[known.lane], known.lane))
                if not count:  # it tells of a step that is not here
                    for own, value in ((lanes, 0), (starts, 0), (numbers, _NO_EPISODE)):
                        own.append(value)
                    continue
                start, lane = heapq.heappop(self._free)
                number = self.num_episodes_added % 2**31
                self.num_episodes_added += 1
            count = max(count, 1)
            written[lane] = start + count
            if chunk.is_done:
                heapq.heappush(self._free, (written[lane], lane))
            else:
                num_steps = chunk.t_started + count - 1
                self._open[actor] = OpenEpisode(episode_id, lane, number, num_steps, added_at)
            lanes.append(lane)
            starts.append(start)
            numbers.append(number)
        self.written = np.array(written, np.int64)
        return Places(np.array(lanes), np.array(starts), np.array(numbers, np.int32))

    def _write(self, columns: Mapping[str, Tree], counts: np.ndarray, places: Places, end_flags: np.ndarray) -> None:
        ends = counts.cumsum()
        lanes, numbers = places.lanes.repeat(counts), places.numbers.repeat(counts)
        rows = (places.starts - ends + counts).repeat(counts) + np.arange(len(lanes))
        flags = np.full(len(rows), ACTED, np.uint8)
        with_steps = counts > 0
        flags[ends[with_steps] - 1] = 0
        flags[ends[with_steps] - 2] |= end_flags[with_steps]
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
        self._after_write(positions)

    def _complete_last_steps(self, chunks: Sequence[Any], counts: np.ndarray, places: Places) -> None:
        """Adds to last steps in chunks before, as far as they are kept, what chunks tell of them.

        These are rewards that came late and, in chunks without steps, how the episode has ended.

        Args:
            chunks: As for ``insert``.
            counts: As for ``insert``.
            places: Where the chunks are.
        """
        ends, late = end_flags(chunks) * (counts == 0), np.array([late_reward(chunk) for chunk in chunks])
        told = np.flatnonzero((ends > 0) | (late != 0))
        rows, lanes = places.starts[told] - 1, places.lanes[told]
        positions = self.positions(lanes, rows)
        is_kept = rows >= self.written[lanes] - self.num_rows
        is_kept &= self.numbers[positions] == places.numbers[told]
        positions, told = positions[is_kept], told[is_kept]
        self._overwrites(positions)
        np.bitwise_or.at(self.flags, positions, ends[told])
        if late[told].any():
            np.add.at(self.columns[Columns.REWARDS], positions, late[told])  # type: ignore[arg-type]

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
        if number != _NO_EPISODE:
            positions = self.positions(lane, np.arange(self.written[lane] - self.kept[lane], self.written[lane]))
            self._add_to_last(positions[self.numbers[positions] == number], agent_id, reward)

    def _add_to_last(self, positions: np.ndarray, agent_id: AgentID, reward: float) -> None:
        """Adds a reward to the last one of some rows in which an agent acted."""
        last = positions[(self.flags[positions] & ACTED) > 0][-1:]
        self._overwrites(last)
        self.columns[Columns.REWARDS][last] += reward  # type: ignore[index]

    def forget_ended(self, episode_id: EpisodeID) -> None:
        """Forgets where the agents of a MultiAgentEpisode have ended, which is over."""
        self._ended.pop(str(episode_id), None)

    def _after_write(self, positions: np.ndarray) -> None:
        """Called when rows have got other data; does nothing unless overridden."""

    def _misfit(self, what: str) -> EpisodeError:
        return EpisodeError(
            f"Replay buffer, module {self.module_id!r}: {what}. All episodes in a buffer need the same columns. "
            f"Make a new buffer after a change of environments, pieces or modules."
        )

    def _widen(self, num_lanes: int) -> None:
        """Makes enough lanes. What no longer fits into shorter lanes is forgotten, the oldest rows first."""
        if num_lanes > self.num_lanes:
            self._lay_out(num_lanes)

    def fit_capacity(self) -> None:
        """Lays out the rows anew if they come from a ring of another capacity. The newest ones are kept."""
        if self.num_lanes and self.num_rows != self._rows_per_lane(self.num_lanes):
            self._lay_out(self.num_lanes)

    def _rows_per_lane(self, num_lanes: int) -> int:
        return max(self.capacity // num_lanes, 2)

    def _lay_out(self, num_lanes: int) -> None:
        """Moves all rows into so many lanes that have as many rows as the capacity allows."""
        num_rows = self._rows_per_lane(num_lanes)
        kept = np.minimum(self.written, min(self.num_rows, num_rows))
        lanes = np.repeat(np.arange(self.num_lanes), kept)
        rows = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept) + np.repeat(self.written - kept, kept)
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
        self._after_move(moved)

    def _after_move(self, moved: Callable[[np.ndarray], np.ndarray]) -> None:
        """Called when rows have got other positions; does nothing unless overridden.

        Args:
            moved: Returns an array of the new size with the data of all rows at their new positions.
        """

    # Sampling.

    def draw(self, number: int, generator: np.random.Generator) -> np.ndarray:
        """Returns ``[number]`` positions of steps, drawn with replacement.

        All steps have the same probability, unless a subclass gives them others.

        Raises:
            EpisodeError: If there are no steps.
        """
        if not self.num_steps:
            raise EpisodeError(f"Replay buffer, module {self.module_id!r}: there are no steps to draw from.")
        return self._draw_positions(number, generator)

    def _draw_positions(self, number: int, generator: np.random.Generator) -> np.ndarray:
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

    @property
    def num_used(self) -> int:
        """The number of rows at the beginning of all arrays after which none has been written."""
        return int(self.kept.max(initial=0)) * self.num_lanes

    def with_room(self, values: Any) -> np.ndarray:
        """Returns the first rows of an array, in one with room for all rows."""
        found = np.asarray(values)
        whole = self._zeros((self.num_rows * self.num_lanes, *found.shape[1:]), found.dtype)
        whole[: len(found)] = found
        return whole

    def get_state(self) -> RowRingState:
        """Returns everything that the ring holds."""
        used = self.num_used
        return RowRingState(
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
            spaces=spaces_to_json(self._spaces()),
        )

    def set_state(self, state: RowRingState) -> None:
        """Loads a state that ``get_state`` returned.

        Raises:
            CheckpointError: If an action is not in its space, or the rewards are not one number a step.
        """
        self.written = state.written.astype(np.int64)
        self.num_lanes, self.num_rows = len(self.written), state.num_rows
        if self.num_lanes:  # rows that no lane has had yet need no room, unless this ring has room for them
            longest = max(int(self.written.max()), self._rows_per_lane(self.num_lanes))
            self.num_rows = min(self.num_rows, longest)
        self.columns = {name: tree_map(self.with_room, column) for name, column in state.columns.items()}
        self.flags = self.with_room(state.flags.astype(np.uint8))
        self.numbers = self.with_room(state.numbers.astype(np.int32))
        self.num_steps_added, self.num_episodes_added = state.num_steps_added, state.num_episodes_added
        self.action_units = state.action_units
        self._set_spaces(spaces_from_json(state.spaces))
        for module_id, (_, action_space) in self._spaces().items():
            if action_space is not None and Columns.ACTIONS in self.columns:
                self._check_steps(module_id, action_space)
        self.num_steps = int((self.flags & ACTED).sum())
        self._open = dict(state.open)
        self._ended = {key: dict(own) for key, own in state.ended.items()}
        taken = {episode.lane for episode in self._open.values()}
        self._free = [(int(self.written[lane]), lane) for lane in range(self.num_lanes) if lane not in taken]
        heapq.heapify(self._free)

    def _check_steps(self, module_id: ModuleID, space: Space) -> None:
        """Checks the actions that were taken, and their rewards. Actions of modules may be out of the bounds of a Box.

        Raises:
            CheckpointError: If an action is not in its space, or the rewards are not one number a step.
        """
        flags = self._part_of(self.flags, module_id)
        acted = (flags & ACTED) > 0
        rewards: Any = self._part_of(self.columns[Columns.REWARDS], module_id)
        space = space if self.action_units == ENV else counted_from_0(space)
        column = tree_map(lambda leaf: leaf[acted], self._part_of(self.columns[Columns.ACTIONS], module_id))
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

    def _part_of(self, column: Tree, module_id: ModuleID) -> Any:
        """Returns the part of a column, or of the flags, that a module's agents have."""
        return column

    def _spaces(self) -> Mapping[ModuleID, tuple[Any, Any]]:
        """Returns the observation and action space of each module, as far as they are known."""
        return {self.module_id: (self.observation_space, self.action_space)}

    def _set_spaces(self, spaces: Mapping[ModuleID, tuple[Space, Space]]) -> None:
        """Sets the spaces of modules that a state has. Others are known when the next episodes are added."""
        self.observation_space, self.action_space = spaces.get(self.module_id, (None, None))


def spaces_to_json(spaces: Mapping[ModuleID, tuple[Any, Any]]) -> dict[ModuleID, tuple[Any, Any]]:
    """Returns the observation and action spaces of modules as JSON data, without spaces that have no such form."""
    found = {}
    for module_id, pair in spaces.items():
        try:
            if None not in pair:
                found[module_id] = to_json(pair[0]), to_json(pair[1])
        except ConfigError:
            continue
    return found


def spaces_from_json(data: Mapping[ModuleID, Sequence[Any]]) -> dict[ModuleID, tuple[Space, Space]]:
    """Returns the spaces that ``spaces_to_json`` described."""
    return {module_id: (from_json(seen), from_json(taken)) for module_id, (seen, taken) in data.items()}


def _episode_id(chunk: Chunk) -> str:
    """Returns the id of an agent's episode, the same for all of its chunks."""
    if isinstance(chunk, AgentChunk):
        return str(agent_episode_id(chunk.multi_agent_episode_id, chunk.agent_id, 0))
    return str(chunk.id_)


def _actor(chunk: Chunk) -> str:
    """Returns a name of the agent in its sub-environment, which has one episode at a time."""
    number = env_number_of(chunk)
    return _episode_id(chunk) if number is None else str(agent_episode_id(str(number), chunk.agent_id, 0))


def _agent(agent_id: AgentID) -> str:
    """Returns a name of an agent; those of agents ``3`` and ``"3"`` differ."""
    return str(agent_episode_id("", agent_id, 0))


def end_flags(chunks: Sequence[Chunk]) -> np.ndarray:
    """Returns ``[E]`` uint8, the flags of each chunk's last step besides ``ACTED``."""
    return np.array([TERMINATED * c.is_terminated + TRUNCATED * c.is_truncated for c in chunks], np.uint8)


def _described(items: Sequence[tuple[tuple[int, ...], Any]]) -> str:
    return ", ".join(f"{list(shape)} {dtype}" for shape, dtype in items)
