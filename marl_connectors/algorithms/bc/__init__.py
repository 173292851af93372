"""Behaviour cloning: the log-likelihood of recorded actions is maximised."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.bc.bc import BC as BC
    from marl_connectors.algorithms.bc.config import BCConfig as BCConfig

__getattr__, __dir__, __all__ = re_exports(__name__, "BC", "BCConfig")
