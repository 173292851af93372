"""Settings of MAPPO's default modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from marl_connectors.rl_module.default_model_config import DefaultModelConfig


@dataclasses.dataclass
class MAPPOModelConfig(DefaultModelConfig):
    """As for PPO, with the critic's own settings. The critic shares no layers, whatever ``vf_share_layers`` says.

    Attributes:
        critic_hiddens: Sizes of the critic's hidden layers; None for ``fcnet_hiddens``.
        critic_inputs: How many numbers it sees. The algorithm sets it.
    """

    critic_hiddens: Sequence[int] | None = None
    critic_inputs: int = 0
