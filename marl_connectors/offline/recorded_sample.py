"""Recorded samples: the episodes that were written together, as a table and columns.

The columns are those of rollouts, with all layers that pieces have written, and the table says which rows are which
agent's. So nothing is converted, and nothing can differ. What is rare is a note.

Whatever the checksums of a file are, it cannot make a reader compute nonsense. The types of the states say what files
may hold, and checks raise ValueError with what is wrong; the reader adds the file and the sample. A space may have any
JSON data, so any other exception than ValueError also means that a file is none.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from msgspec import Meta

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ActionUnits
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import (
    MultiAgentEpisode,
    MultiAgentEpisodeNotes,
    agent_episode_id,
)
from marl_connectors.episodes.packing import chunks_of, packed
from marl_connectors.episodes.rollout import Rollout, spans
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode, SingleAgentEpisodeNotes
from marl_connectors.episodes.storage import INFOS, ListStorage, T
from marl_connectors.errors import CheckpointError, EpisodeError
from marl_connectors.offline.recorded_infos import InfoGroup, pack_infos, storable_part, unpack_infos, unstorable
from marl_connectors.state import (
    ID,
    Bools,
    Column,
    Index,
    Ints,
    State,
    as_state,
    decode_state,
    encode_state,
    fields_of,
)
from marl_connectors.trees import leaves
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, EpisodeID, ModuleID

NoteDropped: TypeAlias = Callable[[AgentID, Any, str], None]
ModuleFor: TypeAlias = Callable[[AgentID, Any], ModuleID]
Fact: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
"""A number of steps, rows or agents' episodes, or the place of one of these."""
_SMALL: Final = 2**20
"""The number of numbers that a space may have, if the sample is smaller than that."""


# What a file holds.


class EpisodeFacts(State):
    """What is known of each episode, in lists.

    Attributes:
        id: Its id.
        is_multi_agent: Whether it is a MultiAgentEpisode.
        env_t_started: The env step at which it begins.
        env_t: That at which it ends.
        is_terminated: Whether it was terminated.
        is_truncated: Whether it was truncated.
        end: The number of agents' episodes up to its last one.
    """

    id: list[EpisodeID]
    is_multi_agent: list[bool]
    env_t_started: list[Fact]
    env_t: list[Fact]
    is_terminated: list[bool]
    is_truncated: list[bool]
    end: list[Fact]


class AgentEpisodeFacts(State):
    """What is known of each agent's episode, in lists.

    Attributes:
        agent: The number of its agent.
        module: The number of its module.
        rollout: The number of the rollout that has its rows.
        first_row: The first row of its lookback there.
        start_row: The row of its first step.
        stop_row: The row of its last observation.
        t_started: The number of steps that its agent has taken before.
        is_terminated: Whether it was terminated.
        is_truncated: Whether it was truncated.
    """

    agent: list[Fact]
    module: list[Fact]
    rollout: list[Fact]
    first_row: list[Fact]
    start_row: list[Fact]
    stop_row: list[Fact]
    t_started: list[Fact]
    is_terminated: list[bool]
    is_truncated: list[bool]


class RecordedEpisodeNotes(MultiAgentEpisodeNotes):
    """What is unusual about an episode.

    Attributes:
        num_past: The number of its first agents' episodes that are past lives.
    """

    num_past: Index = 0


class RecordedAgentNotes(SingleAgentEpisodeNotes):
    """What is unusual about an agent's episode.

    Attributes:
        id_: Its id; None for the usual one.
        multi_agent_episode_id: The id of the episode that it belongs to; None for the usual one.
    """

    id_: EpisodeID | None = None
    multi_agent_episode_id: EpisodeID | None = None


