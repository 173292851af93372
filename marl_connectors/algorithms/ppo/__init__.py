"""Proximal policy optimisation, Schulman et al. (2017), arXiv:1707.06347."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.ppo.config import PPOConfig as PPOConfig
    from marl_connectors.algorithms.ppo.ppo import PPO as PPO

__getattr__, __dir__, __all__ = re_exports(__name__, "PPO", "PPOConfig")
