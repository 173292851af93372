"""TeamRing: the newest env steps of a run, with the rows of all agents side by side.

A row is an env step of an episode. Its columns have a place for each agent that can appear, whether it is there or not:

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

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import chunks_of, late_reward, lives_on, num_steps_of, packed, rows_of_episodes
from marl_connectors.episodes.rollout import put, take
from marl_connectors.episodes.rows import Rows
from marl_connectors.errors import EpisodeError, did_you_mean
from marl_connectors.replay_buffers.row_ring import ACTED, Places, RowRing, end_flags
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID, EpisodeID, ModuleID, Tree

ALIVE = 8
"""Bit of an agent's flags, beside those of rows: the agent has an observation there that it acts on or could act on."""
AGENT_FLAGS = "agent_flags"
"""The column of the agents' flags, ``[size, K]`` uint8 of each module."""
ENVIRONMENT = "environment"
"""Stands for a module in the column of the environment's states, ``[size, 1, ...]``: all agents have the same."""


class EnvChunk(NamedTuple):
    """A MultiAgentEpisode, or a chunk of it, as ``RowRing`` needs to know it.

    Attributes:
        id_: The episode's id.
        t_started: The env step at which the chunk begins.
        is_terminated: Whether the episode was terminated.
        is_truncated: Whether it was truncated.
        agent_id: None, as it is of all agents.
        multi_agent_episode_id: None.
    """

    id_: EpisodeID
    t_started: int
    is_terminated: bool
    is_truncated: bool
    agent_id: None = None
    multi_agent_episode_id: None = None

    @property
    def is_done(self) -> bool:
        """Whether it has ended."""
        return self.is_terminated or self.is_truncated


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


