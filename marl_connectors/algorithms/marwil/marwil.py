"""MARWIL."""

from __future__ import annotations

from typing import Any

from marl_connectors.algorithms.algorithm import Algorithm
from marl_connectors.algorithms.marwil.config import MARWILConfig as MARWILConfig


class MARWIL(Algorithm):
    """Imitation of recorded episodes, weighted by advantages. ``MARWILConfig().build_algo()`` makes one.

    An iteration reads the recorded episodes of one train batch, and updates the modules with them. With
    ``live_fraction``, env runners sample a part of the batch.
    """

    config: MARWILConfig

    @classmethod
    def get_default_config(cls) -> MARWILConfig:
        """Returns a MARWILConfig with all defaults."""
        return MARWILConfig()

    def _sample_and_update(self) -> tuple[float, dict[str, Any]]:
        self.config.check_input()
        return super()._sample_and_update()
