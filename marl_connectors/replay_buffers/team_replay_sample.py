"""TeamReplaySample: env steps that were drawn from a replay buffer, with the rows of all agents of a team."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, reduce
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.episodes.rollout import Rollout, take
from marl_connectors.episodes.rows import RowPart
from marl_connectors.replay_buffers.replay_sample import ReplaySample, Segments
from marl_connectors.replay_buffers.row_ring import ACTED, TERMINATED, TRUNCATED
from marl_connectors.replay_buffers.team_ring import AGENT_FLAGS, ALIVE, ENVIRONMENT, TeamRing
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, ModuleID, Tree


class Window(NamedTuple):
    """The env steps of a sample: ``N`` items of ``W`` consecutive rows each.

    An item has ``lookback`` rows that no batch has, ``burn_in`` rows for the states of modules, ``num_steps`` steps,
    and rows after them. ``same`` says which of them belong to its episode and are still kept.

    Attributes:
        sources: ``[N, W]`` the positions in the buffer.
        same: ``[N, W]`` bool, see above.
        lookback: See above.
        burn_in: See above.
        num_steps: See above.
        ahead: ``[N]`` the number of rows after each item's last step that serve its returns, of those that it has.
    """

    sources: np.ndarray
    same: np.ndarray
    lookback: int
    burn_in: int
    num_steps: int
    ahead: np.ndarray

    @classmethod
    def of(
        cls, ring: TeamRing, positions: np.ndarray, *, num_steps: int, ahead: np.ndarray, burn_in: int, lookback: int
    ) -> Window:
        """Finds the rows around ``[N]`` positions of env steps, of which each begins an item."""
        found = ring.reach(positions, np.arange(-lookback - burn_in, num_steps + int(ahead.max(initial=1))))
        sources, same = (np.ascontiguousarray(part.T) for part in found)
        return cls(sources, same, lookback, burn_in, num_steps, ahead)

    def column(self, ring: TeamRing, name: str, module_id: ModuleID) -> Tree:
        """Returns a column of a module's agents, ``[N, W, K, ...]``, in which absent agents have no meaning."""
        flat = take(ring.columns[name][module_id], self.sources.reshape(-1))  # type: ignore[index]
        return tree_map(lambda leaf: leaf.reshape(*self.sources.shape, *leaf.shape[1:]), flat)

    @property
    def positions(self) -> np.ndarray:
        """``[N]`` the position in the buffer of the first step of each item."""
        return self.sources[:, self.begin]

    @property
    def begin(self) -> int:
        """The number of rows before an item's first step."""
        return self.lookback + self.burn_in

    @property
    def last(self) -> np.ndarray:
        """``[N]`` the last row of each item that belongs to its episode and serves its returns."""
        return self.begin + np.minimum(self.same[:, self.begin :].sum(1) - 1, self.num_steps - 1 + self.ahead)


