"""Multi-agent PPO with a centralised critic, Yu et al. (2022), arXiv:2103.01955."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.mappo.config import MAPPOConfig as MAPPOConfig
    from marl_connectors.algorithms.mappo.mappo import MAPPO as MAPPO

__getattr__, __dir__, __all__ = re_exports(__name__, "MAPPO", "MAPPOConfig")
