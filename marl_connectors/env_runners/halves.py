"""Half of a runner's environment copies, whose agents act and observe while the other half is being stepped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.env_runners.lanes import Lane, LaneGroup
from marl_connectors.env_runners.live_rows import LiveRows, orders
from marl_connectors.env_runners.rehearsal import at_place
from marl_connectors.episodes.column_batch import ColumnBatch, ColumnGroup, slice_tree
from marl_connectors.episodes.rollout import Positions, Rollout
from marl_connectors.rl_module.array_layers import tile_rows


class HalfGroup:
    """The lanes that a group, of a single module, has of some consecutive copies. They move on apart from the others.

    Attributes:
        whole: The group.
        begin: Where its rows are among those of the group.
        end: Likewise, one behind the last.
        place: Of the first row within a tile, in a batch of all of the group's rows; see ``tile_rows``.
        leads: Whether these are the first lanes of the group to step.
        acting: The lanes, as in LaneGroup.
        env_indices: Likewise.
        positions: Of the newest rows.
        rows: What the pipelines get.
        t: ``[B]`` int32, a view of the group's.
    """

    __slots__ = (
        "_numbers",
        "acting",
        "begin",
        "end",
        "env_indices",
        "leads",
        "place",
        "positions",
        "rows",
        "t",
        "whole",
    )

    def __init__(self, whole: LaneGroup, begin: int, end: int):
        self.whole, self.begin, self.end = whole, begin, end
        self.leads, self.place = begin == 0, begin % tile_rows()
        self.acting: list[Lane] = whole.acting[begin:end]
        self.env_indices = whole.env_indices[begin:end]
        self._numbers: Positions = slice(begin, end) if whole.numbers is None else whole.numbers[begin:end]
        self.positions: Positions = slice(0, 0)
        self.t = whole.t
        self.rows = LiveRows(self, module_ids=whole.rows.module_ids, splits=(0, end - begin))
        self.locate()

    @property
    def index(self) -> int:
        """The group's."""
        return self.whole.index

    @property
    def rollout(self) -> Rollout:
        """The group's."""
        return self.whole.rollout

    @property
    def env_action_space(self) -> Space:
        """The group's."""
        return self.whole.env_action_space

    def locate(self) -> None:
        """Finds the lanes where they are now."""
        self.t = self.whole.t[self.begin : self.end]
        cursor = self.rollout.cursor[self._numbers]
        in_step = (np.diff(cursor) == 1).all()
        self.positions = slice(int(cursor[0]), int(cursor[-1]) + 1) if in_step else cursor.copy()

    def advance(self) -> None:
        """As ``LaneGroup.advance``, of these lanes alone. A hot path."""
        whole, rollout = self.whole, self.rollout
        step = rollout.num_lanes
        self.t += 1
        if self.leads:
            whole.last_row += 1
            rollout.reserve(whole.last_row + 1)
        rollout.cursor[self._numbers] += step
        positions = self.positions
        if isinstance(positions, slice):
            self.positions = slice(positions.start + step, positions.stop + step)
        else:
            self.positions = positions + step

    def first_positions(self) -> np.ndarray:
        """As ``LaneGroup.first_positions``."""
        return self.whole.first_positions()[self.begin : self.end]


class Half:
    """Some consecutive copies, and what it takes to step them apart from the others.

    Attributes:
        copies: Which.
        live: Groups that act there, and what picks their items from lists by copy; as in the Stepper.
        pick_actions: The way back.
        batch: What the modules get next.
    """

    __slots__ = ("batch", "copies", "live", "pick_actions")

    def __init__(self, copies: slice, by_copy: Sequence[Lane], groups: Sequence[LaneGroup]):
        """Takes the lanes of the copies.

        Args:
            copies: Which.
            by_copy: The lanes that act next, of all copies, in their order.
            groups: The groups that have any, each of a single module.
        """
        self.copies = copies
        self.batch = ColumnBatch([])
        own = []
        for group in groups:
            begin, end = np.searchsorted(group.env_indices, [copies.start, copies.stop]).tolist()
            own += [HalfGroup(group, begin, end)] if begin < end else []
        lanes = [lane for lane in by_copy if copies.start <= lane.env_index < copies.stop]
        picks, self.pick_actions = orders(lanes, [group.acting for group in own])
        self.live: list[tuple[HalfGroup, Callable[[Any], Any] | None]] = list(zip(own, picks, strict=True))

    def locate(self) -> None:
        """Finds all lanes where they are now."""
        for group, _ in self.live:
            group.locate()

    def columns(self) -> list[ColumnGroup]:
        """For the next batch."""
        return [ColumnGroup(group.rows) for group, _ in self.live]

    def forward(self, forward: Callable[[ColumnBatch], ColumnBatch]) -> ColumnBatch:
        """What a forward pass makes of ``batch``, with each row at the place that it would have among all rows."""
        places = [group.place for group, _ in self.live]
        if not any(places):
            return forward(self.batch)
        placed = [at_place(group, place) for group, place in zip(self.batch.groups, places, strict=True)]
        whole = forward(ColumnBatch(placed, self.batch.phase))
        outputs = ColumnBatch(self.columns(), whole.phase)
        for columns, found, place in zip(outputs.groups, whole.groups, places, strict=True):
            for name, column in found.items():
                columns[name] = slice_tree(column, place, place + len(columns.rows))
        return outputs

    def part_of(self, whole: ColumnBatch, groups: Sequence[LaneGroup]) -> ColumnBatch:
        """This half of a batch of all rows, of which each part belongs to one of ``groups``."""
        by_group = dict(zip(groups, whole.groups, strict=True))
        batch = ColumnBatch(self.columns(), whole.phase)
        for (group, _), columns in zip(self.live, batch.groups, strict=True):
            for name, column in by_group[group.whole].items():
                columns[name] = slice_tree(column, group.begin, group.end)
            columns.action_dist_cls = by_group[group.whole].action_dist_cls
        return batch
