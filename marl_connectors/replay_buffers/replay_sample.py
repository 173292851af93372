"""ReplaySample: steps that were drawn from a replay buffer, for a learner's train batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import Rollout, take
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.replay_buffers.row_ring import ACTED, TERMINATED, TRUNCATED, RowRing
from marl_connectors.typing import ModuleID

WEIGHTS = "weights"
"""``[B]`` float32, the importance of each step in its module's loss, where steps are drawn by their priorities."""


class Segments(Sequence[SingleAgentEpisode]):
    """Copies of parts of episodes: some steps each, the observation after them, and rows around them.

    As a sequence they are SingleAgentEpisodes, which are made when they are asked for.

    Attributes:
        module_id: The module whose steps these are.
        rollout: A rollout of one lane that holds all rows.
        first: ``[N]`` the first row of each segment, which may be lookback.
        start: ``[N]`` the row of its first step.
        stop: ``[N]`` the row of the observation after its last step.
        last: ``[N]`` its last row, which may lie further ahead.
        terminated: ``[N]`` bool, whether the episode was terminated by the segment's last step.
        truncated: ``[N]`` bool, whether it was truncated then.
        positions: ``[N]`` the position of the first step in the replay buffer.
        burn_in: The number of rows before the first step, where its episode has them, from which only a state is
            computed; None if the segments are no sequences for stateful modules.
        sequence_length: The greatest number of rows of such a sequence; None if the segments are none.
        counted: ``[B]`` bool, False for its rows that are no steps of the segments, but serve their states and targets.
    """

    sequence_length: int | None = None
    counted: np.ndarray | None = None

    def __init__(
        self,
        ring: RowRing,
        positions: np.ndarray,
        *,
        num_steps: int,
        ahead: np.ndarray,
        lookback: int,
        burn_in: int | None = None,
        weights: np.ndarray | None = None,
    ):
        """Copies segments.

        Args:
            ring: The ring that holds the steps.
            positions: ``[N]`` the positions of the segments' first steps there.
            num_steps: The greatest number of steps of a segment. It is shorter where its episode has no more.
            ahead: ``[N]`` the number of rows after each segment's last step, at least 1.
            lookback: The number of rows before its first step, if its episode has them. With ``burn_in``, before that.
            burn_in: As above.
            weights: ``[N]`` the importance of each segment, for the column ``weights``; None for no such column.
        """
        self.module_id = ring.module_id
        self.positions = positions
        self.burn_in = burn_in
        most_ahead = int(ahead.max(initial=1))
        if burn_in is not None:
            self.sequence_length = burn_in + num_steps + most_ahead
            lookback += burn_in
        offsets = np.arange(-lookback, num_steps + most_ahead)
        sources, same = ring.reach(positions, offsets)
        flags, number = ring.flags[sources], np.arange(len(positions))
        acted = same & ((flags & ACTED) > 0)
        counts = acted[lookback : lookback + num_steps].sum(0)
        before = same[:lookback].sum(0)
        after = np.minimum(same[lookback:].sum(0) - 1, counts - 1 + ahead)
        here = number * len(offsets) + lookback
        self.first, self.start, self.stop, self.last = here - before, here, here + counts, here + after
        ends = flags[lookback + counts - 1, number]
        self.terminated, self.truncated = (ends & TERMINATED) > 0, (ends & TRUNCATED) > 0
        flat, flags = sources.T.reshape(-1), flags.T.reshape(-1)
        columns = {name: take(column, flat) for name, column in ring.columns.items()}
        columns[Columns.TERMINATEDS], columns[Columns.TRUNCATEDS] = (flags & TERMINATED) > 0, (flags & TRUNCATED) > 0
        if weights is not None:
            columns[WEIGHTS] = np.repeat(weights.astype(np.float32), len(offsets))
        self.rollout = Rollout.of_columns(
            columns,
            ring.observation_space,
            ring.action_space,
            num_rows=len(flat),
            action_units=ring.action_units,
        )
        self._has_single_steps = num_steps == 1

    def __len__(self) -> int:
        return len(self.start)

    @property
    def num_steps(self) -> int:
        """The number of steps of all segments."""
        return int((self.stop - self.start).sum())

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...

    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...

    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        bounds = [divmod(int(rows[index]), self.rollout.num_lanes) for rows in (self.first, self.start, self.stop)]
        (first, lane), (start, _), (stop, _) = bounds
        storage = LaneStorage(self.rollout, lane, first_row=first, start_row=start, stop_row=stop)
        times: Any = self.rollout.columns[Columns.T]
        episode = SingleAgentEpisode.from_storage(
            storage,
            id_=f"{self.module_id}/{int(self.positions[index])}",
            module_id=self.module_id,
            t_started=int(times[self.start[index]]),
            observation_space=self.rollout.observation_space,
            action_space=self.rollout.action_space,
        )
        episode.is_terminated, episode.is_truncated = bool(self.terminated[index]), bool(self.truncated[index])
        return episode

    def row_part(self) -> tuple[RowPart, np.ndarray]:
        """Returns the rows of all steps, and their number in each segment; of sequences also the rows around them."""
        if self._has_single_steps and self.burn_in is None:
            return RowPart(self.rollout, self.start, self.first, self.last), self.stop - self.start
        begin, end = self.start, self.stop
        if self.burn_in is not None:
            begin, end = np.maximum(self.first, self.start - self.burn_in), self.last + 1
        counts = end - begin
        rows = np.arange(counts.sum()) + np.repeat(begin - np.cumsum(counts) + counts, counts)
        first, start, stop, last = (np.repeat(p, counts) for p in (self.first, self.start, self.stop, self.last))
        if self.burn_in is not None:
            self.counted = (rows >= start) & (rows < stop)
        return RowPart(self.rollout, rows, first, last), counts