class TeamRing(RowRing):
    """The newest env steps, with the rows of all agents.

    The columns have, for each module, ``[size, K, ...]`` arrays for its ``K`` agents: ``columns["obs"]["pi"]``. What
    stands in the places of agents that have no row at an env step has no meaning, except that their flags are 0.

    Attributes:
        agents: The agents of each module, in the order of their places.
        spaces: The observation and action space of each module whose agents' steps were added.
    """

    def __init__(
        self,
        capacity: int,
        agents: Mapping[ModuleID, Sequence[AgentID]],
        extra_columns: Sequence[str] = (),
        *,
        spill_folder: Path | None = None,
    ):
        """Creates an empty ring.

        Args:
            capacity: The greatest number of env steps.
            agents: As above.
            extra_columns: Recorded module outputs that are kept where episodes have them.
            spill_folder: As for every ring.
        """
        super().__init__("all agents", capacity, extra_columns, spill_folder=spill_folder)
        self.agents = {module_id: tuple(own) for module_id, own in agents.items()}
        self.spaces: dict[ModuleID, tuple[Any, Any]] = {}
        self._slots = {a: (m, slot) for m, own in self.agents.items() for slot, a in enumerate(own)}

    def add(self, chunks: Sequence[Any]) -> None:
        """Adds the env steps of MultiAgentEpisodes, or of chunks of them; the oldest env steps give way.

        Args:
            chunks: Chunks of one episode come in their order. One without env steps may tell how the episode has ended.

        Raises:
            EpisodeError: If they have other agents, or if the columns do not fit those of the episodes before.
        """
        by_module = sorted(self._by_module(chunks).items())
        own = [(m, part, *self._checked_columns(m, part)) for (*_, m), part in by_module]
        heads = [EnvChunk(e.id_, e.env_t_started, e.is_terminated, e.is_truncated) for e in chunks]
        steps = np.array([e.env_t - e.env_t_started for e in chunks], np.int64)
        counts = steps + (steps > 0)
        started = np.array([e.env_t_started for e in chunks], np.int64)
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        times = (np.repeat(started, counts) + number).astype(np.int32)
        places = self.insert(heads, {Columns.T: times}, counts)
        self._forget_agents(places, counts)
        for module_id, part, rows, columns in own:
            self._put(module_id, part, rows, columns, places, started)
            self._complete_agents(module_id, part, rows, places, started)
        for episode, lane, number in zip(chunks, places.lanes, places.numbers, strict=True):
            if not episode.is_done:
                own_chunks = list(chunks_of([episode]))
                self._note_ends(own_chunks, [lane] * len(own_chunks), [number] * len(own_chunks))

    def _by_module(self, chunks: Iterable[MultiAgentEpisode]) -> dict[tuple[int, int, ModuleID], AgentChunks]:
        """Returns the agents' chunks by module and, in the order in which they are written, by what they hold.

        The chunks of one episode are written one after another. Of each, agents' chunks without steps that tell of an
        end are first, then those with steps, then observations that wait for an action. So of two lives of an agent,
        the later one comes last.
        """
        found: dict[tuple[int, int, ModuleID], AgentChunks] = {}
        numbers: Counter[Any] = Counter()
        for i, episode in enumerate(chunks):
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

    def _checked_columns(self, module_id: ModuleID, own: AgentChunks) -> tuple[Rows, dict[str, Tree]]:
        """Returns the rows of one module's agents, and their columns.

        Those without steps have an observation, and maybe what was known with it. No types are learned from them.

        Raises:
            EpisodeError: If the columns do not fit those before.
        """
        if not own.has_steps:
            rows = rows_of_episodes(packed(own.chunks), [module_id])
            names = (Columns.OBS, Columns.ACTION_MASK, Columns.ENV_STATE)
            return rows, {
                n: rows.get(n) for n in names if rows.has(n) and (n == Columns.OBS or n in self.extra_columns)
            }
        rows = rows_of_episodes(own.chunks, [module_id])
        names = [Columns.OBS, Columns.ACTIONS, Columns.REWARDS, *(n for n in self.extra_columns if rows.has(n))]
        columns = {name: rows.get(name) for name in names}
        before = [n for n in self.columns if n not in (Columns.T, AGENT_FLAGS) and self.has(n, module_id)]
        before += [Columns.ENV_STATE] if self.has(Columns.ENV_STATE, ENVIRONMENT) and before else []
        if before and set(before) != set(names):
            raise self._misfit(f"module {module_id!r} has the columns {sorted(names)}, and had {sorted(before)} before")
        for name in before:
            kept = [(leaf.dtype.str, leaf.shape[2:]) for leaf in leaves(self.columns[name][_key(name, module_id)])]
            new = [(leaf.dtype.str, leaf.shape[1:]) for leaf in leaves(columns[name])]
            if kept != new:
                raise self._misfit(f"{name!r} of module {module_id!r} has items of {new}, those before of {kept}")
        if module_id not in self.spaces:
            self.spaces[module_id] = rows.observation_space, rows.action_space
        self.action_units = self._common_units(rows)
        return rows, columns

    def _forget_agents(self, places: Places, counts: np.ndarray) -> None:
        """Sets the flags of all agents to 0 in the rows of new chunks."""
        number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        positions = self.positions(np.repeat(places.lanes, counts), np.repeat(places.starts, counts) + number)
        self._overwrites(positions)
        for flags in self.columns.get(AGENT_FLAGS, {}).values():
            flags[positions] = 0

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
        self._overwrites(positions[fresh])
        at_agents: Any = (positions[fresh], np.repeat(own.slots, rows.counts)[fresh])
        at_environment: Any = (positions[fresh], 0)
        for name, values in {**columns, AGENT_FLAGS: flags}.items():
            known: Any = self.columns.setdefault(name, {})
            key = _key(name, module_id)
            if key not in known and not own.has_steps:
                continue
            number = 1 if key == ENVIRONMENT else len(self.agents[module_id])
            if key not in known:
                shape = self.num_rows * self.num_lanes, number
                known[key] = tree_map(lambda leaf, s=shape: self._zeros((*s, *leaf.shape[1:]), leaf.dtype), values)
            put(known[key], at_environment if key == ENVIRONMENT else at_agents, take(values, fresh))

    def _complete_agents(
        self, module_id: ModuleID, own: AgentChunks, rows: Rows, places: Places, started: np.ndarray
    ) -> None:
        """Adds to the last steps of agents, in chunks before, what chunks tell of them; see ``_complete_last_steps``.

        The arguments are those of ``_put``.
        """
        known: Any = self.columns.get(AGENT_FLAGS, {})
        if module_id not in known:
            return
        flags, rewards = known[module_id], self.columns[Columns.REWARDS][module_id]  # type: ignore[index]
        counts = np.array(rows.counts)
        first = rows.get(Columns.T)[counts.cumsum() - counts]
        ends = end_flags(own.chunks) * (not own.has_steps)
        for chunk, slot, e, t, end in zip(own.chunks, own.slots, own.episodes, first, ends, strict=True):
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

    def _add_to_last(self, positions: np.ndarray, agent_id: AgentID, reward: float) -> None:
        module_id, slot = self._slots[agent_id]
        flags: Any = self.columns[AGENT_FLAGS]
        last = positions[(flags[module_id][positions, slot] & ACTED) > 0][-1:]
        self._overwrites(last)
        self.columns[Columns.REWARDS][module_id][last, slot] += reward  # type: ignore[index]

    def has(self, name: str, module_id: ModuleID) -> bool:
        """Whether the rows of a module's agents have a column."""
        return module_id in self.columns.get(name, {})

    def modules(self) -> Iterator[ModuleID]:
        """Yields the modules whose agents' steps were added, in the order of ``agents``."""
        return (m for m in self.agents if self.has(AGENT_FLAGS, m))

    def _part_of(self, column: Tree, module_id: ModuleID) -> Any:
        whole: Any = self.columns[AGENT_FLAGS] if column is self.flags else column
        return whole[module_id]

    def _spaces(self) -> Mapping[ModuleID, tuple[Any, Any]]:
        return self.spaces

    def _set_spaces(self, spaces: Mapping[ModuleID, tuple[Any, Any]]) -> None:
        self.spaces = dict(spaces)


def _key(name: str, module_id: ModuleID) -> str:
    """Returns the key of a module's part of a column."""
    return ENVIRONMENT if name == Columns.ENV_STATE else module_id


def _flags_of(own: AgentChunks, counts: np.ndarray) -> np.ndarray:
    """Returns ``[B]`` uint8, the flags of all rows of some agents' chunks."""
    flags = np.full(counts.sum(), ACTED | ALIVE, np.uint8)
    ends = np.cumsum(counts) - 1
    flags[ends] = np.where(own.lives_on, ALIVE, 0)
    if own.has_steps:
        flags[ends - 1] |= end_flags(own.chunks)
    return flags
