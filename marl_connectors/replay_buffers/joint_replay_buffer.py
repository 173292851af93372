"""JointReplayBuffer: draws steps of all agents together, in which each agent has rewards of its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.replay_buffers.replay_sample import ReplaySample
from marl_connectors.replay_buffers.row_ring import ACTED
from marl_connectors.replay_buffers.team_replay_buffer import TeamReplayBuffer
from marl_connectors.replay_buffers.team_replay_sample import TeamSegments, Window
from marl_connectors.replay_buffers.team_ring import AGENT_FLAGS, TeamRing
from marl_connectors.typing import AgentID, ModuleID, Tree


class JointSegments(TeamSegments):
    """The steps of one module's agents in the env steps of a sample, with rows after them for n-step returns.

    A segment is a single step. Its rewards are those of its agent.

    Attributes:
        items: ``[B]`` the number of the env step of each row in the sample.
        ahead: ``[B]`` the number of env steps from each row to the observation after its n-step return.
    """

    def __init__(self, ring: TeamRing, module_id: ModuleID, window: Window, flags: np.ndarray, rewards: np.ndarray):
        """Copies the rows.

        Args:
            ring: The ring that holds the env steps.
            module_id: The module.
            window: The env steps, each with the rows after it.
            flags: ``[N, W, K]`` uint8, the agents' flags there.
            rewards: ``[N, W, K]`` their rewards.
        """
        super().__init__(ring, module_id, window, flags, np.zeros(flags.shape[:2]))
        self.sequence_length = None
        self.rollout.columns[Columns.REWARDS] = rewards.reshape(-1)
        _, width, lanes = flags.shape
        begins = np.cumsum(self.counts) - self.counts
        chosen = np.flatnonzero((self.env_steps[begins] % width == 0) & self.acted[begins])
        rows = begins[chosen]
        self.env_steps, self.slots, self.acted = self.env_steps[rows], self.slots[rows], self.acted[rows]
        self.items = self.env_steps // width
        self.rows = self.first = self.start = self.start[chosen]
        ends = (self.env_steps + window.ahead[self.items]) * lanes + self.slots
        self.last = np.minimum(self.stop[chosen], ends)  # the row after an agent's last step has its last observation
        self.stop = self.start + lanes
        self.ahead = (self.last - self.start) // lanes
        self.counts = np.ones(len(rows), np.int64)
        self.terminated, self.truncated = (
            self.rollout.columns[name][self.start] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS)
        )
        self.positions = self.positions[chosen]


class JointReplaySample(ReplaySample):
    """Env steps of all agents, drawn from a ``JointReplayBuffer``.

    Agents that did not act at an env step have no row there.

    Attributes:
        agents: The agents of each module that has steps.
        window: The env steps, each with the rows after it.
        flags: ``[N, W, K]`` uint8 of each module, its agents' flags, 0 for rows of other episodes.
        weights: ``[N]`` float32, the importance of each env step in the loss; None if all are equally important.
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
        wanted = [m for m in self.agents if module_ids is None or m in module_ids]
        with_steps = [m for m in wanted if (self.flags[m][:, 0] & ACTED).any()]
        super().__init__(
            {
                m: JointSegments(ring, m, window, self.flags[m], self.column(Columns.REWARDS, m))  # type: ignore[arg-type]
                for m in with_steps
            }
        )

    def items_of(self, module_id: ModuleID) -> np.ndarray:
        """Returns the item of each row of a module."""
        segments: Any = self.segments[module_id]
        return segments.items

    def has(self, name: str, module_id: ModuleID) -> bool:
        """Whether the buffer has a column of a module's agents."""
        return self._ring.has(name, module_id)

    def column(self, name: str, module_id: ModuleID) -> Tree:
        """Returns a column of a module's agents, ``[N, W, K, ...]``; without a meaning where ``flags`` are 0."""
        return self.window.column(self._ring, name, module_id)


class JointReplayBuffer(TeamReplayBuffer):
    """The newest env steps with the rows of all agents, for central critics of agents with rewards of their own."""

    def _sample_at(
        self,
        positions: np.ndarray,
        num_steps: int,
        ahead: np.ndarray,
        burn_in: int,
        lookback: int,
        module_ids: Collection[ModuleID] | None,
    ) -> JointReplaySample:
        window = Window.of(self._ring_of_all, positions, num_steps=1, ahead=ahead, burn_in=0, lookback=0)
        return JointReplaySample(self._ring_of_all, window, module_ids)
