"""What a block of recorded episodes says: states, whose types say what files may hold.

Whatever its checksums are, no file can make a reader compute nonsense. Types and checks raise ValueError with what is
wrong; the reader adds the file and the block. A space may have any JSON data, so any other exception than ValueError
also means that the block is none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias

import numpy as np
from msgspec import Meta

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.action_units import ActionUnits
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisodeNotes
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisodeNotes
from marl_connectors.offline.info_columns import InfoGroup
from marl_connectors.state import ID, Bools, Column, Index, Ints, State, fields_of
from marl_connectors.trees import leaves
from marl_connectors.typing import EpisodeID, ModuleID

Fact: TypeAlias = Annotated[int, Meta(ge=0, lt=2**53)]
"""A number of steps, rows or agents' episodes, or the place of one of these."""
_SMALL: Final = 2**20
"""The number of numbers that a space may have, if the block is smaller than that."""


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

    def __post_init__(self) -> None:
        _check_lengths(self)


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

    def __post_init__(self) -> None:
        _check_lengths(self)


class RolloutFacts(State):
    """What is known of the rows of a rollout without reading them.

    Attributes:
        num_rows: Their number.
        names: The names of the columns.
        written: Those of them whose values connector pieces have written to the episodes.
        observation_space: The observation space as JSON; None if it is unknown.
        action_space: The action space.
        action_units: Whose actions they are.
    """

    num_rows: Index
    names: list[str]
    written: list[str]
    observation_space: str | None
    action_space: str | None
    action_units: ActionUnits

    def spaces(self) -> tuple[Any, Any]:
        """Returns the observation space and the action space, or None where unknown."""
        return _space(self.observation_space), _space(self.action_space)


class RolloutColumns(State):
    """The rows of a rollout of one lane.

    Attributes:
        columns: The columns that no piece has written.
        layers: The versions of each of the others, the oldest one first.
        level: In which of them each row is.
        given: Which rows have a value, where not all have one.
        infos: The info dicts.
    """

    columns: dict[str, Column]
    layers: dict[str, list[Column]]
    level: dict[str, Ints]
    given: dict[str, Bools]
    infos: list[InfoGroup]

    def check(self, facts: RolloutFacts) -> None:
        """Checks that these are the rows that were announced.

        Raises:
            ValueError: For the first thing that is never written.
        """
        rows, columns, layers = facts.num_rows, self.columns, self.layers
        _need(sorted([*columns, *layers]) == sorted(facts.names), "its columns are not those that it names")
        for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.T):
            _need(name in facts.names, f"it has no column {name!r}")
        _need(sorted(self.level) == sorted(layers) == sorted(facts.written), "its layers are not those that it names")
        _need(set(self.given) <= set(facts.names), "it says which rows have a column that it has not")
        every: list[tuple[str, Any]] = [*columns.items(), *self.level.items(), *self.given.items()]
        every += [(name, version) for name, versions in layers.items() for version in versions]
        for name, column in every:
            _need(all(len(leaf) == rows for leaf in leaves(column)), f"{name!r} is not one item a row")
        for name, level in self.level.items():
            _need(level.dtype == np.int8 and bool(layers[name]), f"{name!r} does not say which layers its rows are in")
            _need(not rows or 0 <= level.min() <= level.max() < len(layers[name]), f"{name!r} lacks a layer")
        for name, kind in ((Columns.REWARDS, "f"), (Columns.T, "i")):
            column = columns.get(name)
            is_right = isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype.kind == kind
            _need(is_right, f"{name!r} is not one number a row, or not of its type")
        for name, space in zip((Columns.OBS, Columns.ACTIONS), facts.spaces(), strict=True):
            if space is not None:
                why = spaces.unlike(space, layers[name][0] if name in layers else columns[name])
                _need(not why, f"the items of {name!r} {why}, but their space is {spaces.describe(space)}")
        for group in self.infos:
            _need(bool(((group.rows >= 0) & (group.rows < rows)).all()), "an info is of no row")

    def check_times(self, first: np.ndarray, stop: np.ndarray) -> None:
        """Checks that the env steps of each agent's episode go up.

        Args:
            first: ``[N]``, the first row of each agent's episode.
            stop: ``[N]``, its last row.
        """
        times: Any = self.columns[Columns.T]
        falls = np.concatenate([[0], np.cumsum(np.diff(times.astype(np.int64)) <= 0), [0]])
        if len(falls) > 2:
            _need(bool((falls[stop] == falls[first]).all()), "its env steps do not go up")


