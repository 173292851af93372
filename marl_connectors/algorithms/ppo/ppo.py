"""PPO."""

from __future__ import annotations

from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.ppo.config import PPOConfig


class PPO(Algorithm):
    """Proximal policy optimisation. ``PPOConfig().build_algo()`` makes an object of this class."""

    @classmethod
    def get_default_config(cls) -> PPOConfig:
        """Returns a PPOConfig with all defaults."""
        return PPOConfig()
