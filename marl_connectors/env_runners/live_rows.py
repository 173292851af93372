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
    from marl_connectors.env_runners.lanes import Lane, LaneGroup


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
        self.check_length(column, values)
        self.group.rollout.write(column, self.group.positions, values)


def _copied(column: Any, positions: slice) -> Any:
    if type(column) is dict:
        return {key: _copied(part, positions) for key, part in column.items()}
    return column[positions].copy() if type(column) is np.ndarray else tree_map(np.copy, take(column, positions))


def picker(order: Sequence[int], length: int) -> Callable[[Any], Any] | None:
    """A function that takes ``length`` items (a list, or arrays) and gives those of ``order``; None if all stand so."""
    if list(order) == list(range(length)):
        return None
    index = np.array(order, np.int64)
    pick_items = itemgetter(*order) if len(order) > 1 else lambda items: [items[i] for i in order]

    def pick(items: Any) -> Any:
        return pick_items(items) if type(items) is list else tree_map(lambda leaf: leaf[index], items)

    return pick


def orders(
    by_copy: Sequence[Lane], acting: Sequence[Sequence[Lane]]
) -> tuple[list[Callable[[Any], Any] | None], Callable[[Any], Any] | None]:
    """How to get from the order of the copies and their agents to that of rows, and back.

    Args:
        by_copy: Lanes in the order of the copies.
        acting: The same lanes by group, in the order of the group's rows.

    Returns:
        For each group, what picks its items from those of ``by_copy``; and what picks the items of ``by_copy`` from
        those of all groups, one after the other. None, where nothing changes.
    """
    place = {lane: i for i, lane in enumerate(by_copy)}
    by_row = [lane for own in acting for lane in own]
    position = {lane: i for i, lane in enumerate(by_row)}
    picks = [picker([place[lane] for lane in own], len(by_copy)) for own in acting]
    return picks, picker([position[lane] for lane in by_copy], len(by_copy))