class RecordedRollout(State):
    """The rows of a rollout of one lane.

    Attributes:
        num_rows: Their number.
        observation_space: The observation space as JSON; None if it is unknown.
        action_space: The action space.
        action_units: Whose actions they are.
        layers: The versions of each column, the oldest one first; a single one if no piece has written to it.
        level: In which of them each row is, of the columns to which a piece has written.
        given: Which rows have a value, where not all have one.
        infos: The info dicts.
    """

    num_rows: Index
    observation_space: str | None
    action_space: str | None
    action_units: ActionUnits
    layers: dict[str, list[Column]]
    level: dict[str, Ints]
    given: dict[str, Bools]
    infos: list[InfoGroup]

    def __post_init__(self) -> None:
        layers, level, given = self.layers, self.level, self.given
        for name, kind in ((Columns.OBS, ""), (Columns.ACTIONS, ""), (Columns.REWARDS, "f"), (Columns.T, "i")):
            _need(name in layers, f"it has no column {name!r}")
            are_right = (
                isinstance(own, np.ndarray) and own.ndim == 1 and own.dtype.kind == kind for own in layers[name]
            )
            _need(not kind or all(are_right), f"{name!r} is not one number a row, or not of its type")
        _need(level.keys() | given.keys() <= layers.keys(), "it says in which rows columns are that it has not")
        _need(all(own and (len(own) == 1 or name in level) for name, own in layers.items()), "a column lacks a layer")
        _need(Columns.T not in level, f"{Columns.T!r} has layers")
        every: list[tuple[str, Any]] = [*level.items(), *given.items()]
        every += [(name, version) for name, versions in layers.items() for version in versions]
        for name, column in every:
            _need(all(len(leaf) == self.num_rows for leaf in leaves(column)), f"{name!r} is not one item a row")

    def spaces(self) -> tuple[Any, Any]:
        """Returns the observation space and the action space, or None where unknown."""
        return _space(self.observation_space), _space(self.action_space)

    def rollout(self) -> Rollout:
        """Returns the rollout, whose arrays may be read-only."""
        own = {name: getattr(self, name) for name in ("num_rows", "action_units", "layers", "level", "given")}
        rollout = Rollout.of_arrays(self.spaces(), **own)
        rollout.infos = unpack_infos(self.infos)
        return rollout

    def check(self, first: np.ndarray, stop: np.ndarray) -> None:
        """Checks the values of the columns.

        Args:
            first: ``[N]``, the first row of each agent's episode.
            stop: ``[N]``, its last row.

        Raises:
            ValueError: For the first thing that is never written.
        """
        for name, level in self.level.items():
            are_there = level.min(initial=0) >= 0 and level.max(initial=0) < len(self.layers[name])
            _need(level.dtype == np.int8 and are_there, f"{name!r} lacks a layer")
        for name, space in zip((Columns.OBS, Columns.ACTIONS), self.spaces(), strict=True):
            if space is not None and (why := spaces.unlike(space, self.layers[name][0])):
                raise ValueError(f"the items of {name!r} {why}, but their space is {spaces.describe(space)}")
        for group in self.infos:
            _need(bool(((group.rows >= 0) & (group.rows < self.num_rows)).all()), "an info is of no row")
        times: Any = self.layers[Columns.T][0]
        falls = np.concatenate([[0], np.cumsum(np.diff(times.astype(np.int64)) <= 0), [0]])
        if len(falls) > 2:
            _need(bool((falls[stop] == falls[first]).all()), "its env steps do not go up")


class SampleState(State):
    """What a file holds of a sample.

    Attributes:
        episodes: What is known of each episode.
        agent_episodes: What is known of each agent's episode.
        modules: The modules.
        pieces: The names of the env-to-module pieces behind which they were sampled; None if they are unknown.
        agents: The agents.
        rollouts: The rows of each rollout.
        episode_notes: Numbers of episodes, and what is unusual about these.
        agent_notes: Numbers of agents' episodes, and what is unusual about these.
    """

    episodes: EpisodeFacts
    agent_episodes: AgentEpisodeFacts
    modules: list[ModuleID | None]
    pieces: list[str] | None
    agents: list[ID | None]
    rollouts: list[RecordedRollout]
    episode_notes: list[tuple[Index, RecordedEpisodeNotes]]
    agent_notes: list[tuple[Index, RecordedAgentNotes]]


