"""MADDPG and MATD3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors.algorithms.build import agents_by_module
from marl_connectors.algorithms.maddpg.config import MADDPGConfig, MATD3Config
from marl_connectors.algorithms.maddpg.learner import MADDPGLearner
from marl_connectors.algorithms.off_policy.off_policy_algorithm import OffPolicyAlgorithm
from marl_connectors.algorithms.off_policy.replay_training import ReplayTraining
from marl_connectors.replay_buffers.joint_replay_buffer import JointReplayBuffer
from marl_connectors.replay_buffers.prioritized_team_replay_buffer import PrioritizedJointReplayBuffer
from marl_connectors.replay_buffers.replay_sample import ReplaySample
from marl_connectors.typing import ModuleID


class JointReplayTraining(ReplayTraining):
    """Keeps the steps of all agents together."""

    buffer_classes = (JointReplayBuffer, PrioritizedJointReplayBuffer)
    can_be_mixed = False

    def buffer_arguments(self) -> dict[str, Any]:
        """Returns the arguments of the replay buffer that do not come from ``replay_buffer_config``."""
        return {**super().buffer_arguments(), "agents": agents_by_module(self.config, self.setup)}

    def draw(self, module_ids: Sequence[ModuleID]) -> ReplaySample:
        """Draws env steps of all agents."""
        buffer: Any = self.buffer
        size = self.config.train_batch_size_per_learner
        return buffer.sample(size, n_step=self.config.n_step, module_ids=module_ids)


class MADDPG(OffPolicyAlgorithm):
    """Deterministic policies with central critics. ``MADDPGConfig().build_algo()`` makes an object of this class."""

    config: MADDPGConfig
    learner: MADDPGLearner
    replay_class = JointReplayTraining

    @classmethod
    def get_default_config(cls) -> MADDPGConfig:
        """Returns a MADDPGConfig with all defaults."""
        return MADDPGConfig()


class MATD3(MADDPG):
    """MADDPG with twin critics. ``MATD3Config().build_algo()`` makes an object of this class."""

    @classmethod
    def get_default_config(cls) -> MATD3Config:
        """Returns a MATD3Config with all defaults."""
        return MATD3Config()
