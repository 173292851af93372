"""BC."""

from __future__ import annotations

from marl_connectors.algorithms.bc.config import BCConfig as BCConfig
from marl_connectors.algorithms.marwil.marwil import MARWIL


class BC(MARWIL):
    """Imitation of recorded episodes. ``BCConfig().build_algo()`` makes an object of this class."""

    @classmethod
    def get_default_config(cls) -> BCConfig:
        """Returns a BCConfig with all defaults."""
        return BCConfig()
