"""DQN."""

from __future__ import annotations

from marl_connectors.algorithms.dqn.config import DQNConfig as DQNConfig
from marl_connectors.algorithms.dqn.learner import DQNLearner
from marl_connectors.algorithms.off_policy.off_policy_algorithm import OffPolicyAlgorithm


class DQN(OffPolicyAlgorithm):
    """Deep Q-learning. ``DQNConfig().build_algo()`` makes an object of this class."""

    config: DQNConfig
    learner: DQNLearner

    @classmethod
    def get_default_config(cls) -> DQNConfig:
        """Returns a DQNConfig with all defaults."""
        return DQNConfig()
