"""SAC."""

from __future__ import annotations

from marl_connectors.algorithms.off_policy.off_policy_algorithm import OffPolicyAlgorithm
from marl_connectors.algorithms.sac.config import SACConfig as SACConfig
from marl_connectors.algorithms.sac.learner import SACLearner


class SAC(OffPolicyAlgorithm):
    """Soft actor-critic. ``SACConfig().build_algo()`` makes an object of this class."""

    config: SACConfig
    learner: SACLearner

    @classmethod
    def get_default_config(cls) -> SACConfig:
        """Returns a SACConfig with all defaults."""
        return SACConfig()
