"""A selection of agent-steps: what a connector piece that works on columns reads and writes."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from gymnasium import Space

from marl_connectors.columns import Columns
from marl_connectors.episodes.info_column import InfoColumn
from marl_connectors.episodes.rollout import Positions, Rollout
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID, Tree


class RowPart(NamedTuple):
    """Rows of one rollout.

    Attributes:
        rollout: Where they are.
        positions: Flat positions of the ``B`` rows: a slice or ``[B]`` int64.
        first: ``[B]`` int64, position of the oldest row of the same agent episode that is kept (lookback included).
        last: ``[B]`` int64, position of the newest row of the same agent episode.
    """

    rollout: Rollout
    positions: Positions
    first: np.ndarray
    last: np.ndarray


class Rows:
    """Agent-steps, in the order in which their items stand in a batch: by module, then agent episode, then time.

    Attributes:
        parts: The same rows, by rollout.
        module_ids: The modules that have rows here, in order.
        splits: ``len(module_ids) + 1`` bounds; module ``i`` has rows ``splits[i]:splits[i + 1]``.
        episodes: The agent episodes that have rows here, in order.
        counts: How many rows each of them has.
        acted: ``[B]`` bool, False for an episode's last observation, or None where all rows are to be acted on.
        rows_per_module: How many rows each module has, or None if they differ.
    """

    __slots__ = ("_length", "acted", "counts", "episodes", "module_ids", "parts", "rows_per_module", "splits")

    def __init__(
        self,
        parts: tuple[RowPart, ...],
        *,
        module_ids: tuple[ModuleID, ...],
        splits: tuple[int, ...],
        episodes: list[SingleAgentEpisode],
        counts: list[int],
        acted: np.ndarray | None = None,
    ):
        self.parts = parts
        self.module_ids = module_ids
        self.splits = splits
        self.episodes = episodes
        self.counts = counts
        self.acted = acted
        self._length = splits[-1]
        each = {end - begin for begin, end in itertools.pairwise(splits)}
        self.rows_per_module = each.pop() if len(each) == 1 else None

    def __len__(self) -> int:
        return self._length

    @property
    def action_space(self) -> Space:
        """Of all agents that have rows here."""
        return self.parts[0].rollout.action_space

    def has(self, column: str) -> bool:
        """Whether the trajectories hold this column."""
        return all(part.rollout.holds(column, part.first, part.last) for part in self.parts)

    def get(self, column: str, offset: int = 0, fill: float | None = None) -> Tree:
        """The items of a column, ``[B, ...]``.

        Args:
            column: A column of the trajectories, such as ``Columns.OBS`` or ``Columns.REWARDS``; ``Columns.INFOS`` for
                a list of info dicts.
            offset: Whose item: 0 for the row itself, -1 for the same agent's step before, 1 for the one after.
            fill: Stands before the beginning of the agent's episode, and behind its newest row.

        Raises:
            EpisodeError: If a row is out of reach and there is no ``fill``, or if the episode has had it, but did not
                keep it.
        """
        if column == Columns.INFOS:
            return self._infos(offset)
        if fill is not None and offset < 0:
            self._check_kept(column, offset)
        values = [_get(part, column, offset, fill) for part in self.parts]
        return values[0] if len(values) == 1 else tree_map(lambda *leaves: np.concatenate(leaves), *values)

    def _infos(self, offset: int) -> InfoColumn:
        found = InfoColumn()
        for part in self.parts:
            infos, (wanted, reached) = part.rollout.infos, _wanted(part, offset)
            for position, there in zip(wanted.tolist(), reached.tolist(), strict=True):
                found.append(infos.get(position, {}) if there else {})
        return found

    def _check_kept(self, column: str, offset: int) -> None:
        """Raises for a row that lies before what its episode keeps, but not before its beginning."""
        missing = ~self.reached(offset)
        if not missing.any() or not self.counts:
            return
        episodes = self.episodes
        owners = np.repeat(np.arange(len(episodes)), self.counts)
        for i in np.unique(owners[missing]).tolist():
            episode = episodes[i]
            kept = episode.storage.lookback
            if episode.t_started > kept:
                who = f"episode {episode.id_!r}" if episode.agent_id is None else f"agent {episode.agent_id!r}"
                raise EpisodeError(
                    f"Rows: {column!r} at offset {offset} is wanted, but of the {episode.t_started} steps of {who} "
                    f"before this chunk only {kept} were kept. Set .env_runners(episode_lookback_horizon={-offset}), "
                    f"or lookback = {-offset} in the piece."
                )

    def reached(self, offset: int) -> np.ndarray:
        """``[B]`` bool, whether the agent's episode (with its lookback) has a row at an offset; see ``get``."""
        return np.concatenate([_wanted(part, offset)[1] for part in self.parts])

    def at(self, index: np.ndarray) -> Rows:
        """Some of the rows, for reading and writing only.

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
        return Rows(tuple(parts), module_ids=(), splits=(len(index),), episodes=[], counts=[])

    def set(self, column: str, values: Tree) -> None:
        """Writes items, ``[B, ...]``, back to the trajectories, where all later pieces and pipelines see them."""
        begin = 0
        for part in self.parts:
            end = begin + len(part.first)
            bounds = slice(begin, end)
            part.rollout.write(column, part.positions, tree_map(lambda leaf, b=bounds: leaf[b], values))
            begin = end


def _get(part: RowPart, column: str, offset: int, fill: float | None) -> Tree:
    rollout, positions = part.rollout, part.positions
    if offset == 0:
        return rollout.read(column, positions)
    wanted, reached = _wanted(part, offset)
    if reached.all():
        return rollout.read(column, wanted)
    if fill is None:
        raise EpisodeError(
            f"Rows: {int((~reached).sum())} of {len(wanted)} rows have no {column!r} at offset {offset}; the agent's "
            f"episode does not reach that far. Pass fill=, or raise episode_lookback_horizon."
        )
    values = rollout.read(column, np.where(reached, wanted, _positions(part)))

    def filled(leaf: np.ndarray) -> np.ndarray:
        leaf = leaf.copy()
        leaf[~reached] = fill
        return leaf

    return tree_map(filled, values)


def _positions(part: RowPart) -> np.ndarray:
    positions = part.positions
    return np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions


def _wanted(part: RowPart, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the rows at an offset are, and whether they are the agent's own."""
    wanted = _positions(part) + offset * part.rollout.num_lanes
    return wanted, (wanted >= part.first) & (wanted <= part.last)