class SampledRows(Rows):
    """The steps of segments, of which no last observation is a row of its own."""

    def __init__(self, segments: Sequence[Segments]):
        """Selects all steps of all segments.

        Args:
            segments: Those of each module.
        """
        parts, counts = zip(*(own.row_part() for own in segments), strict=True)
        super().__init__(
            parts,
            module_ids=tuple(own.module_id for own in segments),
            splits=(0, *np.cumsum([len(part.first) for part in parts]).tolist()),
            episodes=_Joined(segments),
            counts=np.concatenate(counts).tolist(),
        )
        lengths = [own.sequence_length for own in segments]
        if lengths[0] is not None:
            self.sequence_lengths = tuple(int(length) for length in lengths if length is not None)
        masks = [own.counted for own in segments if own.counted is not None]
        self.counted = np.concatenate(masks) if masks else None


class _Joined(Sequence[SingleAgentEpisode]):
    """The episodes of several modules' segments, which are made when they are asked for."""

    def __init__(self, segments: Sequence[Segments]):
        self._segments = segments

    def __len__(self) -> int:
        return sum(map(len, self._segments))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        for own in self._segments:
            if index < len(own):
                return own[index]
            index -= len(own)
        raise IndexError(index)


class ReplaySample(_Joined):
    """Steps of all modules, drawn from a replay buffer. ``Learner.update(episodes=...)`` accepts it.

    As a sequence it holds SingleAgentEpisodes.

    Attributes:
        segments: The segments of each module that has any.
    """

    def __init__(self, segments: Mapping[ModuleID, Segments]):
        super().__init__(list(segments.values()))
        self.segments = dict(segments)

    @property
    def num_steps(self) -> int:
        """The number of steps of all modules."""
        return sum(own.num_steps for own in self.segments.values())

    def rows(self, module_ids: Sequence[ModuleID]) -> SampledRows:
        """Returns the rows of some modules, in their order."""
        return SampledRows([self.segments[module_id] for module_id in module_ids])
