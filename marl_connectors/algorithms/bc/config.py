"""BCConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.marwil.config import MARWILConfig
from marl_connectors.errors import ConfigError

if TYPE_CHECKING:
    from marl_connectors.algorithms.bc.bc import BC


class BCConfig(MARWILConfig):
    """The settings of behaviour cloning, which is MARWIL with ``beta=0``.

    Modules are the default ones of PPO. Their value heads are not trained.
    """

    beta = 0.0

    _algo_class = "marl_connectors.algorithms.bc.bc:BC"

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> BC: ...
        def build(self, env: Any = None) -> BC: ...

    def validate(self) -> None:
        """Checks in addition that advantages play no part, and that all actions to imitate are recorded ones."""
        super().validate()
        who = type(self).__name__
        if self.beta:
            raise ConfigError(
                f"{who}: beta={self.beta:g} weights actions by their advantages, which behaviour cloning does not. Use "
                f"MARWILConfig (--algo marwil on the command line), or leave beta out."
            )
        if self.live_fraction:
            raise ConfigError(
                f"{who}: live_fraction={self.live_fraction:g} would let the policy imitate its own actions. Leave it "
                f"out, or use MARWILConfig (--algo marwil on the command line), which prefers the better ones among "
                f"them."
            )
