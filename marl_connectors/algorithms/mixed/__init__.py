"""Runs in which modules learn with different algorithms."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.algorithms.mixed.config import MixedConfig as MixedConfig
    from marl_connectors.algorithms.mixed.mixed import Mixed as Mixed

__getattr__, __dir__, __all__ = re_exports(__name__, "Mixed", "MixedConfig")
