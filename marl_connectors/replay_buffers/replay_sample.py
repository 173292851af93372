"""ReplaySample: steps that were drawn from a replay buffer, for a learner's train batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import accumulate
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import Rollout, spans, take
from marl_connectors.episodes.rows import RowPart, Rows
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.replay_buffers.ring import ACTED, AGENT_FLAGS, ALIVE, ENVIRONMENT, TERMINATED, TRUNCATED, Ring
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID, Tree

WEIGHTS = "weights"
"""``[B]`` float32, the importance of each step in its module's loss, where steps are drawn by their priorities."""


class Window:
    """The rows of a ring that were drawn: ``N`` items of ``W`` consecutive rows each.

    An item has ``lookback`` rows that no batch has, ``burn_in`` rows for the states of modules, ``num_steps`` steps,
    and rows after them.

    Attributes:
        ring: The ring.
        by_offset: ``sources`` and ``same`` as ``[W, N]`` arrays.
        width: The number ``W`` of rows of an item.
        begin: The number of rows before an item's first step.
        lookback: See above.
        burn_in: See above.
        num_steps: See above.
        ahead: ``[N]`` the number of rows after each item's last step that serve its returns, of those that it has.
        weights: ``[N]`` float32, the importance of each item in the loss; None if all are equally important.
    """

    def __init__(
        self,
        ring: Ring,
        positions: np.ndarray,
        *,
        ahead: np.ndarray,
        num_steps: int = 1,
        lookback: int = 0,
        burn_in: int = 0,
        weights: np.ndarray | None = None,
    ):
        """Finds the rows around ``[N]`` positions of steps, of which each begins an item."""
        self.ring, self.ahead, self.weights = ring, ahead, weights
        self.num_steps, self.lookback, self.burn_in = num_steps, lookback, burn_in
        self.begin = lookback + burn_in
        self.by_offset = ring.reach(positions, np.arange(-self.begin, num_steps + int(ahead.max(initial=1))))
        self.width = len(self.by_offset[0])

    @cached_property
    def sources(self) -> np.ndarray:
        """``[N, W]`` the positions in the ring."""
        return np.ascontiguousarray(self.by_offset[0].T)

    @cached_property
    def same(self) -> np.ndarray:
        """``[N, W]`` bool, whether a row belongs to its item's episode and is still kept."""
        return np.ascontiguousarray(self.by_offset[1].T)

    @property
    def positions(self) -> np.ndarray:
        """``[N]`` the position in the ring of the first step of each item."""
        return self.by_offset[0][self.begin]

    @property
    def last(self) -> np.ndarray:
        """``[N]`` the last row of each item that belongs to its episode and serves its returns."""
        return self.begin + np.minimum(self.by_offset[1][self.begin :].sum(0), self.num_steps + self.ahead) - 1

    def rollout(self, module_id: ModuleID, flags: np.ndarray, rewards: np.ndarray | None = None) -> Rollout:
        """Returns a rollout with copies of a module's rows, which has a lane for each agent.

        Args:
            module_id: The module.
            flags: ``[N * W * K]`` the flags of the rows.
            rewards: ``[N, W]`` rewards that all agents have, in place of their own.
        """
        sources, ring = self.sources.reshape(-1), self.ring
        num_lanes, columns = 1 if ring.agents is None else len(ring.agents_of(module_id)), {}
        for name, column in ring.columns.items():
            if ring.agents is None:
                columns[name] = take(column, sources)
            elif name == Columns.T:
                columns[name] = np.repeat(column.take(sources), num_lanes)
            elif name == Columns.REWARDS and rewards is not None:
                columns[name] = np.repeat(rewards.reshape(-1), num_lanes)
            elif name != AGENT_FLAGS and module_id in column:
                own = take(column[module_id], sources)
                columns[name] = tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), own)
        for name, flag in ((Columns.TERMINATEDS, TERMINATED), (Columns.TRUNCATEDS, TRUNCATED)):
            columns[name] = (flags & flag) > 0
        if self.weights is not None and rewards is None:
            columns[WEIGHTS] = np.repeat(self.weights, self.width * num_lanes)
        return Rollout.of_columns(
            columns,
            *ring.spaces.get(module_id, (None, None)),
            num_rows=len(sources),
            num_lanes=num_lanes,
            action_units=ring.action_units,
        )


