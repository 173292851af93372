"""All lanes in the order of the environment copies and their agents, in arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from marl_connectors.env_runners.lanes import Lane, LaneGroup
from marl_connectors.episodes.agent_views import EndedLanes
from marl_connectors.typing import AgentID


class LanesByCopy:
    """All live lanes, in the order of the copies and their agents.

    Attributes:
        agent_ids: The agents of each copy.
        bounds: ``[num_copies + 1]``, where the lanes of each copy begin.
        group: ``[num_lanes]`` the group of each lane.
        number: ``[num_lanes]`` the lane's number in its group.
    """

    def __init__(self, groups: Sequence[LaneGroup], by_copy: Sequence[Mapping[AgentID, Lane]]):
        """Takes the lanes as they are now."""
        self._groups = tuple(groups)
        self.agent_ids = [tuple(lanes) for lanes in by_copy]
        self.bounds = np.cumsum([0, *map(len, by_copy)])
        lanes = [lane for own in by_copy for lane in own.values()]
        self.group = np.array([lane.group.index for lane in lanes], np.int64)
        self.number = np.array([lane.number for lane in lanes], np.int64)

    def of_copies(self, indices: np.ndarray) -> SomeLanes:
        """The lanes of some copies."""
        begins, counts = self.bounds[indices], self.bounds[indices + 1] - self.bounds[indices]
        ends = np.cumsum(counts)
        which = np.repeat(begins - ends + counts, counts) + np.arange(int(ends[-1]))
        return SomeLanes(self._groups, self.group[which], self.number[which], ends - counts)


class SomeLanes(NamedTuple):
    """``N`` lanes of whole copies, in the order of the copies and their agents.

    Attributes:
        groups: All groups.
        group: ``[N]`` the group of each.
        number: ``[N]`` its number there.
        begins: Where the lanes of each copy begin.
    """

    groups: tuple[LaneGroup, ...]
    group: np.ndarray
    number: np.ndarray
    begins: np.ndarray

    def by_group(self) -> Iterator[tuple[LaneGroup, slice | np.ndarray, np.ndarray]]:
        """Each group that has some of the lanes, their places among them, and their numbers in the group."""
        for index, group in enumerate(self.groups):
            places = np.flatnonzero(self.group == index)
            if len(places) == len(self.number) > 0:
                yield group, slice(None), self.number
            elif len(places):
                yield group, places, self.number[places]

    def gathered(self, read: Callable[[LaneGroup, np.ndarray], np.ndarray], dtype: type) -> np.ndarray:
        """``[N]`` what ``read(group, numbers)`` gives for the lanes of each group."""
        values = np.empty(len(self.number), dtype)
        for group, places, numbers in self.by_group():
            values[places] = read(group, numbers)
        return values

    def ended(self, terminated: np.ndarray, truncated: np.ndarray) -> EndedLanes:
        """Where the agents' chunks are, which end at their newest rows."""

        def rows(group: LaneGroup, numbers: np.ndarray) -> np.ndarray:
            return group.rollout.cursor[numbers] // group.rollout.num_lanes

        return EndedLanes(
            rollouts=tuple(group.rollout for group in self.groups),
            which=self.group,
            lane=self.number,
            first_row=self.gathered(lambda group, numbers: group.lives.first_row[numbers], np.int64),
            start_row=self.gathered(lambda group, numbers: group.lives.start_row[numbers], np.int64),
            stop_row=self.gathered(rows, np.int64),
            t_started=self.gathered(lambda group, numbers: group.lives.t_started[numbers], np.int64),
            terminated=terminated,
            truncated=truncated,
        )
