"""Settings of MAPPO's default modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from marl_connectors.rl_module.default_model_config import SIZES, DefaultModelConfig
from marl_connectors.validators import integer, optional


@dataclasses.dataclass
class MAPPOModelConfig(DefaultModelConfig):
    """As for PPO, with the critic's own settings. The critic shares no layers, whatever ``vf_share_layers`` says.

    Attributes:
        critic_hiddens: Sizes of the critic's hidden layers; None for ``fcnet_hiddens``.
        critic_inputs: How many numbers it sees. The algorithm sets it.
    """

    critic_hiddens: Annotated[Sequence[int] | None, optional(SIZES)] = None
    critic_inputs: Annotated[int, integer(min=0)] = 0
