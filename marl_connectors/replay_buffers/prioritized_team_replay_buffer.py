"""Buffers that draw those env steps more often from which a team can learn more."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_connectors.replay_buffers.joint_replay_buffer import JointReplayBuffer
from marl_connectors.replay_buffers.prioritized_episode_replay_buffer import (
    PrioritizedRowRing,
    checked_sizes,
    importance,
    priorities,
)
from marl_connectors.replay_buffers.replay_sample import WEIGHTS
from marl_connectors.replay_buffers.row_ring import RowRing
from marl_connectors.replay_buffers.team_replay_buffer import TeamReplayBuffer
from marl_connectors.replay_buffers.team_ring import TeamRing
from marl_connectors.typing import AgentID, ModuleID
from marl_connectors.validators import number


class PrioritizedTeamRing(PrioritizedRowRing, TeamRing):
    """The newest env steps, which are drawn with probabilities in proportion to their weights."""


class PrioritizedTeamReplayBuffer(TeamReplayBuffer):
    """A buffer of env steps with proportional priorities, as ``PrioritizedEpisodeReplayBuffer`` has them for steps.

    The priority of an env step is the mean size of the errors of all agents that learn from it, or of the errors of the
    sequence that begins there.

    Attributes:
        alpha: 0 for equal probabilities, 1 for probabilities in proportion to the priorities.
        beta: How much ``weights`` of samples correct for unequal probabilities: 0 for not at all, 1 for fully.
    """

    def __init__(
        self,
        capacity: int = 100_000,
        *,
        agents: Mapping[ModuleID, Sequence[AgentID]],
        alpha: float = 0.6,
        beta: float = 0.4,
        extra_columns: Sequence[str] = (),
        seed: int = 0,
        spill_folder: str | os.PathLike[str] | None = None,
    ):
        """Creates an empty buffer. The arguments are those of ``TeamReplayBuffer``, and the attributes.

        Raises:
            ConfigError: If one of them is no such number.
        """
        super().__init__(capacity, agents=agents, extra_columns=extra_columns, seed=seed, spill_folder=spill_folder)
        self.alpha = number(min=0).check(alpha, type(self).__name__, "alpha")
        self.beta = number(min=0).check(beta, type(self).__name__, "beta")

    def _new_ring(self, module_id: ModuleID) -> RowRing:
        return PrioritizedTeamRing(self.capacity, self.agents, self.extra_columns, spill_folder=self.spill_folder)

    def sample(self, num_items: int, **settings: Any) -> Any:  # type: ignore[override]
        """Draws env steps, or sequences of them, as ``TeamReplayBuffer.sample``; the sample has ``weights``."""
        sample = super().sample(num_items, **settings)
        sample.weights = importance(self._ring_of_all, sample.window.positions, self.beta).astype(np.float32)
        return sample

    def update_priorities(self, sample: Any, errors: Mapping[ModuleID, np.ndarray]) -> None:
        """Sets the priorities of env steps that were drawn. Nothing may have been added since.

        Args:
            sample: What ``sample`` returned.
            errors: For each module, ``[n]`` errors of its rows, or of the env steps that count for the team.

        Raises:
            EpisodeError: If there is not one finite error for each of these.
        """
        positions = sample.window.positions
        total, count = np.zeros(len(positions)), np.zeros(len(positions))
        for module_id, own in errors.items():
            items = sample.items_of(module_id)
            sizes = checked_sizes(self, module_id, own, len(items))
            total += np.bincount(items, sizes, len(positions))
            count += np.bincount(items, minlength=len(positions))
        known = count > 0
        ring: Any = self._ring_of_all
        ring.set_priorities(positions[known], priorities(total[known] / count[known], self.alpha))


class PrioritizedJointReplayBuffer(PrioritizedTeamReplayBuffer, JointReplayBuffer):
    """A ``JointReplayBuffer`` with such priorities. Rows have the column ``weights``."""

    def sample(self, num_items: int, **settings: Any) -> Any:  # type: ignore[override]
        """Draws env steps, as ``JointReplayBuffer.sample``."""
        sample = super().sample(num_items, **settings)
        for own in sample.segments.values():
            rows_per_item = own.rollout.num_rows * own.rollout.num_lanes // len(sample.weights)
            own.rollout.columns[WEIGHTS] = np.repeat(sample.weights, rows_per_item)
        return sample
