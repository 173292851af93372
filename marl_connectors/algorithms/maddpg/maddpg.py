"""MADDPG and MATD3."""

from __future__ import annotations

from marl_connectors.algorithms.maddpg.config import MADDPGConfig, MATD3Config
from marl_connectors.algorithms.maddpg.learner import MADDPGLearner
from marl_connectors.algorithms.off_policy.off_policy_algorithm import OffPolicyAlgorithm
from marl_connectors.algorithms.off_policy.team_replay_training import TeamReplayTraining
from marl_connectors.replay_buffers.replay_buffer import JointReplayBuffer, PrioritizedJointReplayBuffer


class MADDPGReplayTraining(TeamReplayTraining):
    """Keeps the steps of all agents, each with rewards of its own."""

    buffer_classes = (JointReplayBuffer, PrioritizedJointReplayBuffer)


class MADDPG(OffPolicyAlgorithm):
    """Deterministic policies with central critics. ``MADDPGConfig().build_algo()`` makes an object of this class."""

    config: MADDPGConfig
    learner: MADDPGLearner
    replay_class = MADDPGReplayTraining

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