@dataclass(eq=False)
class Segments:
    """Copies of parts of the episodes of one module's agents, with rows around them.

    As a sequence they are SingleAgentEpisodes, which are made when they are asked for.

    Attributes:
        module_id: The module.
        window: The rows that were drawn.
        flags: ``[N * W * K]`` uint8, the flags of all rows; 0 for those of other episodes.
        rollout: A rollout that holds all rows, with a lane for each of ``K`` agents.
        rows: ``[B]`` the position there of each row of a train batch, segment by segment.
        counts: ``[S]`` the number of these rows of each segment.
        first: ``[S]`` the position of the oldest row of each segment, which may be lookback.
        start: ``[S]`` the position of its first step.
        stop: ``[S]`` the position of the observation after its last step.
        last: ``[S]`` the position of its last row, which may lie further ahead.
        sequence_length: The greatest number of rows of a sequence for stateful modules; None if the segments are none.
        counted: ``[B]`` bool, False for rows that are no steps of the segments, but serve their states and targets;
            None if all rows count, or if the loss knows it otherwise.
    """

    module_id: ModuleID
    window: Window
    flags: np.ndarray
    rollout: Rollout
    rows: np.ndarray
    counts: np.ndarray
    first: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    last: np.ndarray
    sequence_length: int | None = None
    counted: np.ndarray | None = None

    @cached_property
    def env_steps(self) -> np.ndarray:
        """``[B]`` the number of each row's env step: that of its item times ``W``, and its row in the item."""
        return self.rows // self.rollout.num_lanes

    @cached_property
    def slots(self) -> np.ndarray:
        """``[B]`` the place of each row's agent among the agents of its module."""
        return self.rows - self.env_steps * self.rollout.num_lanes

    @cached_property
    def acted(self) -> np.ndarray:
        """``[B]`` bool, False for an observation that no action has followed."""
        return (self.flags[self.rows] & ACTED) > 0

    @cached_property
    def items(self) -> np.ndarray:
        """``[S]`` the item that each segment is from."""
        return self.start // (self.rollout.num_lanes * self.window.width)

    @property
    def ahead(self) -> np.ndarray:
        """``[S]`` the number of rows from the first step of each segment to its last row."""
        return (self.last - self.start) // self.rollout.num_lanes

    @cached_property
    def terminated(self) -> np.ndarray:
        """``[S]`` bool, whether the episode was terminated by the segment's last step."""
        return self._ends_by(TERMINATED)

    @cached_property
    def truncated(self) -> np.ndarray:
        """``[S]`` bool, whether it was truncated then."""
        return self._ends_by(TRUNCATED)

    def _ends_by(self, flag: int) -> np.ndarray:
        return ((self.flags[self.stop - self.rollout.num_lanes] & flag) > 0) & (self.stop > self.start)

    @cached_property
    def positions(self) -> np.ndarray:
        """``[S]`` the position of each segment's first step in the ring."""
        return self.window.sources.reshape(-1)[self.start // self.rollout.num_lanes]

    @property
    def num_steps(self) -> int:
        """The number of steps that are part of a loss."""
        return int(np.count_nonzero(self.acted if self.counted is None else self.counted))

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: int) -> SingleAgentEpisode:
        bounds = [divmod(int(rows[index]), self.rollout.num_lanes) for rows in (self.first, self.start, self.stop)]
        (first, lane), (start, _), (stop, _) = bounds
        times: Any = self.rollout.columns[Columns.T]
        episode = SingleAgentEpisode.from_storage(
            LaneStorage(self.rollout, lane, first_row=first, start_row=start, stop_row=stop),
            id_=f"{self.module_id}/{int(self.positions[index])}",
            module_id=self.module_id,
            t_started=int(times[self.start[index]]),
            observation_space=self.rollout.observation_space,
            action_space=self.rollout.action_space,
        )
        episode.is_terminated, episode.is_truncated = bool(self.terminated[index]), bool(self.truncated[index])
        return episode

    def row_part(self) -> RowPart:
        """Returns the rows of all segments."""
        if len(self.rows) == len(self.counts):
            return RowPart(self.rollout, self.rows, self.first, self.last)
        return RowPart(self.rollout, self.rows, *(np.repeat(own, self.counts) for own in (self.first, self.last)))


def segments_of_items(window: Window, *, are_sequences: bool) -> Segments:
    """Returns a segment for each item of a ring whose rows are steps of one agent each.

    Args:
        window: The items.
        are_sequences: Whether batches have all rows of the items, except lookback, for stateful modules.
    """
    module_id, begin, (sources, same) = window.ring.key, window.begin, window.by_offset
    flags = window.ring.flags.take(sources) * same
    steps = (flags[begin : begin + window.num_steps] & ACTED).sum(0, dtype=np.int64)
    start = np.arange(len(steps)) * window.width + begin
    first, stop = start - same[:begin].sum(0) if begin else start, start + steps
    last = start + np.minimum(same[begin:].sum(0), steps + window.ahead) - 1
    counts, length, counted = steps, None, None
    rows = start if window.num_steps == 1 else spans(start, steps)
    if are_sequences:
        length, begins = window.width - window.lookback, np.maximum(first, start - window.burn_in)
        counts = last + 1 - begins
        rows = spans(begins, counts)
        counted = (rows >= start.repeat(counts)) & (rows < stop.repeat(counts))
    flags = flags.T.reshape(-1)
    rollout = window.rollout(module_id, flags)
    return Segments(module_id, window, flags, rollout, rows, counts, first, start, stop, last, length, counted)


