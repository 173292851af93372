"""MAPPO."""

from __future__ import annotations

from marl_connectors.algorithms.mappo.config import MAPPOConfig as MAPPOConfig
from marl_connectors.algorithms.ppo.ppo import PPO


class MAPPO(PPO):
    """PPO with a centralised critic. ``MAPPOConfig().build_algo()`` makes an object of this class."""

    config: MAPPOConfig

    @classmethod
    def get_default_config(cls) -> MAPPOConfig:
        """Returns a MAPPOConfig with all defaults."""
        return MAPPOConfig()
