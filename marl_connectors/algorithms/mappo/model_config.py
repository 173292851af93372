"""Settings of MAPPO's default modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

from marl_connectors.rl_module.default_model_config import SIZES, DefaultModelConfig
from marl_connectors.validators import integer, optional


@dataclasses.dataclass
class MAPPOModelConfig(DefaultModelConfig):
    """PPO's settings of modules, and those of the critic, which shares no layers: ``vf_share_layers`` is ignored.

    Attributes:
        critic_hiddens: The sizes of the critic's hidden layers; None for ``fcnet_hiddens``.
        critic_inputs: The number of the critic's inputs. The algorithm sets it.
    """

    critic_hiddens: Annotated[Sequence[int] | None, optional(SIZES)] = None
    critic_inputs: Annotated[int, integer(min=0)] = 0
