"""Episodes as columns and a table: what one block of a file holds."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from marl_connectors import spaces
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode, agent_episode_id
from marl_connectors.episodes.packing import chunks_of, packed
from marl_connectors.episodes.rollout import Rollout, spans
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import INFOS, ListStorage, T
from marl_connectors.errors import CheckpointError, EpisodeError
from marl_connectors.offline.info_columns import pack_infos, storable_part, unpack_infos, unstorable
from marl_connectors.offline.stored_block import (
    AgentEpisodeFacts,
    EpisodeFacts,
    RolloutColumns,
    RolloutFacts,
    StoredAgentNotes,
    StoredBlock,
    StoredColumns,
    StoredEpisodeNotes,
    check_notes,
)
from marl_connectors.state import as_state, decode_state, encode_state, fields_of
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, EpisodeID, ModuleID

Chunk = SingleAgentEpisode | AgentChunk
_NO_EPISODE_NOTES: Final = StoredEpisodeNotes()
_NO_AGENT_NOTES: Final = StoredAgentNotes()
NoteDropped = Callable[[AgentID, Any, str], None]
ModuleFor = Callable[[AgentID, Any], ModuleID]


def stored_state(
    episodes: Sequence[Any], note_dropped: NoteDropped | None = None
) -> tuple[StoredBlock, dict[str, np.ndarray]]:
    """Returns episodes as a block and its arrays, for ``StoredEpisodes``. The episodes stay as they are.

    Args:
        episodes: SingleAgentEpisodes or MultiAgentEpisodes.
        note_dropped: Called with the agent, the key and the type of each value of an info that no file can hold, and
            that is left out; None to refuse such infos.

    Raises:
        EpisodeError: If observations, actions, module outputs, infos, ids or ``custom_data`` hold anything but
            numbers, arrays of numbers and plain data.
    """
    by_episode = [list(chunks_of([episode])) for episode in episodes]
    chunks = [chunk for own in by_episode for chunk in own]
    _check_infos(chunks, note_dropped)
    views = packed(chunks)
    rollouts, places = _rollouts_of(views)
    table = _Table()
    number = 0
    for episode, own in zip(episodes, by_episode, strict=True):
        for chunk in own:
            table.add_chunk(chunk, episode, places[number])
            number += 1
        table.add_episode(episode, own)
    columns = {
        "agents": list(table.agents),
        "rollouts": [_columns_of(rollout) for rollout in rollouts],
        "episode_notes": table.episode_notes,
        "chunk_notes": table.chunk_notes,
    }
    tensors: dict[str, np.ndarray] = {}
    try:
        encoded = encode_state(columns, (), tensors)
    except CheckpointError as error:
        raise _not_storable(error, table.episodes.id) from error
    facts = list(map(_facts_of, rollouts))
    return StoredBlock(table.episodes, table.chunks, list(table.modules), facts, encoded), tensors


def _not_storable(error: CheckpointError, ids: Sequence[EpisodeID]) -> EpisodeError:
    found = re.search(r"state\[(.*)\] is an? (.*)\. Convert", str(error))
    what = f"{found[1]} is a {found[2]}" if found else str(error)
    return EpisodeError(
        f"EpisodeWriter: in the episodes from {ids[0]!r} to {ids[-1]!r}, {what}, which no file can hold. Agent ids and "
        f"custom_data may hold numbers, strings, arrays, and dicts, lists and tuples of them; observations, actions "
        f"and module outputs must be numbers."
    )


def _check_infos(chunks: Sequence[Chunk], note_dropped: NoteDropped | None) -> None:
    """Looks for values of infos that no file can hold, by their types only.

    Raises:
        EpisodeError: If there is one, unless ``note_dropped`` is given.
    """
    for chunk in chunks:
        storage = _lane_storage(chunk) if isinstance(chunk, AgentChunk) else chunk.storage
        if type(storage) is LaneStorage and not storage.rollout.infos:
            continue
        for info, t in zip(storage.column(INFOS), storage.column(T), strict=True):
            for key, value in info.items():
                found = unstorable(key) or unstorable(value)
                if found is None:
                    continue
                path, kind = found
                if note_dropped is None:
                    whole = chunk.multi_agent_episode_id or getattr(chunk, "id_", None)
                    raise EpisodeError(
                        f"EpisodeWriter: episode {whole!r}, agent {chunk.agent_id!r}, env step {t}: "
                        f"info[{key!r}]{path} is a {kind}, which no file can hold. Let the environment give numbers, "
                        f"strings, arrays, or dicts, lists and tuples of them, or write without such values: "
                        f"unstorable_infos='drop' (output_unstorable_infos in .offline_data(...))."
                    )
                note_dropped(chunk.agent_id, key, kind)


def _lane_storage(chunk: AgentChunk) -> LaneStorage:
    rows = {"first_row": chunk.first_row, "start_row": chunk.start_row, "stop_row": chunk.last_row}
    return LaneStorage(chunk.rollout, chunk.lane, **rows)


class _Place(NamedTuple):
    """Where the rows of an agent's episode are: a rollout and row numbers, as in ``LaneStorage``."""

    rollout: int
    first_row: int
    start_row: int
    stop_row: int


