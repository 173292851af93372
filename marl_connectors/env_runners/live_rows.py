"""The rows of a runner that go to the modules next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from marl_connectors.episodes.rollout import take
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from marl_connectors.env_runners.lane_table import LaneGroup


class LiveRows(Rows):
    """The newest rows of a group's lanes: the same object all the time, while they move on."""

    __slots__ = ("group",)

    def __init__(self, group: LaneGroup, *, module_ids: tuple[ModuleID, ...], splits: tuple[int, ...]):
        self.group = group
        super().__init__(
            (),
            module_ids=module_ids,
            splits=splits,
            episodes=[],
            counts=[1] * splits[-1],
        )

    @property
    def parts(self) -> tuple[RowPart, ...]:  # type: ignore[override]
        """Where the rows are now."""
        group, positions = self.group, self.group.positions
        last = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        return (RowPart(group.rollout, positions, group.first_positions(), last),)

    @parts.setter
    def parts(self, value: tuple[RowPart, ...]) -> None:
        pass

    @property
    def episodes(self) -> list[SingleAgentEpisode]:  # type: ignore[override]
        """The ongoing episodes."""
        return [lane.episode for lane in self.group.acting]

    @episodes.setter
    def episodes(self, value: list[SingleAgentEpisode]) -> None:
        pass

    @property
    def action_space(self) -> Space:
        """Of all lanes, as the environment has it."""
        return self.group.env_action_space

    def get(self, column: str, offset: int = 0, fill: float | None = None) -> Any:
        """A hot path for the newest observations: no index arithmetic."""
        rollout = self.group.rollout
        if offset == 0 and column in rollout.columns:
            positions, values = self.group.positions, rollout.columns[column]
            if column not in rollout.layered and type(positions) is slice and type(values) is np.ndarray:
                return values[positions]
            return rollout.read(column, positions)
        return super().get(column, offset, fill)

    def reach(self, column: str, offset: int) -> tuple[Any, np.ndarray]:
        """A hot path for the step before, where all lanes have one: no index arithmetic."""
        group = self.group
        rollout, positions = group.rollout, group.positions
        begin = positions.start - rollout.num_lanes if type(positions) is slice else -1
        if offset == -1 and begin >= 0 and column not in rollout.layered and column in rollout.columns:
            end = begin + len(self)
            reached = group.first_positions() <= np.arange(begin, end)
            if reached.all():
                return _copied(rollout.columns[column], slice(begin, end)), reached
        return super().reach(column, offset)

    def set(self, column: str, values: Any) -> None:
        """Writes to the newest rows."""
        if type(values) is not np.ndarray or values.shape[:1] != (self._length,):
            self.check_length(column, values)
        self.group.rollout.write(column, self.group.positions, values)


def _copied(column: Any, positions: slice) -> Any:
    if type(column) is dict:
        return {key: _copied(part, positions) for key, part in column.items()}
    return column[positions].copy() if type(column) is np.ndarray else tree_map(np.copy, take(column, positions))


class Pick:
    """Takes items (a list, or arrays) and gives some of them, in another order."""

    __slots__ = ("_index", "_of_list")

    def __init__(self, index: np.ndarray):
        """Takes the places of those items, ``[N]``."""
        self._index = index
        self._of_list: Callable[[list], Any] | None = None

    def __call__(self, items: Any) -> Any:
        """The items at those places."""
        if type(items) is not list:
            return tree_map(lambda leaf: leaf[self._index], items)
        if self._of_list is None:
            places = self._index.tolist()
            self._of_list = itemgetter(*places) if len(places) > 1 else lambda given: [given[i] for i in places]
        return self._of_list(items)


def picker(index: Sequence[int] | np.ndarray, length: int) -> Pick | None:
    """What picks the items at some places out of ``length`` items; None if these are all, as they stand."""
    places = np.asarray(index, np.int64)
    return None if len(places) == length and (places == np.arange(length)).all() else Pick(places)
