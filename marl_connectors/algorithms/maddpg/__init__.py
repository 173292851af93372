"""Actor-critics with central critics: Lowe et al. (2017), arXiv:1706.02275, and Ackermann et al. (2019), 1910.01465."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.maddpg.config import MADDPGConfig as MADDPGConfig
    from marl_connectors.algorithms.maddpg.config import MATD3Config as MATD3Config
    from marl_connectors.algorithms.maddpg.learner import MADDPG as MADDPG
    from marl_connectors.algorithms.maddpg.learner import MATD3 as MATD3

__getattr__, __dir__, __all__ = re_exports(__name__, "MADDPG", "MADDPGConfig", "MATD3", "MATD3Config")
