"""Rows of episodes that need not be views of a rollout, for pieces on columns that are called by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.items import InfoColumn, count
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rows import Rows, unknown_column
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import STEP, WITH_LAST
from marl_connectors.errors import EpisodeError
from marl_connectors.trees import as_list, tree_map, unstack
from marl_connectors.typing import ModuleID, Tree


class EpisodeRows(Rows):
    """Agent-steps that are read from, and written to, episodes of any storage, one by one.

    The rows of a train batch are all steps of each episode and its last observation, those of any other batch its
    newest observation.
    """

    __slots__ = ("_at", "_train")

    def __init__(self, by_module: Mapping[ModuleID, list[SingleAgentEpisode]], *, train: bool):
        """Selects rows.

        Args:
            by_module: The agent episodes of each module.
            train: Whether to select all steps of the episodes, or only their newest observations.
        """
        episodes = [episode for own in by_module.values() for episode in own]
        counts = [len(episode) + 1 if train else 1 for episode in episodes]
        ends = [0, *itertools.accumulate(counts)]
        firsts = [0, *itertools.accumulate(len(own) for own in by_module.values())]
        acted = None
        if train:
            acted = np.ones(ends[-1], bool)
            acted[np.array(ends[1:], np.int64) - 1] = False
        splits = tuple(ends[i] for i in firsts)
        super().__init__((), module_ids=tuple(by_module), splits=splits, episodes=episodes, counts=counts, acted=acted)
        self._train = train
        newest = [episode.storage.lookback + len(episode) + 1 for episode in episodes]
        self._at = [list(range(n - count, n)) for n, count in zip(newest, counts, strict=True)]

    @property
    def observation_space(self) -> Space | None:
        """The observation space of all agents that have rows here."""
        return self.episodes[0].observation_space

    @property
    def action_space(self) -> Space:
        """The action space of all agents that have rows here."""
        return self.episodes[0].action_space  # type: ignore[return-value]

    def at(self, index: np.ndarray) -> EpisodeRows:
        """Returns some of the rows; see ``Rows.at``."""
        return self.kept(index)

    def kept(self, index: np.ndarray) -> EpisodeRows:
        """Returns the rows that are left; see ``Rows.kept``."""
        rows = EpisodeRows.__new__(EpisodeRows)
        rows.parts = ()
        rows._as_rest_of(self, index)
        rows._train = self._train
        ends = np.cumsum(self.counts)
        owners, positions = np.searchsorted(ends, index, side="right"), [p for own in self._at for p in own]
        at: dict[int, list[int]] = {}
        for owner, row in zip(owners.tolist(), index.tolist(), strict=True):
            at.setdefault(owner, []).append(positions[row])
        rows._at = list(at.values())
        return rows

    def has(self, column: str) -> bool:
        """Whether all episodes hold this column, and any of them has items in it."""
        if not all(column in _known_columns(episode) for episode in self.episodes):
            return False
        return column in STEP or any(count(_column(episode, column)) for episode in self.episodes)

    def columns(self) -> list[str]:
        """Returns the columns that all trajectories hold, without infos."""
        return [name for name in _known_columns(self.episodes[0]) if name != Columns.INFOS and self.has(name)]

    def reached(self, offset: int) -> np.ndarray:
        """Returns ``[B]`` bool, whether an episode has a row at an offset; see ``Rows.reached``."""
        found = [
            0 <= position + offset <= episode.storage.lookback + len(episode)
            for episode, own in zip(self.episodes, self._at, strict=True)
            for position in own
        ]
        return np.array(found, bool)

    def own_steps(self) -> np.ndarray:
        """Returns ``[B]`` int64; see ``Rows.own_steps``."""
        found = [
            episode.t_started - episode.storage.lookback + position
            for episode, own in zip(self.episodes, self._at, strict=True)
            for position in own
        ]
        return np.array(found, np.int64)

    def _check_known(self, column: str) -> None:
        for episode in self.episodes:
            known = _known_columns(episode)
            if column not in known:
                raise unknown_column(column, known)

    def get(self, column: str, offset: int = 0, fill: float | None = None) -> Tree:
        """Returns the items of a column; see ``Rows.get``."""
        self._check_known(column)
        if column != Columns.INFOS:
            check = self._check_reached if fill is None else self._check_kept
            check(column, offset)
        return self._read(column, offset, fill)

    def reach(self, column: str, offset: int) -> tuple[Tree, np.ndarray]:
        """Returns the items at an offset and ``[B]`` bool; see ``Rows.reach``. Items without meaning are zeros."""
        return self._read(column, offset, 0), self.reached(offset)

    def source(self, column: str) -> Tree:
        """Returns the items of a column as the environment returned them; see ``Rows.source``."""
        found = []
        for episode, own in zip(self.episodes, self._at, strict=True):
            storage = episode.storage
            held = storage.source(column) if isinstance(storage, LaneStorage) else storage.column(column)
            found += [as_list(held)[position] for position in own]
        return spaces.stack(found)

    def _read(self, column: str, offset: int, fill: float | None) -> Tree:
        items: list[Any] = []
        missing: list[int] = []
        blank: Any = 0.0 if column == Columns.REWARDS else None
        for episode, own in zip(self.episodes, self._at, strict=True):
            held = as_list(_column(episode, column))
            if blank is None and held:
                blank = tree_map(np.zeros_like, held[0])
            last = episode.storage.lookback + len(episode)
            for wanted in (position + offset for position in own):
                if not 0 <= wanted <= last:
                    missing.append(len(items))
                items.append(held[wanted] if 0 <= wanted < len(held) else None)
        if column == Columns.INFOS:
            return InfoColumn({} if item is None else item for item in items)
        if blank is None:  # no agent has acted yet
            blank = 0 if self.episodes[0].action_space is None else unstack(spaces.zeros(self.action_space, 1))[0]
        values = spaces.stack([blank if item is None else item for item in items])
        if missing:
            tree_map(lambda leaf: leaf.__setitem__(missing, fill), values)
        return values

    def set(self, column: str, values: Tree) -> None:
        """Writes items back; see ``Rows.set``. No action is written to a last observation."""
        self.check_length(column, values)
        items, end = unstack(values), 0
        for episode, positions in zip(self.episodes, self._at, strict=True):
            storage = episode.storage
            own, end = items[end : end + len(positions)], end + len(positions)
            if column in WITH_LAST:
                storage.set_items(column, positions, own)
                continue
            if not self._train:
                raise EpisodeError(
                    f"Rows: {column!r} of a step that has not been taken cannot be set. Put it into the batch."
                )
            last = storage.lookback + len(episode)
            if column not in STEP and column not in storage.extra_keys():
                storage.set_column(column, [tree_map(np.zeros_like, own[0])] * last)
            taken = [position for position in positions if position < last]
            storage.set_items(column, taken, own[: len(taken)])


def _column(episode: SingleAgentEpisode, name: str) -> list | Tree:
    """Returns a column of a trajectory; that of the environment's states includes the newest observation's state."""
    storage = episode.storage
    if name == Columns.ENV_STATE:
        return storage.part(name, 0, storage.lookback + len(storage) + 1)
    return storage.column(name)


def _known_columns(episode: SingleAgentEpisode) -> tuple[str, ...]:
    """Returns the names of the columns of an agent episode's trajectory."""
    storage = episode.storage
    states = isinstance(storage, LaneStorage) and Columns.ENV_STATE in storage.rollout.columns
    return (*STEP, *storage.extra_keys(), *([Columns.ENV_STATE] if states else []))


