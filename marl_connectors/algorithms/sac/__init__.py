"""Soft actor-critic, Haarnoja et al. (2018), arXiv:1812.05905, and Christodoulou (2019), arXiv:1910.07207."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.sac.config import SACConfig as SACConfig
    from marl_connectors.algorithms.sac.learner import SAC as SAC

__getattr__, __dir__, __all__ = re_exports(__name__, "SAC", "SACConfig")
