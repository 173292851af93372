"""JointReplayBuffer: draws steps of all agents together, in which each agent has rewards of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from marl_connectors.columns import Columns
from marl_connectors.replay_buffers.n_step import NStep
from marl_connectors.replay_buffers.row_ring import ACTED
from marl_connectors.replay_buffers.team_replay_buffer import TeamReplayBuffer
from marl_connectors.replay_buffers.team_replay_sample import EnvStepSample, TeamSegments, Window
from marl_connectors.replay_buffers.team_ring import TeamRing
from marl_connectors.typing import ModuleID


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
        stops, positions = self.stop, self.positions
        self.rollout.columns[Columns.REWARDS] = rewards.reshape(-1)
        _, width, lanes = flags.shape
        begins = np.cumsum(self.counts) - self.counts
        chosen = np.flatnonzero((self.env_steps[begins] % width == 0) & self.acted[begins])
        rows = begins[chosen]
        self.env_steps, self.slots, self.acted = self.env_steps[rows], self.slots[rows], self.acted[rows]
        self.items = self.env_steps // width
        self.rows = self.first = self.start = self.start[chosen]
        ends = (self.env_steps + window.ahead[self.items]) * lanes + self.slots
        self.last = np.minimum(stops[chosen], ends)  # the row after an agent's last step has its last observation
        self.stop = self.start + lanes
        self.ahead = (self.last - self.start) // lanes
        self.counts = np.ones(len(rows), np.int64)
        self.positions = positions[chosen]


class JointReplaySample(EnvStepSample):
    """Env steps of all agents, drawn from a ``JointReplayBuffer``.

    Agents that did not act at an env step have no row there.
    """

    def _make_segments(self, module_ids: Sequence[ModuleID]) -> dict[ModuleID, JointSegments]:
        with_steps = [m for m in module_ids if m in self.flags and (self.flags[m][:, 0] & ACTED).any()]
        rewards: Any = {m: self.column(Columns.REWARDS, m) for m in with_steps}
        return {m: JointSegments(self._ring, m, self.window, self.flags[m], rewards[m]) for m in with_steps}

    def items_of(self, module_id: ModuleID) -> np.ndarray:
        """Returns the item of each row of a module."""
        segments: Any = self.segments[module_id]
        return segments.items


class JointReplayBuffer(TeamReplayBuffer):
    """The newest env steps with the rows of all agents, for central critics of agents with rewards of their own."""

    sample_class = JointReplaySample

    def sample(  # type: ignore[override]
        self, num_items: int, *, n_step: NStep = 1, module_ids: Collection[ModuleID] | None = None
    ) -> JointReplaySample:
        """Draws single env steps; see ``TeamReplayBuffer.sample``."""
        found: Any = super().sample(num_items, n_step=n_step, module_ids=module_ids)
        return found