def _rollouts_of(chunks: Sequence[Chunk]) -> tuple[list[Rollout], list[_Place]]:
    """Returns rollouts of one lane with the rows of agents' episodes, one for each of theirs, and the places."""
    storages: list[Any] = [chunk if isinstance(chunk, AgentChunk) else chunk.storage for chunk in chunks]
    by_rollout: dict[int, list[int]] = {}
    for i, storage in enumerate(storages):
        by_rollout.setdefault(id(storage.rollout), []).append(i)
    rollouts, places = [], [_Place(0, 0, 0, 0)] * len(chunks)
    for number, members in enumerate(by_rollout.values()):
        rollout = storages[members[0]].rollout
        table = np.array([(s.lane, s.first_row, s.start_row, s.last_row) for s in map(storages.__getitem__, members)])
        lane, first, start, last = table.T
        rollouts.append(rollout.rows(spans(first * rollout.num_lanes + lane, last - first + 1, rollout.num_lanes)))
        begin = np.cumsum(last - first + 1) - (last - first + 1)
        rows = np.stack([begin, begin + start - first, begin + last - first], axis=1).tolist()
        for i, own in zip(members, rows, strict=True):
            places[i] = _Place(number, *own)
    return rollouts, places


def _columns_of(rollout: Rollout) -> RolloutColumns:
    infos = {row: info for row, given in rollout.infos.items() if (info := storable_part(given))}
    arrays = rollout.arrays()
    del arrays["names"]
    return RolloutColumns(**arrays, infos=pack_infos(infos))


def _facts_of(rollout: Rollout) -> RolloutFacts:
    whole = rollout.observation_space, rollout.action_space
    seen, taken = (None if space is None else json.dumps(spaces.to_json(space)) for space in whole)
    arrays = rollout.arrays()
    return RolloutFacts(rollout.num_rows, arrays["names"], list(arrays["layers"]), seen, taken, rollout.action_units)