def segments_of_steps(window: Window, module_id: ModuleID, flags: np.ndarray) -> Segments:
    """Returns a segment for each agent that acts in the env step of an item, with rows after it for n-step returns.

    Args:
        window: The items, of one env step and the rows after it.
        module_id: The module.
        flags: ``[N, W, K]`` uint8, the flags of its agents, 0 for rows of other episodes.
    """
    lanes = flags.shape[2]
    items, slots = (flags[:, 0] & ACTED).nonzero()
    newest = np.logical_and.accumulate(flags & ALIVE, 1).sum(1)[items, slots] - 1
    newest += flags[items, newest, slots] & ACTED  # an agent's last step has an observation after it
    start = items * (window.width * lanes) + slots
    stop, last = start + lanes, start + np.minimum(newest, window.ahead[items]) * lanes
    counts, flags = np.ones(len(start), np.int64), flags.reshape(-1)
    rollout = window.rollout(module_id, flags)
    return Segments(module_id, window, flags, rollout, start, counts, start, start, stop, last)


def segments_of_lives(
    window: Window, module_id: ModuleID, flags: np.ndarray, rewards: np.ndarray | None = None
) -> Segments:
    """Returns a segment for each run of rows, of an item of env steps, in which an agent was there all the time.

    Args:
        window: The items.
        module_id: The module.
        flags: As for ``segments_of_steps``.
        rewards: As for ``Window.rollout``.
    """
    width, lanes = window.width, flags.shape[2]
    items, agents, steps = np.nonzero((flags & ALIVE).transpose(0, 2, 1))
    places = (items * lanes + agents) * (width + 1) + steps
    follows = np.zeros(len(items), bool)  # whether a row continues the one before
    follows[1:] = places[1:] == places[:-1] + 1  # an agent that comes back is not there in the step after its end
    if window.lookback:
        kept = steps >= window.lookback
        items, agents, steps, follows = (part[kept] for part in (items, agents, steps, follows))
    is_bound = np.ones(len(items) + 1, bool)
    is_bound[:-1] = ~follows | (steps == window.lookback)
    bounds = is_bound.nonzero()[0]
    begins, ends = bounds[:-1], bounds[1:]
    rows, flags = (items * width + steps) * lanes + agents, flags.reshape(-1)
    start, last = rows[begins], rows[ends - 1]
    return Segments(
        module_id,
        window,
        flags,
        window.rollout(module_id, flags, rewards),
        rows=rows,
        counts=ends - begins,
        first=start - follows[begins] * lanes,
        start=start,
        stop=last + ((flags[last] & ACTED) > 0) * lanes,
        last=last,
        sequence_length=width - window.lookback,
    )


class ReplaySample(Sequence[SingleAgentEpisode]):
    """Steps of all modules, drawn from a replay buffer. ``Learner.update(episodes=...)`` accepts it.

    As a sequence it holds SingleAgentEpisodes, which are made when they are asked for.

    Attributes:
        segments: The segments of each module that has any.
    """

    def __init__(self, segments: Mapping[ModuleID, Segments]):
        self.segments = dict(segments)

    def __len__(self) -> int:
        return sum(map(len, self.segments.values()))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        index = range(len(self))[index]
        for own in self.segments.values():
            if index < len(own):
                return own[index]
            index -= len(own)
        raise AssertionError

    @property
    def num_steps(self) -> int:
        """The number of steps of all modules."""
        return sum(own.num_steps for own in self.segments.values())

    def items_of(self, module_id: ModuleID) -> np.ndarray:
        """Returns the item of each step or sequence of a module that has an error of its own in the loss."""
        return self.segments[module_id].items

    def rows(self, module_ids: Sequence[ModuleID]) -> Rows:
        """Returns the rows of some modules, in their order. No last observation is a row of its own."""
        own = {module_id: self.segments[module_id] for module_id in module_ids}
        masks = [segments.counted for segments in own.values() if segments.counted is not None]
        lengths = [segments.sequence_length for segments in own.values() if segments.sequence_length is not None]
        return Rows(
            tuple(segments.row_part() for segments in own.values()),
            module_ids=tuple(own),
            splits=(0, *accumulate(len(segments.rows) for segments in own.values())),
            episodes=ReplaySample(own),
            counts=np.concatenate([segments.counts for segments in own.values()]).tolist(),
            sequence_lengths=tuple(lengths) or None,
            counted=np.concatenate(masks) if masks else None,
        )