class StoredEpisodeNotes(MultiAgentEpisodeNotes):
    """What is unusual about an episode.

    Attributes:
        num_past: The number of its first agents' episodes that are past lives.
    """

    num_past: Index = 0


class StoredAgentNotes(SingleAgentEpisodeNotes):
    """What is unusual about an agent's episode.

    Attributes:
        id_: Its id; None for the usual one.
        multi_agent_episode_id: The id of the episode that it belongs to; None for the usual one.
    """

    id_: EpisodeID | None = None
    multi_agent_episode_id: EpisodeID | None = None


class StoredColumns(State):
    """What is read of a block when its episodes are made.

    Attributes:
        agents: The agents.
        rollouts: The rows of each rollout.
        episode_notes: Numbers of episodes, and what is unusual about these.
        chunk_notes: Numbers of agents' episodes, and what is unusual about these.
    """

    agents: list[ID | None]
    rollouts: list[RolloutColumns]
    episode_notes: list[tuple[Index, StoredEpisodeNotes]]
    chunk_notes: list[tuple[Index, StoredAgentNotes]]

    def __post_init__(self) -> None:
        _need(len(set(self.agents)) == len(self.agents), "an agent is there twice")


class StoredBlock(State):
    """What is read of a block at first: its table.

    Attributes:
        episodes: What is known of each episode.
        chunks: What is known of each agent's episode.
        modules: The modules.
        rollouts: What is known of each rollout.
        columns: The ``StoredColumns``, as ``encode_state`` returns them.
        sample: The number of the sample that the episodes are; None if it is unknown.
        pieces: The names of the env-to-module pieces behind which they were sampled; None if they are unknown.
    """

    episodes: EpisodeFacts
    chunks: AgentEpisodeFacts
    modules: list[ModuleID | None]
    rollouts: list[RolloutFacts]
    columns: dict[str, Any]
    sample: Index | None = None
    pieces: list[str] | None = None

    def check(self, table: Mapping[str, np.ndarray], chunks: Mapping[str, np.ndarray], num_bytes: int) -> None:
        """Checks that the facts belong together, and that no space is larger than what is stored.

        Args:
            table: The facts of episodes as arrays.
            chunks: The facts of agents' episodes as arrays.
            num_bytes: The size of the arrays of the block.

        Raises:
            ValueError: For the first thing that is never written.
        """
        rollouts, ends = self.rollouts, np.diff(table["end"], prepend=0)
        _need(bool((ends >= 0).all()), "'end' decreases")
        _need(len(chunks["agent"]) == ends.sum(), "'end' is not the number of agents' episodes")
        _need(bool((table["env_t"] >= table["env_t_started"]).all()), "an episode ends before it begins")
        _need(bool((ends[~table["is_multi_agent"]] == 1).all()), "an episode of one agent has several")
        for name, known in (("module", self.modules), ("rollout", rollouts)):
            _need(bool((chunks[name] < len(known)).all()), f"a number of {name!r} is unknown")
        num_rows = np.array([own.num_rows for own in rollouts], np.int64)
        first, start, stop = chunks["first_row"], chunks["start_row"], chunks["stop_row"]
        are_inside = (first <= start) & (start <= stop) & (stop < num_rows[chunks["rollout"]])
        _need(bool(are_inside.all()), "rows are not those of a rollout")
        owned = np.bincount(chunks["rollout"], stop - first + 1, len(rollouts))
        _need(bool((owned <= num_rows).all()), "rows are those of several chunks")
        for own in rollouts:
            for text in (own.observation_space, own.action_space):
                if text is not None:
                    check_space(json.loads(text), num_bytes)
            own.spaces()  # raises if there are no such spaces


def check_space(data: Any, num_bytes: int) -> None:
    """Checks the JSON data of a space, before it is made, so that none is larger than what is stored.

    Args:
        data: The JSON data.
        num_bytes: The size of the arrays of the block.
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


def check_notes(notes: StoredEpisodeNotes, num_bytes: int) -> None:
    """Checks the spaces of an episode as ``check_space`` does."""
    for data in (notes.observation_space, notes.action_space):
        if data is not None:
            for own in [part for _, part in data["agents"]] if "agents" in data else [data]:
                check_space(own, num_bytes)


@lru_cache(maxsize=256)
def _space(text: str | None) -> Any:
    return None if text is None else spaces.from_json(json.loads(text))


def _check_lengths(facts: State) -> None:
    lengths = {name: len(column) for name, column in fields_of(facts).items()}
    _need(len(set(lengths.values())) == 1, f"Expected columns of one length, got {lengths}")


def _need(is_fine: bool, otherwise: str) -> None:
    if not is_fine:
        raise ValueError(otherwise)
