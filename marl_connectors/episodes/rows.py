"""A selection of agent-steps, which a connector piece on columns reads and writes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.agent_views import AgentChunk
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.episodes.rollout import Positions, Rollout, take
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError, EpisodeError, did_you_mean
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID, ModuleID, Tree


class RowPart(NamedTuple):
    """Rows of one rollout.

    Attributes:
        rollout: The rollout that holds them.
        positions: Flat positions of the ``B`` rows: a slice or ``[B]`` int64.
        first: ``[B]`` int64, position of the oldest row of the same agent episode that is kept (lookback included).
        last: ``[B]`` int64, position of the newest row of the same agent episode.
    """

    rollout: Rollout
    positions: Positions
    first: np.ndarray
    last: np.ndarray


class Agents(NamedTuple):
    """The agents that some rows belong to.

    Attributes:
        ids: The agents that have rows, each once; (None,) in single-agent use.
        index: ``[B]`` the index in ``ids`` of each row's agent.
    """

    ids: tuple[AgentID | None, ...]
    index: np.ndarray


class Rows:
    """Agent-steps in the order of their items in a batch: by module, then agent episode, then time.

    Attributes:
        parts: The same rows, by rollout.
        module_ids: The modules that have rows here, in order.
        splits: ``len(module_ids) + 1`` bounds; module ``i`` has rows ``splits[i]:splits[i + 1]``.
        counts: The number of rows of each agent episode.
        acted: ``[B]`` bool, False for an episode's last observation, or None where all rows are to be acted on.
        rows_per_module: The number of rows of each module, or None if they differ.
        sequence_lengths: The length to which each module's sequences of a replay buffer are padded. None for rows of
            episodes, which are cut into sequences of ``max_seq_len``.
        counted: ``[B]`` bool, False for rows of a replay buffer's sequences that are not part of the loss; None if all
            rows are.
    """

    __slots__ = (
        "__weakref__",
        "_agents",
        "_chunks",
        "_episodes",
        "_kept_for",
        "_last_steps",
        "_length",
        "acted",
        "counted",
        "counts",
        "module_ids",
        "parts",
        "rows_per_module",
        "sequence_lengths",
        "splits",
    )

    def __init__(
        self,
        parts: tuple[RowPart, ...],
        *,
        module_ids: tuple[ModuleID, ...],
        splits: tuple[int, ...],
        episodes: Sequence[SingleAgentEpisode | AgentChunk],
        counts: list[int],
        acted: np.ndarray | None = None,
        sequence_lengths: tuple[int, ...] | None = None,
        counted: np.ndarray | None = None,
    ):
        self.parts = parts
        self.module_ids = module_ids
        self.splits = splits
        self._chunks = episodes
        self._episodes: list[SingleAgentEpisode] | None = None
        self.counts = counts
        self.acted = acted
        self.sequence_lengths = sequence_lengths
        self.counted = counted
        self._length = splits[-1]
        self._last_steps: np.ndarray | None = None
        self._agents: Agents | None = None
        self._kept_for: dict[tuple[int, int], np.ndarray] = {}
        each = {end - begin for begin, end in itertools.pairwise(splits)}
        self.rows_per_module = each.pop() if len(each) == 1 else None

    def __len__(self) -> int:
        return self._length

    @property
    def episodes(self) -> list[SingleAgentEpisode]:
        """The agent episodes that have rows here, in order. They are made when somebody asks for them."""
        if self._episodes is None:
            self._episodes = [e.episode() if isinstance(e, AgentChunk) else e for e in self._chunks]
        return self._episodes

    @property
    def chunks(self) -> Sequence[SingleAgentEpisode | AgentChunk]:
        """The facts of ``episodes`` that a batch needs, in order, without making any episode.

        They are the episodes themselves where these have been made, as their flags may have changed since.
        """
        if self._episodes is not None:
            return self._episodes
        if any(type(own) is AgentChunk and own.whole.agent_views is None for own in self._chunks):
            return self.episodes
        return self._chunks

    @property
    def observation_space(self) -> Space | None:
        """The observation space of all agents that have rows here, as the environment defines it."""
        return self.parts[0].rollout.observation_space

    @property
    def action_space(self) -> Space:
        """The action space of all agents that have rows here."""
        return self.parts[0].rollout.action_space

    @property
    def agents(self) -> Agents:
        """The agents of the rows. A runner's rows stay the same object until an agent joins or leaves."""
        if self._agents is None:
            by_episode = [chunk.agent_id for chunk in self.chunks or self.episodes]
            place = {agent_id: i for i, agent_id in enumerate(dict.fromkeys(by_episode))}
            index = np.repeat(np.array([place[agent_id] for agent_id in by_episode], np.int64), self.counts)
            self._agents = Agents(tuple(place), index)
        return self._agents

    def of_agents(self, values: Any) -> Any:
        """Returns what belongs to the agent of each row, ``[B, ...]``, or ``[1, ...]`` if it is the same for all.

        Args:
            values: ``[number of agents, ...]``, in the order of ``agents.ids``.
        """
        return values if len(values) == 1 else values[self.agents.index]

    @property
    def agent_ids(self) -> np.ndarray:
        """``[B]`` objects: the agent of each row; None in single-agent use."""
        return self._by_episode([episode.agent_id for episode in self.episodes])

    @property
    def episode_ids(self) -> np.ndarray:
        """``[B]`` objects: the id of the (multi-agent) episode."""
        return self._by_episode([e.id_ if e.agent_id is None else e.multi_agent_episode_id for e in self.episodes])

    @property
    def t(self) -> np.ndarray:
        """``[B]`` the env step at which the row was observed."""
        return self.get(Columns.T)

    @property
    def terminateds(self) -> np.ndarray:
        """``[B]`` bool, True in the row of the last step of an episode that was terminated."""
        return self._ends(Columns.TERMINATEDS, "is_terminated")

    @property
    def truncateds(self) -> np.ndarray:
        """``[B]`` bool, True in the row of the last step of an episode that was truncated."""
        return self._ends(Columns.TRUNCATEDS, "is_truncated")

    def _ends(self, column: str, attribute: str) -> np.ndarray:
        if self.has(column):  # the rows of a replay buffer
            return self.get(column)
        ends = [getattr(episode, attribute) for episode in self.chunks or self.episodes]
        return np.repeat(np.array(ends, bool), self.counts) & self.last_steps()

    def _by_episode(self, items: list[Any]) -> np.ndarray:
        values = np.empty(len(items), object)
        values[:] = items
        return np.repeat(values, self.counts)

    def has(self, column: str) -> bool:
        """Whether the trajectories hold this column."""
        return all(part.rollout.holds(column, part.first, part.last) for part in self.parts)

    def columns(self) -> list[str]:
        """Returns the columns that the trajectories hold, without infos."""
        return [name for name in self.parts[0].rollout.columns if self.has(name)]

    def source(self, column: str) -> Tree:
        """Returns the items of a column as the environment returned them, without later changes by pieces."""
        given = [take(part.rollout.source(column), part.positions) for part in self.parts]
        return given[0] if len(given) == 1 else tree_map(lambda *leaves: np.concatenate(leaves), *given)

    def get(self, column: str, offset: int = 0, fill: float | None = None) -> Tree:
        """Returns the items of a column, ``[B, ...]``.

        Args:
            column: A column of the trajectories, such as ``Columns.OBS`` or ``Columns.REWARDS``; ``Columns.INFOS`` for
                a list of info dicts.
            offset: 0 for the item of the row itself, -1 for that of the same agent's step before, 1 for the step after.
            fill: The value before the beginning of the agent's episode, and after its newest row.

        Raises:
            EpisodeError: If there is no such column, if a row is out of reach and there is no ``fill``, or if the
                episode had the row, but did not keep it.
        """
        if column == Columns.INFOS:
            return self._infos(offset)
        if fill is not None and offset < 0:
            self._check_kept(column, offset)
        elif fill is None and offset:
            self._check_reached(column, offset)
        try:
            values = [_get(part, column, offset, fill) for part in self.parts]
        except KeyError:
            self._check_known(column)
            raise
        return values[0] if len(values) == 1 else tree_map(lambda *leaves: np.concatenate(leaves), *values)

    def _infos(self, offset: int) -> InfoColumn:
        found = InfoColumn()
        for part in self.parts:
            infos, (wanted, reached) = part.rollout.infos, _wanted(part, offset)
            for position, there in zip(wanted.tolist(), reached.tolist(), strict=True):
                found.append(infos.get(position, {}) if there else {})
        return found

    def _check_known(self, column: str) -> None:
        """Raises an error for a column that the trajectories do not have."""
        known = [(*part.rollout.columns, Columns.INFOS) for part in self.parts]
        if not all(column in names for names in known):
            raise unknown_column(column, dict.fromkeys(name for names in known for name in names))

    def _check_reached(self, column: str, offset: int) -> None:
        """Raises an error for rows that do not exist, where no ``fill`` replaces them."""
        missing = np.flatnonzero(~self.reached(offset))
        if not len(missing):
            return
        self._check_known(column)
        self._check_kept(column, offset)
        episodes, owners = self._owners(missing[:1])
        first = f"; the first is of {whose(episodes[owners[0]])} at env step {self._t(missing[0])}" if episodes else ""
        raise EpisodeError(
            f"Rows: {len(missing)} of {len(self)} rows have no {column!r} at offset {offset}{first}. The agent's "
            f"episode does not reach that far. Pass fill=, the value for missing rows."
        )

    def _check_kept(self, column: str, offset: int) -> None:
        """Raises an error for rows of an episode that it did not keep, which lie after its beginning."""
        if offset >= 0:
            return
        missing = np.flatnonzero(~self.reached(offset))
        episodes, owners = self._owners(missing)
        for i, row in zip(*(found.tolist() for found in np.unique(owners, return_index=True)), strict=True):
            episode = episodes[i]
            kept = episode.storage.lookback
            if episode.t_started > kept:
                raise EpisodeError(
                    f"Rows: {column!r} at offset {offset} is wanted at env step {self._t(missing[row])}, but of the "
                    f"{episode.t_started} steps of {whose(episode)} before this chunk only {kept} were kept. Set "
                    f".env_runners(episode_lookback_horizon={-offset}), or lookback = {-offset} in the piece."
                )

    def _owners(self, rows: np.ndarray) -> tuple[list[SingleAgentEpisode], np.ndarray]:
        """Returns agent episodes and the index of each row's episode among them; both are empty if it is unknown."""
        if not len(rows) or not self.counts:
            return [], np.zeros(0, np.int64)
        return self.episodes, np.searchsorted(np.cumsum(self.counts), rows, side="right")

    def _t(self, row: Any) -> int:
        """Returns the env step at which a row was observed."""
        return int(self.get(Columns.T)[row])

    def last_steps(self) -> np.ndarray:
        """Returns ``[B]`` bool, True in the row of each agent episode's last step."""
        if self._last_steps is None:
            counts = np.array(self.counts, np.int64)
            has_last = (counts > 1) & (self.acted is not None)
            self._last_steps = np.zeros(len(self), bool)
            self._last_steps[np.cumsum(counts) - 1 - has_last] = True
        return self._last_steps

    def own_steps(self) -> np.ndarray:
        """Returns ``[B]`` int64, the number of steps that the agent had taken in its episode before each row.

        Steps of earlier chunks of the episode count too. Rows that ``at`` returned have no such numbers.
        """
        kept_before = [
            chunk.start_row - chunk.first_row if isinstance(chunk, AgentChunk) else chunk.storage.lookback
            for chunk in self.chunks
        ]
        before = [chunk.t_started - kept for chunk, kept in zip(self.chunks, kept_before, strict=True)]
        kept = [(_positions(part) - part.first) // part.rollout.num_lanes for part in self.parts]
        return np.repeat(np.array(before, np.int64), self.counts) + np.concatenate(kept)

    def reach(self, column: str, offset: int) -> tuple[Tree, np.ndarray]:
        """Returns copies of the items at an offset, ``[B, ...]``, and ``[B]`` bool, whether they have a meaning.

        An item has none where the agent's episode (with its lookback) has no such row.
        """
        found = [_reach(part, column, offset) for part in self.parts]
        if len(found) == 1:
            return found[0]
        values = tree_map(lambda *leaves: np.concatenate(leaves), *(values for values, _ in found))
        return values, np.concatenate([reached for _, reached in found])

    def recent(
        self, column: str, n: int, *, newest: int, who: str, each: Callable[[Tree], np.ndarray] | None = None
    ) -> Tree:
        """Returns the ``n`` newest items of a column, ``[B, n, ...]``, oldest first; zeros before the beginning.

        Args:
            column: A column of the trajectories.
            n: The number of items.
            newest: The offset of the last item: 0 for the row's own (for observations), -1 for the one before (for
                actions and rewards).
            who: The piece, for messages.
            each: A function of ``[N, ...]`` items whose results are returned in their place.

        Raises:
            ConnectorError: If the episode has earlier items that its lookback does not keep.
        """
        parts = self.parts
        found = [_recent(part, column, n, newest) for part in parts] or [self._one_by_one(column, n, newest)]
        values, reached = found[0]
        if len(found) > 1:
            values = tree_map(lambda *leaves: np.concatenate(leaves), *(values for values, _ in found))
            reached = np.concatenate([reached for _, reached in found])
        is_whole = reached.all()
        if not is_whole:
            self._check_beginnings(parts, ~reached[:, 0], column, n, newest, who)
        if each is None:
            return values
        size = len(reached)
        made = each(tree_map(lambda leaf: leaf.reshape(size * n, *leaf.shape[2:]), values))
        made = made.reshape(size, n, *made.shape[1:])
        return made if is_whole else made * reached.reshape(size, n, *[1] * (made.ndim - 2))

    def _one_by_one(self, column: str, n: int, newest: int) -> tuple[Tree, np.ndarray]:
        """Reads the items of episodes that are in no rollout."""
        steps = [self.reach(column, offset) for offset in range(newest - n + 1, newest + 1)]
        values = tree_map(lambda *leaves: np.stack(leaves, axis=1), *(values for values, _ in steps))
        return values, np.stack([reached for _, reached in steps], axis=1)

    def _check_beginnings(
        self, parts: Sequence[RowPart], short: np.ndarray, column: str, n: int, newest: int, who: str
    ) -> None:
        """Checks that missing items are from before the episode, once for the same episodes."""
        first = parts[0].first if parts else None
        if first is not None and self._kept_for.get((n, newest)) is first:
            return
        owners = np.repeat(np.arange(len(self.counts)), self.counts)
        episodes = self.episodes
        for i in np.unique(owners[short]).tolist():
            check_beginning(episodes[i], column, n, newest, who)
        if first is not None and len(parts) == 1 and self.acted is None:
            self._kept_for[n, newest] = first

    def reached(self, offset: int) -> np.ndarray:
        """Returns ``[B]`` bool, whether the agent's episode (with its lookback) has a row at an offset; see ``get``."""
        return np.concatenate([_wanted(part, offset)[1] for part in self.parts])

    def at(self, index: np.ndarray) -> Rows:
        """Returns some of the rows, for reading and writing only.

        Args:
            index: ``[N]`` their numbers, ascending.
        """
        parts: list[RowPart] = []
        begin = 0
        for part in self.parts:
            end = begin + len(part.first)
            own = index[slice(*np.searchsorted(index, [begin, end]))] - begin
            if len(own):
                positions = _positions(part)[own]
                parts.append(RowPart(part.rollout, positions, part.first[own], part.last[own]))
            begin = end
        if not parts:
            parts = [RowPart(part.rollout, *(part_of[:0] for part_of in _of_row(part))) for part in self.parts[:1]]
        return Rows(tuple(parts), module_ids=(), splits=(len(index),), episodes=[], counts=[])

    def kept(self, index: np.ndarray) -> Rows:
        """Returns the rows of a batch of which only some are left; they have episodes, counts and splits of their own.

        Args:
            index: ``[N]`` their numbers, ascending.
        """
        return self.at(index)._as_rest_of(self, index)

    def _as_rest_of(self, whole: Rows, index: np.ndarray) -> Rows:
        counts = np.array(whole.counts, np.int64)
        owners = np.repeat(np.arange(len(counts)), counts)[index]
        left = np.bincount(owners, minlength=len(counts))
        rest, chunks = np.flatnonzero(left), whole.chunks
        Rows.__init__(
            self,
            self.parts,
            module_ids=whole.module_ids,
            splits=tuple(np.searchsorted(index, whole.splits).tolist()),
            episodes=[chunks[i] for i in rest.tolist()],
            counts=left[rest].tolist(),
            acted=None if whole.acted is None else whole.acted[index],
        )
        self._last_steps = whole.last_steps()[index]
        return self

    def check_length(self, column: str, values: Tree) -> None:
        """Raises an EpisodeError unless all values are arrays with one row for each of these rows."""
        for leaf in (values,) if type(values) is np.ndarray else leaves(values):
            shape = getattr(leaf, "shape", ())
            if not shape or shape[0] != len(self):
                came = f"of shape {tuple(shape)}" if hasattr(leaf, "shape") else f"with a {type(leaf).__name__} in it"
                raise EpisodeError(
                    f"Rows: {column!r} {came} came for {len(self)} rows. Give an array [{len(self)}, ...], one row "
                    f"for each."
                )

    def set(self, column: str, values: Tree) -> None:
        """Writes items, ``[B, ...]``, back to the trajectories, where all later pieces and pipelines read them.

        Raises:
            EpisodeError: If there is not one item for each row.
        """
        self.check_length(column, values)
        begin = 0
        for part in self.parts:
            end = begin + len(part.first)
            bounds = slice(begin, end)
            part.rollout.write(column, part.positions, tree_map(lambda leaf, b=bounds: leaf[b], values))
            begin = end


def _get(part: RowPart, column: str, offset: int, fill: float | None) -> Tree:
    if offset == 0:
        return part.rollout.read(column, part.positions)
    values, reached = _reach(part, column, offset)
    if not reached.all():
        for leaf in leaves(values):
            leaf[~reached] = fill
    return values


def _of_row(part: RowPart) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return _positions(part), part.first, part.last


def unknown_column(column: str, known: Iterable[str]) -> EpisodeError:
    """Returns the error for a column that trajectories do not have."""
    return EpisodeError(f"Rows: the trajectories have no column {column!r}. {did_you_mean(column, known)}")


def whose(episode: Any) -> str:
    """Describes an agent episode by its agent, module and id."""
    if episode.agent_id is None:
        return f"episode {episode.id_!r}"
    return f"agent {episode.agent_id!r} (module {episode.module_id!r}, episode {episode.multi_agent_episode_id!r})"


def env_number_of(episode: Any) -> int | None:
    """Returns the number in the run of the sub-environment that an episode, or an agent's episode, comes from.

    Env runners make it the first part of the episode's id: ``"3-17"`` comes from sub-environment 3. None for other ids.
    """
    whole = getattr(episode, "multi_agent_episode_id", None)
    id_ = episode.id_ if whole is None else whole
    number = str(id_).partition("-")[0]
    return int(number) if number.isdecimal() and str(id_) != number else None


def _reach(part: RowPart, column: str, offset: int) -> tuple[Tree, np.ndarray]:
    wanted, reached = _wanted(part, offset)
    if not reached.all():
        wanted = np.where(reached, wanted, _positions(part))
    return part.rollout.read(column, wanted), reached


def _positions(part: RowPart) -> np.ndarray:
    positions = part.positions
    return np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions


def _wanted(part: RowPart, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the positions of the rows at an offset, and whether they belong to the same agent episode."""
    wanted = _positions(part) + offset * part.rollout.num_lanes
    return wanted, (wanted >= part.first) & (wanted <= part.last)


def _recent(part: RowPart, column: str, n: int, newest: int) -> tuple[Tree, np.ndarray]:
    """Reads the items of all rows and offsets in one gather. Returns them, and which of them exist (``[B, n]``)."""
    rollout, positions = part.rollout, part.positions
    if isinstance(positions, slice):
        recent = _recent_of_run(part, positions, column, n, newest)
        if recent is not None:
            return recent
        positions = _positions(part)
    here = positions[:, None]
    wanted = here + rollout.num_lanes * np.arange(newest - n + 1, newest + 1)
    reached = wanted >= part.first[:, None]
    all_reached = reached.all()
    values = rollout.read(column, (wanted if all_reached else np.where(reached, wanted, here)).ravel())

    def arranged(leaf: np.ndarray) -> np.ndarray:
        leaf = leaf.reshape(*wanted.shape, *leaf.shape[1:])
        if not all_reached:
            leaf[~reached] = 0
        return leaf

    return tree_map(arranged, values), reached


def _recent_of_run(part: RowPart, run: slice, column: str, n: int, newest: int) -> tuple[Tree, np.ndarray] | None:
    """Reads rows in one slice with one copy for each offset; returns None if some do not reach back that far."""
    rollout, lanes = part.rollout, part.rollout.num_lanes
    begin = run.start + (newest - n + 1) * lanes
    if (begin + np.arange(run.stop - run.start) < part.first).any():
        return None
    if not rollout.is_uniform(column, slice(begin, run.stop + newest * lanes)):
        return None
    size = run.stop - run.start
    steps = [rollout.read(column, slice(start, start + size)) for start in range(begin, begin + n * lanes, lanes)]
    values = tree_map(lambda *leaves: np.stack(leaves, axis=1), *steps)
    return values, np.ones((size, n), bool)


def check_beginning(episode: SingleAgentEpisode, column: str, n: int, newest: int, who: str) -> None:
    """Raises a ConnectorError if an episode has items from before its lookback, which it does not keep."""
    kept = episode.storage.lookback
    if episode.t_started <= kept:
        return
    wanted = n - 1 if newest == 0 else n
    name, steps = "observations" if column == Columns.OBS else column, "step" if wanted == 1 else f"{wanted} steps"
    raise ConnectorError(
        f"{who}: needs {name} of the last {steps}, but {_name(episode)} had {episode.t_started} steps "
        f"before this chunk, of which {kept} are kept. Set .env_runners(episode_lookback_horizon={wanted}) or more."
    )


def _name(episode: SingleAgentEpisode) -> str:
    return f"episode {episode.id_!r}" if episode.agent_id is None else f"the episode of agent {episode.agent_id!r}"
