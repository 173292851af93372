"""What a piece that changes observations may know about the agent-steps behind them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import ConnectorError
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree

_REMEMBERED = 16


class Recent(NamedTuple):
    """The newest items of a column, as seen from each of ``B`` agent-steps.

    Attributes:
        values: ``[B, n, ...]`` array or tree of arrays, oldest first; zeros where the episode does not reach.
        reached: ``[B, n]`` bool, False there.
    """

    values: Tree
    reached: np.ndarray


class Agents(NamedTuple):
    """Whose agent-steps these are.

    Attributes:
        ids: The agents that have steps here, each once; (None,) in single-agent use.
        index: ``[B]`` the place in ``ids`` of each step's agent.
    """

    ids: tuple[AgentID | None, ...]
    index: np.ndarray


class AgentLookup:
    """Works out whose rows are whose, once for each set of rows that go on and on.

    Attributes:
        checked: ``(n, newest)`` to the ``RowPart.first`` of rows that were found to reach back far enough for it.
    """

    def __init__(self) -> None:
        self.checked: dict[tuple[int, int], np.ndarray] = {}
        self._known: dict[int, tuple[Rows, Agents]] = {}

    def of(self, rows: Rows) -> Agents:
        """A hot path: a runner's rows are the same object from step to step, as long as no agent comes or goes."""
        known = self._known.get(id(rows))
        if known is not None and known[0] is rows:
            return known[1]
        by_episode = [episode.agent_id for episode in rows.episodes]
        place = {agent_id: i for i, agent_id in enumerate(dict.fromkeys(by_episode))}
        index = np.repeat(np.array([place[agent_id] for agent_id in by_episode], np.int64), rows.counts)
        agents = Agents(tuple(place), index)
        if rows.acted is None:
            while len(self._known) >= _REMEMBERED:
                self._known.pop(next(iter(self._known)))
            self._known[id(rows)] = (rows, agents)
        return agents


class Steps:
    """``B`` agent-steps: what a piece that changes observations may know about them."""

    __slots__ = ("_lookup", "_parts", "rows")

    def __init__(self, rows: Rows, lookup: AgentLookup):
        self.rows = rows
        self._lookup = lookup
        self._parts: tuple[RowPart, ...] | None = None

    @property
    def parts(self) -> tuple[RowPart, ...]:
        """Where the rows are; live rows work that out anew whenever they are asked."""
        if self._parts is None:
            self._parts = self.rows.parts
        return self._parts

    @property
    def agents(self) -> Agents:
        """Whose they are."""
        return self._lookup.of(self.rows)

    @property
    def spaces(self) -> tuple[Space | None, Space | None]:
        """The observation and action spaces that the environment names, where known."""
        if not self.parts:
            return self.rows.observation_space, self.rows.action_space
        rollout = self.parts[0].rollout
        return rollout.observation_space, rollout.action_space

    def recent(self, column: str, n: int, *, newest: int, who: str) -> Recent:
        """The ``n`` newest items of a column.

        Args:
            column: A column of the trajectories.
            n: How many.
            newest: Which one is the last: 0 the step's own (of observations), -1 the one before (of actions).
            who: The piece, for messages.

        Raises:
            ConnectorError: If the episode went on before its lookback, so that there are items that are not kept.
        """
        found = [_recent(part, column, n, newest) for part in self.parts] or [self._one_by_one(column, n, newest)]
        values, reached = found[0]
        if len(found) > 1:
            values = tree_map(lambda *leaves: np.concatenate(leaves), *(values for values, _ in found))
            reached = np.concatenate([reached for _, reached in found])
        if not reached.all():
            self._check_beginnings(~reached[:, 0], column, n, newest, who)
        return Recent(values, reached)

    def _one_by_one(self, column: str, n: int, newest: int) -> Recent:
        """For rows of episodes that stand in no rollout."""
        steps = [self.rows.reach(column, offset) for offset in range(newest - n + 1, newest + 1)]
        values = tree_map(lambda *leaves: np.stack(leaves, axis=1), *(values for values, _ in steps))
        return Recent(values, np.stack([reached for _, reached in steps], axis=1))

    def _check_beginnings(self, short: np.ndarray, column: str, n: int, newest: int, who: str) -> None:
        """Once for the same episodes: while they go on, fewer and fewer of them are short."""
        first = self.parts[0].first if self.parts else None
        if first is not None and self._lookup.checked.get((n, newest)) is first:
            return
        owners = np.repeat(np.arange(len(self.rows.counts)), self.rows.counts)
        episodes = self.rows.episodes
        for i in np.unique(owners[short]).tolist():
            check_beginning(episodes[i], column, n, newest, who)
        if first is not None and len(self.parts) == 1 and self.rows.acted is None:
            self._lookup.checked[n, newest] = first


def _recent(part: RowPart, column: str, n: int, newest: int) -> Recent:
    """One gather for all rows and offsets."""
    rollout, positions = part.rollout, part.positions
    if isinstance(positions, slice):
        recent = _recent_of_run(part, positions, column, n, newest)
        if recent is not None:
            return recent
        positions = np.arange(positions.start, positions.stop, positions.step)
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

    return Recent(arranged(values) if type(values) is np.ndarray else tree_map(arranged, values), reached)


def _recent_of_run(part: RowPart, run: slice, column: str, n: int, newest: int) -> Recent | None:
    """A hot path: one copy for each offset, of rows in one run that all reach so far; None for others."""
    rollout, lanes = part.rollout, part.rollout.num_lanes
    begin = run.start + (newest - n + 1) * lanes
    if run.step not in (None, 1) or (begin + np.arange(run.stop - run.start) < part.first).any():
        return None
    if not rollout.is_uniform(column, slice(begin, run.stop + newest * lanes)):
        return None
    size = run.stop - run.start
    steps = [rollout.read(column, slice(start, start + size)) for start in range(begin, begin + n * lanes, lanes)]
    values = tree_map(lambda *leaves: np.stack(leaves, axis=1), *steps)
    return Recent(values, np.ones((size, n), bool))


def check_beginning(episode: SingleAgentEpisode, column: str, n: int, newest: int, who: str) -> None:
    """Raises a ConnectorError if an episode began before its lookback, so that items exist which are not kept."""
    kept = episode.storage.lookback
    if episode.t_started <= kept:
        return
    wanted = n - 1 if newest == 0 else n
    name = "observations" if column == Columns.OBS else column
    raise ConnectorError(
        f"{who}: looks {wanted} steps back for {name}, but {_name(episode)} went on for {episode.t_started} steps "
        f"before this chunk, of which {kept} are kept. Set .env_runners(episode_lookback_horizon={wanted}) or more."
    )


def _name(episode: SingleAgentEpisode) -> str:
    return f"episode {episode.id_!r}" if episode.agent_id is None else f"the episode of agent {episode.agent_id!r}"
