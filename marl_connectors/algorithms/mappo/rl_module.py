"""The default module of MAPPO, which has PPO's policy and a separate critic, and its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from torch import Tensor

from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.default_model_config import SIZES, DefaultModelConfig
from marl_connectors.rl_module.layers import MLP, Initializers, TrainingLayers
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


class DefaultMAPPORLModule(DefaultPPORLModule):
    """Acts on ``obs`` as PPO's module does. An MLP computes its value estimates from ``critic_obs``."""

    stackable = True
    acting_layers = DefaultPPORLModule.acting_layers
    get_non_inference_attributes = DefaultPPORLModule.get_non_inference_attributes

    def setup(self) -> None:
        """Builds the policy, and the critic unless the module is for acting only."""
        self.model_config = dataclasses.replace(MAPPOModelConfig.of(self.model_config), vf_share_layers=False)
        super().setup()

    def _make_value_layers(self, num_embeddings: int) -> None:
        config: Any = self.model_config
        if self.inference_only:
            return
        if config.critic_inputs < 1:
            raise ModuleError(
                f"{type(self).__name__}: model_config has critic_inputs={config.critic_inputs}, expected at least 1. "
                f"MAPPOConfig sets it. Without MAPPOConfig, pass the number of values of 'critic_obs'."
            )
        hiddens = config.fcnet_hiddens if config.critic_hiddens is None else config.critic_hiddens
        self.vf_encoder = MLP(
            config.critic_inputs,
            hiddens,
            config.fcnet_activation,
            initializers=Initializers.of(config, "fcnet"),
            use_layernorm=config.fcnet_use_layernorm,
        )
        self.vf = self._head(self.vf_encoder.output_dim, 1, gain=1.0)

    def training_layers(self) -> TrainingLayers | None:
        """Returns the layers of the policy and of the critic."""
        layers = super().training_layers()
        return None if layers is None else layers._replace(values_read=Columns.CRITIC_OBS)

    def compute_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """Returns ``[B]`` value estimates of ``batch["critic_obs"]``."""
        return self.vf(self.vf_encoder(batch[Columns.CRITIC_OBS])).squeeze(-1)
