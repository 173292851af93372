"""Monotonic advantage re-weighted imitation learning, Wang et al. (2018)."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.marwil.config import MARWILConfig as MARWILConfig
    from marl_connectors.algorithms.marwil.marwil import MARWIL as MARWIL

__getattr__, __dir__, __all__ = re_exports(__name__, "MARWIL", "MARWILConfig")
