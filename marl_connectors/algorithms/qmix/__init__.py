"""Value decomposition for teams: QMIX, Rashid et al. (2018), arXiv:1803.11485, and VDN, Sunehag et al. (2018)."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.qmix.config import QMIXConfig as QMIXConfig
    from marl_connectors.algorithms.qmix.config import VDNConfig as VDNConfig
    from marl_connectors.algorithms.qmix.learner import QMIX as QMIX
    from marl_connectors.algorithms.qmix.learner import VDN as VDN

__getattr__, __dir__, __all__ = re_exports(__name__, "QMIX", "QMIXConfig", "VDN", "VDNConfig")