_PLAIN: Final = ("episodes", "agent_episodes", "modules", "pieces")
"""The fields of a sample without arrays or ids of any type, which JSON can hold as they are."""


# Writing.


def recorded(
    episodes: Sequence[Any], note_dropped: NoteDropped | None = None, pieces: Sequence[str] | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns episodes as JSON data and arrays, for ``RecordedSample``. The episodes stay as they are.

    Args:
        episodes: SingleAgentEpisodes or MultiAgentEpisodes.
        note_dropped: Called with the agent, the key and the type of each value of an info that no file can hold, and
            that is left out; None to refuse such infos.
        pieces: As in ``SampleState``.

    Raises:
        EpisodeError: If observations, actions, module outputs, infos, ids or ``custom_data`` hold anything but
            numbers, arrays of numbers and plain data.
    """
    by_episode = [list(chunks_of([episode])) for episode in episodes]
    chunks = [chunk for own in by_episode for chunk in own]
    _check_infos(chunks, note_dropped)
    rollouts, places = _rollouts_of(packed(chunks))
    agents: dict[AgentID, int] = {}
    modules: dict[ModuleID | None, int] = {}
    facts: list[tuple[Any, ...]] = []
    agent_facts: list[tuple[Any, ...]] = []
    notes: list[Any] = []
    agent_notes: list[Any] = []
    for number, (episode, own) in enumerate(zip(episodes, by_episode, strict=True)):
        is_multi = isinstance(episode, MultiAgentEpisode)
        for chunk in own:
            place = len(agent_facts)
            whose = agents.setdefault(chunk.agent_id, len(agents)), modules.setdefault(chunk.module_id, len(modules))
            agent_facts.append((*whose, *places[place], chunk.t_started, chunk.is_terminated, chunk.is_truncated))
            if not isinstance(chunk, AgentChunk) and (unusual := _agent_notes(chunk, is_multi, episode.id_)):
                agent_notes.append((place, unusual))
        span = (episode.env_t_started, episode.env_t) if is_multi else (episode.t_started, episode.t)
        ends = episode.is_terminated, episode.is_truncated
        facts.append((episode.id_, is_multi, *span, *ends, len(agent_facts)))
        if is_multi:
            unusual = episode.get_notes({chunk.agent_id: chunk.module_id for chunk in own})
            if episode.past_agent_episodes:
                unusual["num_past"] = len(episode.past_agent_episodes)
            if unusual:
                notes.append((number, unusual))
    state = {
        "episodes": _in_lists(EpisodeFacts, facts),
        "agent_episodes": _in_lists(AgentEpisodeFacts, agent_facts),
        "modules": list(modules),
        "pieces": None if pieces is None else list(pieces),
        "agents": list(agents),
        "rollouts": list(map(_recorded_rollout, rollouts)),
        "episode_notes": list(map(list, notes)),
        "agent_notes": list(map(list, agent_notes)),
    }
    arrays: dict[str, np.ndarray] = {}
    try:
        encoded = {k: v if k in _PLAIN else encode_state(v, (k,), arrays) for k, v in state.items()}
    except CheckpointError as error:
        raise _not_storable(error, [episode.id_ for episode in episodes]) from error
    return encoded, arrays


def _in_lists(kind: type[State], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    """Returns the fields of a state, of which each row has one item."""
    return {name: [row[i] for row in rows] for i, name in enumerate(kind.__struct_fields__)}


def _agent_notes(chunk: SingleAgentEpisode, is_multi_agent: bool, id_: EpisodeID) -> dict[str, Any]:
    notes = chunk.get_notes()
    usual_id, usual_multi_id = _usual_ids(is_multi_agent, id_, chunk.agent_id)
    if chunk.id_ != usual_id:
        notes["id_"] = chunk.id_
    if chunk.multi_agent_episode_id != usual_multi_id:
        notes["multi_agent_episode_id"] = chunk.multi_agent_episode_id
    return notes


def _usual_ids(is_multi_agent: bool, id_: EpisodeID, agent_id: AgentID) -> tuple[EpisodeID, EpisodeID | None]:
    """Returns the id that an agent's episode usually has, and its ``multi_agent_episode_id``."""
    return (agent_episode_id(id_, agent_id, 0), id_) if is_multi_agent else (id_, None)


def _not_storable(error: CheckpointError, ids: Sequence[EpisodeID]) -> EpisodeError:
    found = re.search(r"state\[(.*)\] is an? (.*)\. Convert", str(error))
    what = f"{found[1]} is a {found[2]}" if found else str(error)
    return EpisodeError(
        f"EpisodeWriter: in the episodes from {ids[0]!r} to {ids[-1]!r}, {what}, which no file can hold. Agent ids and "
        f"custom_data may hold numbers, strings, arrays, and dicts, lists and tuples of them; observations, actions "
        f"and module outputs must be numbers."
    )


def _check_infos(chunks: Sequence[Any], note_dropped: NoteDropped | None) -> None:
    """Looks for values of infos that no file can hold, by their types only.

    Raises:
        EpisodeError: If there is one, unless ``note_dropped`` is given.
    """
    for chunk in chunks:
        storage: Any
        if isinstance(chunk, AgentChunk):
            rows = {"first_row": chunk.first_row, "start_row": chunk.start_row, "stop_row": chunk.last_row}
            storage = LaneStorage(chunk.rollout, chunk.lane, **rows)
        else:
            storage = chunk.storage
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


def _rollouts_of(chunks: Sequence[Any]) -> tuple[list[Rollout], list[tuple[int, ...]]]:
    """Returns rollouts of one lane with the rows of agents' episodes, and where the rows of each are.

    Such a place is the number of the rollout, and ``first_row``, ``start_row`` and ``stop_row`` in it.
    """
    storages: list[Any] = [chunk if isinstance(chunk, AgentChunk) else chunk.storage for chunk in chunks]
    by_rollout: dict[int, list[int]] = {}
    for i, storage in enumerate(storages):
        by_rollout.setdefault(id(storage.rollout), []).append(i)
    rollouts: list[Rollout] = []
    places: list[tuple[int, ...]] = [()] * len(chunks)
    for number, members in enumerate(by_rollout.values()):
        rollout = storages[members[0]].rollout
        table = np.array([(s.lane, s.first_row, s.start_row, s.last_row) for s in map(storages.__getitem__, members)])
        lane, first, start, last = table.T
        rollouts.append(rollout.rows(spans(first * rollout.num_lanes + lane, last - first + 1, rollout.num_lanes)))
        begin = np.cumsum(last - first + 1) - (last - first + 1)
        rows = np.stack([begin, begin + start - first, begin + last - first], axis=1).tolist()
        for i, own in zip(members, rows, strict=True):
            places[i] = (number, *own)
    return rollouts, places


def _recorded_rollout(rollout: Rollout) -> dict[str, Any]:
    """Returns the fields of a ``RecordedRollout``."""
    infos = {row: info for row, given in rollout.infos.items() if (info := storable_part(given))}
    both = rollout.observation_space, rollout.action_space
    seen, taken = (None if space is None else json.dumps(spaces.to_json(space)) for space in both)
    return {
        **{"num_rows": rollout.num_rows, "observation_space": seen, "action_space": taken},
        **{"action_units": rollout.action_units, **rollout.arrays(), "infos": pack_infos(infos)},
    }


# Reading.


class RecordedSample:
    """Episodes that were written together. They are made when they are asked for, with copies of their rows.

    Attributes:
        state: What the file holds.
        table: The facts of episodes as arrays, without their ids.
        agent_table: The facts of agents' episodes as arrays.
        ids: The id of each episode.
        env_steps: ``[N]`` the number of env steps of each episode.
        agent_steps: ``[N]`` the number of agent steps of each episode.
        episode_notes: Number of an episode to what is unusual about it.
        agent_notes: Number of an agent's episode to what is unusual about it.
    """

    def __init__(self, document: Mapping[str, Any], arrays: Mapping[str, np.ndarray], num_bytes: int = 2**40):
        """Reads the table, and no values of columns.

        Args:
            document: The JSON data that ``recorded`` returned.
            arrays: The arrays that ``recorded`` returned, which may be read-only.
            num_bytes: Their size, beyond which no space is made.

        Raises:
            Exception: Any, if ``recorded`` cannot have returned the data.
        """
        left = dict(arrays)
        fields = {name: own if name in _PLAIN else decode_state(own, left) for name, own in document.items()}
        self.state = as_state(SampleState, fields)
        if left:
            raise ValueError(f"it contains the array {next(iter(left))!r}, which nothing mentions")
        facts = fields_of(self.state.episodes)
        self.ids: list[EpisodeID] = facts.pop("id")
        self.table = _as_arrays(facts, len(self.ids))
        self._agent_facts = fields_of(self.state.agent_episodes)
        self.agent_table = _as_arrays(self._agent_facts, len(self._agent_facts["agent"]))
        self.episode_notes = dict(self.state.episode_notes)
        self.agent_notes = dict(self.state.agent_notes)
        self._check_table(num_bytes)
        self._begins = np.concatenate([[0], self.table["end"]]).astype(np.int64)
        self.env_steps = self.table["env_t"] - self.table["env_t_started"]
        steps = np.concatenate([[0], np.cumsum(self.agent_table["stop_row"] - self.agent_table["start_row"])])
        self.agent_steps = np.diff(steps[self._begins])

    def __len__(self) -> int:
        return len(self.ids)

    def _check_table(self, num_bytes: int) -> None:
        """Checks that the facts belong together, and that no space is larger than what is stored.

        Raises:
            ValueError: For the first thing that is never written.
        """
        state, table, own = self.state, self.table, self.agent_table
        ends = np.diff(table["end"], prepend=0)
        _need(bool((ends >= 0).all()), "'end' decreases")
        _need(len(own["agent"]) == ends.sum(), "'end' is not the number of agents' episodes")
        _need(bool((table["env_t"] >= table["env_t_started"]).all()), "an episode ends before it begins")
        _need(bool((ends[~table["is_multi_agent"]] == 1).all()), "an episode of one agent has several")
        for name, known in (("agent", state.agents), ("module", state.modules), ("rollout", state.rollouts)):
            _need(bool((own[name] < len(known)).all()), f"a number of {name!r} is unknown")
        _need(len(set(state.agents)) == len(state.agents), "an agent is there twice")
        num_rows = np.array([rollout.num_rows for rollout in state.rollouts], np.int64)
        first, start, stop = own["first_row"], own["start_row"], own["stop_row"]
        are_inside = (first <= start) & (start <= stop) & (stop < num_rows[own["rollout"]])
        _need(bool(are_inside.all()), "rows are not those of a rollout")
        owned = np.bincount(own["rollout"], stop - first + 1, len(state.rollouts))
        _need(bool((owned <= num_rows).all()), "rows are those of several agents' episodes")
        _need(max(self.episode_notes, default=-1) < len(self), "notes are of no episode")
        _need(max(self.agent_notes, default=-1) < len(own["agent"]), "notes are of no agent's episode")
        for notes in self.episode_notes.values():
            for data in (notes.observation_space, notes.action_space):
                if data is not None:
                    for space in [part for _, part in data["agents"]] if "agents" in data else [data]:
                        check_space(space, num_bytes)
        for rollout in state.rollouts:
            for text in (rollout.observation_space, rollout.action_space):
                if text is not None:
                    check_space(json.loads(text), num_bytes)
            rollout.spaces()  # raises if there are no such spaces

    def check(self) -> None:
        """Checks the values of the columns and the notes.

        Raises:
            Exception: Any, if ``recorded`` cannot have returned them.
        """
        for i, own in enumerate(self.state.rollouts):
            members = self.agent_table["rollout"] == i
            own.check(self.agent_table["first_row"][members], self.agent_table["stop_row"][members])
        noted = [*self.episode_notes, *map(self.episode_of, self.agent_notes)]
        for episode in self.episodes(list(dict.fromkeys(noted))):
            episode.get_state()

    @cached_property
    def rollouts(self) -> list[Rollout]:
        """The columns, which may be read-only."""
        return [own.rollout() for own in self.state.rollouts]

    def episode_of(self, number: int) -> int:
        """Returns the number of the episode that an agent's episode belongs to."""
        return int(np.searchsorted(self.table["end"], number, side="right"))

    def unclaimed(self, number: int) -> dict[AgentID, float]:
        """Returns the rewards of agents that have no episode in an episode."""
        return self.episode_notes.get(number, _NO_NOTES).unclaimed

    def agent_numbers(self, number: int) -> range:
        """Returns the numbers of the agents' episodes of an episode."""
        return range(int(self._begins[number]), int(self._begins[number + 1]))

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
        members = [i for number in numbers for i in self.agent_numbers(number)]
        storages = iter(self._storages(members, without))
        return [self._episode(number, storages, module_for, prefix) for number in numbers]

    def _storages(self, members: Sequence[int], without: Collection[str]) -> list[LaneStorage]:
        """Returns views of copies of the rows of agents' episodes."""
        of = {name: self.agent_table[name][list(members)] for name in ("rollout", "first_row", "start_row", "stop_row")}
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
            (i,) = self.agent_numbers(number)
            return self._agent_episode(i, next(storages), id_, None, module_for, prefix)
        episode = MultiAgentEpisode.from_agent_episodes(
            id_,
            {},
            env_t_started=facts["env_t_started"],
            env_t=facts["env_t"],
            agent_to_module_mapping_fn=module_for,
        )
        notes = self.episode_notes.get(number, _NO_NOTES)
        episode.set_notes(notes)
        for place, i in enumerate(self.agent_numbers(number)):
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
        facts = {name: column[i] for name, column in self._agent_facts.items()}
        notes = self.agent_notes.get(i, _NO_AGENT_NOTES)
        agent_id = self.state.agents[facts["agent"]]
        own_id, multi_id = _usual_ids(whole is not None, id_, agent_id)
        if notes.id_ is not None:
            own_id = prefix + notes.id_
        if notes.multi_agent_episode_id is not None:
            multi_id = prefix + notes.multi_agent_episode_id
        if module_for is None:
            module_id = self.state.modules[facts["module"]]
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


_NO_NOTES: Final = RecordedEpisodeNotes()
_NO_AGENT_NOTES: Final = RecordedAgentNotes()


def check_space(data: Any, num_bytes: int) -> None:
    """Checks the JSON data of a space, before it is made, so that none is larger than what is stored.

    Args:
        data: The JSON data.
        num_bytes: The size of the arrays of the sample.
    """
    kind = data["type"]
    if kind in ("Dict", "Tuple"):
        for part in data["spaces"]:
            check_space(part[1] if kind == "Dict" else part, num_bytes)
    elif kind in ("Box", "MultiBinary"):
        shape = data["shape"] if kind == "Box" else data["n"]
        sizes = shape if isinstance(shape, list) else [shape]
        is_shape = all(type(size) is int and size >= 0 for size in sizes)
        _need(is_shape and math.prod(sizes) <= max(num_bytes, _SMALL), f"a space has the shape {shape!r}")


@lru_cache(maxsize=256)
def _space(text: str | None) -> Any:
    return None if text is None else spaces.from_json(json.loads(text))


def _as_arrays(facts: Mapping[str, list[Any]], length: int) -> dict[str, np.ndarray]:
    """Returns lists of facts as arrays.

    Raises:
        ValueError: If they are not of one length.
    """
    _need(all(len(column) == length for column in facts.values()), "its facts are not of one length")
    return {name: np.array(column, bool if name.startswith("is_") else np.int64) for name, column in facts.items()}


def _need(is_fine: bool, otherwise: str) -> None:
    if not is_fine:
        raise ValueError(otherwise)