class _Table:
    """The facts of episodes and of the agents' episodes in them, in lists. Notes are what most episodes lack."""

    def __init__(self) -> None:
        self.agents: dict[AgentID, int] = {}
        self.modules: dict[ModuleID | None, int] = {}
        self.episodes = EpisodeFacts(*([] for _ in EpisodeFacts.__struct_fields__))
        self.chunks = AgentEpisodeFacts(*([] for _ in AgentEpisodeFacts.__struct_fields__))
        self.episode_notes: list[list[Any]] = []
        self.chunk_notes: list[list[Any]] = []

    def add_episode(self, episode: Any, chunks: Sequence[Chunk]) -> None:
        """Adds an episode after its chunks."""
        is_multi = isinstance(episode, MultiAgentEpisode)
        t = (episode.env_t_started, episode.env_t) if is_multi else (episode.t_started, episode.t)
        end = len(self.chunks.agent)
        facts = (episode.id_, is_multi, *t, episode.is_terminated, episode.is_truncated, end)
        for column, fact in zip(fields_of(self.episodes).values(), facts, strict=True):
            column.append(fact)
        if not is_multi:
            return
        notes = episode.get_notes({chunk.agent_id: chunk.module_id for chunk in chunks})
        if episode.past_agent_episodes:
            notes["num_past"] = len(episode.past_agent_episodes)
        if notes:
            self.episode_notes.append([len(self.episodes.id) - 1, notes])

    def add_chunk(self, chunk: Chunk, whole: Any, place: _Place) -> None:
        """Adds an agent's episode of the episode ``whole``."""
        agent = self.agents.setdefault(chunk.agent_id, len(self.agents))
        module = self.modules.setdefault(chunk.module_id, len(self.modules))
        facts = (agent, module, *place, chunk.t_started, chunk.is_terminated, chunk.is_truncated)
        for column, fact in zip(fields_of(self.chunks).values(), facts, strict=True):
            column.append(fact)
        if isinstance(chunk, AgentChunk):
            return
        notes = chunk.get_notes()
        id_, multi_id = _usual_ids(isinstance(whole, MultiAgentEpisode), whole.id_, chunk.agent_id)
        if chunk.id_ != id_:
            notes["id_"] = chunk.id_
        if chunk.multi_agent_episode_id != multi_id:
            notes["multi_agent_episode_id"] = chunk.multi_agent_episode_id
        if notes:
            self.chunk_notes.append([len(self.chunks.agent) - 1, notes])


def _usual_ids(is_multi_agent: bool, id_: EpisodeID, agent_id: AgentID) -> tuple[EpisodeID, EpisodeID | None]:
    """Returns the id that an agent's episode usually has, and its ``multi_agent_episode_id``."""
    return (agent_episode_id(id_, agent_id, 0), id_) if is_multi_agent else (id_, None)