class EnvStepSample(ReplaySample):
    """Env steps of all agents, with the rows of those that are there.

    Attributes:
        window: The env steps, each with the rows around it.
        weights: ``[N]`` float32, the importance of each item in the loss; None if all are equally important.
        shares_rewards: Whether the agents learn as a team. Then batches have all rows of the items, except lookback,
            and the rewards of all rows are those of the team: the sum of its agents' rewards at the env step, divided
            by their number, those counted that are not there. Otherwise batches have the rows of agents that act in the
            items' env steps, with their own rewards.
        agents: The agents of each module that has steps in the buffer.
        flags: ``[N, W, K]`` uint8 of each module in ``agents``, its agents' flags, 0 for rows of other episodes.
        sizes: The number of agents of each module in the buffer.
        slots: Module to the place of its first agent among all ``A`` agents of the buffer.
        num_agents: The number ``A`` of agents of the buffer.
        counted: ``[N, W]`` bool, the env steps to learn from: steps of the items in which an agent of the team acted.
        last: ``[N]`` the last row of each item that belongs to its episode and serves its returns.
    """

    def __init__(self, window: Window, module_ids: Collection[ModuleID] | None, *, shares_rewards: bool):
        """Copies the rows.

        Args:
            window: As above.
            module_ids: The modules whose agents' steps are rows of the train batch; all if None.
            shares_rewards: As above.
        """
        self.window, self.weights, self.shares_rewards = window, window.weights, shares_rewards
        ring = window.ring
        self.sizes = {m: len(own) for m, own in (ring.agents or {}).items()}
        self.agents = {m: ring.agents_of(m) for m in ring.modules()}
        self.flags = {m: self.column(AGENT_FLAGS, m) * window.same[:, :, None] for m in self.agents}
        team = [m for m in self.sizes if module_ids is None or m in module_ids]
        acted = {m: (self.flags[m] & ACTED) > 0 for m in team if m in self.flags}
        if not shares_rewards:
            present = [m for m, own in acted.items() if own[:, 0].any()]
            super().__init__({m: segments_of_steps(window, m, self.flags[m]) for m in present})
            return
        *begins, self.num_agents = accumulate(self.sizes.values(), initial=0)
        self.slots = dict(zip(self.sizes, begins, strict=True))
        steps = np.arange(window.width) - window.begin
        is_step = (steps >= 0) & (steps < window.num_steps)
        self.counted = reduce(np.logical_or, [own.any(2) for own in acted.values()], False) & is_step
        self.last = window.last
        earned: Any = sum((self.column(Columns.REWARDS, m) * own).sum(2) for m, own in acted.items())
        rewards = earned / sum(self.sizes[m] for m in team)
        super().__init__({m: segments_of_lives(window, m, self.flags[m], rewards) for m in acted})

    @property
    def num_steps(self) -> int:
        """The number of env steps to learn from, or of steps of all modules."""
        return int(self.counted.sum()) if self.shares_rewards else super().num_steps

    @property
    def counted_items(self) -> np.ndarray:
        """The item of each env step that counts."""
        return np.nonzero(self.counted)[0]

    def items_of(self, module_id: ModuleID) -> np.ndarray:
        """Returns the item of each env step that counts, or of each row of a module."""
        return self.counted_items if self.shares_rewards else super().items_of(module_id)

    def there(self, module_id: ModuleID) -> np.ndarray:
        """Returns ``[N, W, K]`` bool, whether a module's agents are there at the env steps, as ``lives_on`` says it."""
        return (self.flags[module_id] & ALIVE) > 0

    def has(self, name: str, module_id: ModuleID) -> bool:
        """Whether the buffer has a column of a module's agents."""
        return self.window.ring.has(name, module_id)

    def column(self, name: str, module_id: ModuleID) -> Tree:
        """Returns a column of a module's agents, ``[N, W, K, ...]``; without a meaning where ``flags`` are 0."""
        sources = self.window.sources
        flat = take(self.window.ring.own(name, module_id), sources.reshape(-1))
        return tree_map(lambda leaf: leaf.reshape(*sources.shape, *leaf.shape[1:]), flat)

    def observations(self, module_id: ModuleID) -> Tree:
        """Returns ``[N, W, K, ...]`` observations of a module's agents; without a meaning where ``flags`` are 0."""
        return self.column(Columns.OBS, module_id)

    def env_states(self) -> Tree | None:
        """Returns ``[N, W, ...]`` states of the environment; None if they are not recorded."""
        if not self.has(Columns.ENV_STATE, ENVIRONMENT):
            return None
        return tree_map(lambda leaf: leaf[:, :, 0], self.column(Columns.ENV_STATE, ENVIRONMENT))