class UnknownEpisodes(EpisodeError):
    """Raised when a piece asks for the trajectories of rows that belong to unknown episodes."""


class UnknownRows(EpisodeRows):
    """The rows of a batch that is passed without its episodes."""

    __slots__ = ("_action_space",)

    def __init__(self, module_id: ModuleID, counts: list[int], action_space: Space | None):
        super().__init__({module_id: []}, train=False)
        self._length = self.rows_per_module = sum(counts)
        self.splits, self.counts = (0, self._length), counts
        self._action_space = action_space

    @property
    def observation_space(self) -> Space | None:
        """None, as it is unknown."""
        return None

    @property
    def action_space(self) -> Space:
        """The action space of the module, if it is known."""
        return self._action_space  # type: ignore[return-value]

    @property
    def episodes(self) -> list[SingleAgentEpisode]:  # type: ignore[override]
        """Raises an error, as they are unknown."""
        raise UnknownEpisodes(self._message("episodes"))

    @episodes.setter
    def episodes(self, value: list[SingleAgentEpisode]) -> None:
        pass

    def _check_known(self, column: str) -> None:
        raise UnknownEpisodes(self._message(column))

    def set(self, column: str, values: Tree) -> None:
        """Raises an error."""
        raise EpisodeError(self._message(column))

    def _message(self, column: str) -> str:
        return (
            f"Rows: {column!r} of the trajectories is wanted, but the {len(self)} rows are of none of the episodes. "
            f"Pass the episodes that the batch was made of."
        )