class StoredEpisodes:
    """Episodes that were written together. They are made when they are asked for, with copies of their rows.

    Attributes:
        block: The table, and what is not read yet.
        table: The facts of episodes as arrays, without their ids.
        chunks: The facts of agents' episodes as arrays.
        ids: The id of each episode.
        env_steps: ``[N]`` the number of env steps of each episode.
        agent_steps: ``[N]`` the number of agent steps of each episode.
    """

    def __init__(
        self,
        block: StoredBlock | Mapping[str, Any],
        arrays: Callable[[], dict[str, np.ndarray]],
        num_bytes: int = 2**40,
    ):
        """Reads the table.

        Args:
            block: The block that ``stored_state`` returned, or its JSON data.
            arrays: Returns the arrays that ``stored_state`` returned, which may be read-only.
            num_bytes: Their size, beyond which no space is made.

        Raises:
            Exception: Any, if ``stored_state`` cannot have returned the data.
        """
        self.block = as_state(StoredBlock, block)
        self._arrays = arrays
        facts = fields_of(self.block.episodes)
        self.ids: list[EpisodeID] = facts.pop("id")
        self.table = {name: _as_array(name, column) for name, column in facts.items()}
        self.chunks = {name: _as_array(name, column) for name, column in fields_of(self.block.chunks).items()}
        self.block.check(self.table, self.chunks, num_bytes)
        self._num_bytes = num_bytes
        self.begins = np.concatenate([[0], self.table["end"]]).astype(np.int64)
        self.env_steps = self.table["env_t"] - self.table["env_t_started"]
        steps = np.concatenate([[0], np.cumsum(self.chunks["stop_row"] - self.chunks["start_row"])])
        self.agent_steps = np.diff(steps[self.begins])

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _columns(self) -> StoredColumns:
        arrays = dict(self._arrays())
        columns = as_state(StoredColumns, decode_state(self.block.columns, arrays))
        if arrays:
            raise ValueError(f"it contains the array {next(iter(arrays))!r}, which nothing mentions")
        return columns

    def spaces_of(self, rollout: int) -> tuple[Any, Any]:
        """Returns the observation space and the action space of a stored rollout, or None where unknown."""
        return self.block.rollouts[rollout].spaces()

    def episode_of(self, chunk: int) -> int:
        """Returns the number of the episode that an agent's episode belongs to."""
        return int(np.searchsorted(self.table["end"], chunk, side="right"))

    @cached_property
    def rollouts(self) -> list[Rollout]:
        """The stored columns, which may be read-only."""
        found = []
        for facts, own in zip(self.block.rollouts, self._columns.rollouts, strict=True):
            arrays = {**fields_of(own), "names": facts.names}
            known = {"num_rows": facts.num_rows, "action_units": facts.action_units}
            rollout = Rollout.of_arrays(arrays, *facts.spaces(), **known)
            rollout.infos = unpack_infos(own.infos)
            found.append(rollout)
        return found

    def check_columns(self) -> None:
        """Checks the columns and the notes.

        Raises:
            Exception: Any, if ``stored_state`` cannot have returned them.
        """
        chunks = self.chunks
        if (chunks["agent"] >= len(self.agents)).any():
            raise ValueError("a number of 'agent' is unknown")
        for i, (facts, own) in enumerate(zip(self.block.rollouts, self._columns.rollouts, strict=True)):
            own.check(facts)
            members = chunks["rollout"] == i
            own.check_times(chunks["first_row"][members], chunks["stop_row"][members])
        of_chunks = [self.episode_of(i) for i in self.chunk_notes]
        if max([*self.episode_notes, *of_chunks], default=-1) >= len(self):
            raise ValueError("notes are of no episode")
        for notes in self.episode_notes.values():
            check_notes(notes, self._num_bytes)
        for episode in self.episodes(list(dict.fromkeys([*self.episode_notes, *of_chunks]))):
            episode.get_state()

    @property
    def agents(self) -> list[Any]:
        """The agents, in the order of their numbers in ``chunks``."""
        return self._columns.agents

    @property
    def modules(self) -> list[ModuleID | None]:
        """The modules, in the order of their numbers in ``chunks``."""
        return self.block.modules

    @cached_property
    def _chunk_facts(self) -> dict[str, list[Any]]:
        """``chunks`` as lists, of which single facts are read faster."""
        return fields_of(self.block.chunks)

    @cached_property
    def episode_notes(self) -> dict[int, StoredEpisodeNotes]:
        """Number of an episode to what is unusual about it."""
        return dict(self._columns.episode_notes)

    @cached_property
    def chunk_notes(self) -> dict[int, StoredAgentNotes]:
        """Number of an agent's episode to what is unusual about it."""
        return dict(self._columns.chunk_notes)

    def notes_of(self, number: int) -> StoredEpisodeNotes:
        """Returns what is unusual about an episode."""
        return self.episode_notes.get(number, _NO_EPISODE_NOTES)

    def chunk_numbers(self, number: int) -> range:
        """Returns the numbers of the agents' episodes of an episode."""
        return range(int(self.begins[number]), int(self.begins[number + 1]))

    def episodes(
        self,
        numbers: Sequence[int] | None = None,
        module_for: ModuleFor | None = None,
        prefix: str = "",
        without: Collection[str] = (),
    ) -> list[Any]:
        """Returns episodes with copies of their rows.

        Args:
            numbers: The numbers of the episodes, in this order; None for all.
            module_for: A policy mapping function, instead of the modules that have acted.
            prefix: What to put before the ids.
            without: Columns that are left out.
        """
        numbers = range(len(self)) if numbers is None else numbers
        members = [i for number in numbers for i in self.chunk_numbers(number)]
        storages = iter(self._storages(members, without))
        return [self._episode(number, storages, module_for, prefix) for number in numbers]

    def _storages(self, members: Sequence[int], without: Collection[str]) -> list[LaneStorage]:
        """Returns views of copies of the rows of agents' episodes."""
        of = {name: self.chunks[name][list(members)] for name in ("rollout", "first_row", "start_row", "stop_row")}
        found: list[Any] = [None] * len(members)
        for number in dict.fromkeys(of["rollout"].tolist()):
            own = np.flatnonzero(of["rollout"] == number)
            first, start, stop = (of[name][own] for name in ("first_row", "start_row", "stop_row"))
            counts = stop - first + 1
            rollout = self.rollouts[number].rows(spans(first, counts), without=without)
            begin = np.cumsum(counts) - counts
            rows = np.stack([begin, begin + start - first, begin + stop - first], axis=1).tolist()
            for i, (first_row, start_row, stop_row) in zip(own.tolist(), rows, strict=True):
                found[i] = LaneStorage(rollout, 0, first_row=first_row, start_row=start_row, stop_row=stop_row)
        return found

    def _episode(self, number: int, storages: Iterator[LaneStorage], module_for: ModuleFor | None, prefix: str) -> Any:
        facts = {name: column[number].item() for name, column in self.table.items()}
        id_, ends = prefix + self.ids[number], (facts["is_terminated"], facts["is_truncated"])
        if not facts["is_multi_agent"]:
            (i,) = self.chunk_numbers(number)
            return self._agent_episode(i, next(storages), id_, None, module_for, prefix)
        episode = MultiAgentEpisode.from_agent_episodes(
            id_,
            {},
            env_t_started=facts["env_t_started"],
            env_t=facts["env_t"],
            agent_to_module_mapping_fn=module_for,
        )
        notes = self.notes_of(number)
        episode.set_notes(notes)
        for place, i in enumerate(self.chunk_numbers(number)):
            own = self._agent_episode(i, next(storages), id_, episode, module_for, prefix)
            if place < notes.num_past:
                episode.past_agent_episodes.append(own)
            else:
                episode.agent_episodes[own.agent_id] = own
        episode.is_terminated, episode.is_truncated = ends
        return episode

    def _agent_episode(
        self,
        i: int,
        storage: LaneStorage,
        id_: EpisodeID,
        whole: MultiAgentEpisode | None,
        module_for: ModuleFor | None,
        prefix: str,
    ) -> SingleAgentEpisode:
        facts = {name: column[i] for name, column in self._chunk_facts.items()}
        notes = self.chunk_notes.get(i, _NO_AGENT_NOTES)
        agent_id = self.agents[facts["agent"]]
        own_id, multi_id = _usual_ids(whole is not None, id_, agent_id)
        if notes.id_ is not None:
            own_id = prefix + notes.id_
        if notes.multi_agent_episode_id is not None:
            multi_id = prefix + notes.multi_agent_episode_id
        if module_for is None:
            module_id = self.modules[facts["module"]]
            if whole is not None:
                whole.know_modules({agent_id: DEFAULT_MODULE_ID if module_id is None else module_id})
        else:
            module_id = None if whole is None else whole.module_for(agent_id)
        episode = SingleAgentEpisode.from_storage(
            ListStorage() if notes.is_empty else storage,
            id_=own_id,
            agent_id=agent_id,
            module_id=module_id,
            multi_agent_episode_id=multi_id,
            t_started=facts["t_started"],
            observation_space=storage.rollout.observation_space,
            action_space=storage.rollout.action_space,
        )
        episode.is_terminated, episode.is_truncated = facts["is_terminated"], facts["is_truncated"]
        episode.set_notes(notes)
        return episode


def _as_array(name: str, column: list[Any]) -> np.ndarray:
    return np.array(column, bool if name.startswith("is_") else np.int64)