class TeamSegments(Segments):
    """The rows of the agents of one module, in the env steps of a sample.

    A segment is a run of rows in which an agent was there all the time.

    Attributes:
        module_id: The module.
        rollout: A rollout whose rows are the env steps of all items, with a lane for each agent.
        rows: ``[B]`` the position in it of each row in which an agent is there, segment by segment.
        counts: ``[S]`` the number of rows of each segment.
        first: ``[S]`` the position of the oldest row of each segment, which may be lookback.
        start: ``[S]`` the position of its first row.
        last: ``[S]`` the position of its last row.
        env_steps: ``[B]`` the number of each row's env step: that of its item times ``W``, and its row in the item.
        slots: ``[B]`` the place of each row's agent among the agents of its module.
        acted: ``[B]`` bool, False for an observation that no action has followed.
    """

    def __init__(self, ring: TeamRing, module_id: ModuleID, window: Window, flags: np.ndarray, rewards: np.ndarray):
        """Copies the rows.

        Args:
            ring: The ring that holds the env steps.
            module_id: The module.
            window: The env steps.
            flags: ``[N, W, K]`` uint8, the agents' flags there, 0 for rows of other episodes.
            rewards: ``[N, W]`` the rewards that the rows of an env step have.
        """
        _, width, lanes = flags.shape
        self.module_id = module_id
        self.sequence_length = width - window.lookback
        self.rollout = _rollout(ring, module_id, window, flags, rewards)
        self._sources = window.sources
        items, agents, steps = np.nonzero((flags & ALIVE).transpose(0, 2, 1))
        acted = (flags[items, steps, agents] & ACTED) > 0
        places = (items * lanes + agents) * (width + 1) + steps
        follows = np.zeros(len(items), bool)  # whether a row continues the one before
        follows[1:] = places[1:] == places[:-1] + 1  # an agent that comes back is not there in the step after its end
        if window.lookback:
            kept = steps >= window.lookback
            items, agents, steps, acted, follows = (part[kept] for part in (items, agents, steps, acted, follows))
        is_bound = np.ones(len(items) + 1, bool)
        is_bound[:-1] = ~follows | (steps == window.lookback)
        bounds = is_bound.nonzero()[0]
        begins, ends = bounds[:-1], bounds[1:]
        self.env_steps, self.slots, self.acted = items * width + steps, agents, acted
        self.rows = self.env_steps * lanes + agents
        self.counts = ends - begins
        self.start, self.last = self.rows[begins], self.rows[ends - 1]
        self.first = self.start - follows[begins] * lanes

    @cached_property
    def stop(self) -> np.ndarray:  # type: ignore[override]
        """``[S]`` the position of the row after each segment's last step."""
        return self.last + self.acted[np.cumsum(self.counts) - 1] * self.rollout.num_lanes

    @cached_property
    def terminated(self) -> np.ndarray:  # type: ignore[override]
        """``[S]`` bool, whether the agent was terminated by the segment's last step."""
        return self._of_last_steps(Columns.TERMINATEDS)

    @cached_property
    def truncated(self) -> np.ndarray:  # type: ignore[override]
        """``[S]`` bool, whether it was truncated then."""
        return self._of_last_steps(Columns.TRUNCATEDS)

    def _of_last_steps(self, name: str) -> np.ndarray:
        """Returns the flags of the segments' last steps; False for a segment without a step."""
        flags: Any = self.rollout.columns[name]
        return flags[self.stop - self.rollout.num_lanes] & (self.stop > self.start)

    @cached_property
    def positions(self) -> np.ndarray:  # type: ignore[override]
        """``[S]`` the position of each segment's first row in the replay buffer."""
        return self._sources.reshape(-1)[self.start // self.rollout.num_lanes]

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return int(self.acted.sum())

    def row_part(self) -> tuple[RowPart, np.ndarray]:
        """Returns the rows of all segments, and the number of rows of each."""
        first, last = (np.repeat(own, self.counts) for own in (self.first, self.last))
        return RowPart(self.rollout, self.rows, first, last), self.counts


class EnvStepSample(ReplaySample):
    """Env steps of all agents that were drawn from a replay buffer. A subclass makes the segments.

    Attributes:
        agents: The agents of each module that has steps in the buffer.
        window: The env steps, each with the rows around it.
        flags: ``[N, W, K]`` uint8 of each module in ``agents``, its agents' flags, 0 for rows of other episodes.
        weights: ``[N]`` float32, the importance of each item in the loss; None if all are equally important.
    """

    weights: np.ndarray | None = None

    def __init__(self, ring: TeamRing, window: Window, module_ids: Collection[ModuleID] | None):
        """Copies the rows.

        Args:
            ring: The ring that holds the env steps.
            window: The env steps.
            module_ids: The modules whose agents' steps are rows of the train batch; all if None.
        """
        self._ring = ring
        self.window = window
        self.agents: dict[ModuleID, tuple[AgentID, ...]] = {m: ring.agents[m] for m in ring.modules()}
        self.flags = {m: self.column(AGENT_FLAGS, m) * window.same[:, :, None] for m in self.agents}
        super().__init__(self._make_segments([m for m in ring.agents if module_ids is None or m in module_ids]))

    @abstractmethod
    def _make_segments(self, module_ids: Sequence[ModuleID]) -> Mapping[ModuleID, TeamSegments]:
        """Returns the rows of those of the modules that have any."""

    @abstractmethod
    def items_of(self, module_id: ModuleID) -> np.ndarray:
        """Returns the item of each row of a module that has an error of its own in the loss."""

    def there(self, module_id: ModuleID) -> np.ndarray:
        """Returns ``[N, W, K]`` bool, whether a module's agents are there at the env steps, as ``lives_on`` says it."""
        return (self.flags[module_id] & ALIVE) > 0

    def has(self, name: str, module_id: ModuleID) -> bool:
        """Whether the buffer has a column of a module's agents."""
        return self._ring.has(name, module_id)

    def column(self, name: str, module_id: ModuleID) -> Tree:
        """Returns a column of a module's agents, ``[N, W, K, ...]``; without a meaning where ``flags`` are 0."""
        return self.window.column(self._ring, name, module_id)


class TeamReplaySample(EnvStepSample):
    """Env steps with the rows of all agents of a team, drawn from a ``TeamReplayBuffer``.

    Agents that are not there have no rows. ``segments`` says which row belongs to which agent and env step. The
    ``rewards`` of all rows are those of the team: the sum of its agents' rewards at the env step, divided by their
    number, those counted that are not there.

    Attributes:
        segments: The rows of each module of the team.
        sizes: The number of agents of each module in the buffer.
        slots: Module to the place of its first agent among all ``A`` agents of the buffer.
        num_agents: The number ``A`` of agents of the buffer.
        counted: ``[N, W]`` bool, the env steps to learn from: steps of the items in which an agent of the team acted.
        last: ``[N]`` the last row of each item that belongs to its episode and serves its returns.
    """

    segments: dict[ModuleID, TeamSegments]  # type: ignore[assignment]

    def _make_segments(self, module_ids: Sequence[ModuleID]) -> dict[ModuleID, TeamSegments]:
        ring, window = self._ring, self.window
        self.sizes = {m: len(own) for m, own in ring.agents.items()}
        *begins, self.num_agents = accumulate(self.sizes.values(), initial=0)
        self.slots = dict(zip(self.sizes, begins, strict=True))
        present = [m for m in module_ids if m in self.flags]
        acted = [(self.flags[m] & ACTED) > 0 for m in present]
        earned = [(self.column(Columns.REWARDS, m) * own).sum(2) for m, own in zip(present, acted, strict=True)]
        rewards: Any = sum(earned) / sum(self.sizes[m] for m in module_ids)
        steps = np.arange(window.same.shape[1]) - window.begin
        is_step = (steps >= 0) & (steps < window.num_steps)
        self.counted = reduce(np.logical_or, [own.any(2) for own in acted], False) & is_step
        self.last = window.last
        return {m: TeamSegments(ring, m, window, self.flags[m], rewards) for m in present}

    @property
    def num_steps(self) -> int:
        """The number of env steps to learn from."""
        return int(self.counted.sum())

    @property
    def counted_items(self) -> np.ndarray:
        """The item of each env step that counts."""
        return np.nonzero(self.counted)[0]

    def items_of(self, module_id: ModuleID) -> np.ndarray:
        """Returns the item of each env step that counts, which are the same for all modules."""
        del module_id
        return self.counted_items

    def observations(self, module_id: ModuleID) -> Tree:
        """Returns ``[N, W, K, ...]`` observations of a module's agents; they have no meaning where ``flags`` are 0."""
        return self.column(Columns.OBS, module_id)

    def env_states(self) -> Tree | None:
        """Returns ``[N, W, ...]`` states of the environment; None if they are not recorded."""
        if Columns.ENV_STATE not in self._ring.columns:
            return None
        return tree_map(lambda leaf: leaf[:, :, 0], self.column(Columns.ENV_STATE, ENVIRONMENT))


def _rollout(ring: TeamRing, module_id: ModuleID, window: Window, flags: np.ndarray, rewards: np.ndarray) -> Rollout:
    """Returns a rollout with the columns of a module's agents in the env steps of a sample."""
    sources, lanes = window.sources.reshape(-1), flags.shape[2]
    own = [name for name in ring.columns if name not in (AGENT_FLAGS, Columns.T, Columns.REWARDS)]
    columns = {
        name: tree_map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), take(ring.columns[name][module_id], sources))
        for name in own
        if ring.has(name, module_id)
    }
    columns[Columns.T] = np.repeat(ring.columns[Columns.T].take(sources), lanes)  # type: ignore[union-attr]
    columns[Columns.REWARDS] = np.repeat(rewards.reshape(-1), lanes)
    for name, flag in ((Columns.TERMINATEDS, TERMINATED), (Columns.TRUNCATEDS, TRUNCATED)):
        columns[name] = (flags.reshape(-1) & flag) > 0
    return Rollout.of_columns(
        columns,
        *ring.spaces.get(module_id, (None, None)),
        num_rows=len(sources),
        num_lanes=lanes,
        action_units=ring.action_units,
    )
