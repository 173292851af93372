"""The module that MAPPO uses when the user brings none: PPO's policy, and a critic of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from marl_connectors.algorithms.mappo.model_config import MAPPOModelConfig
from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule
from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.initializers import Initializers
from marl_connectors.rl_module.layers import MLP, TrainingLayers


class DefaultMAPPORLModule(DefaultPPORLModule):
    """Acts on ``obs`` as PPO's module does; its values are those of ``critic_obs``, an MLP's."""

    stackable = True
    acting_layers = DefaultPPORLModule.acting_layers

    def setup(self) -> None:
        """Builds the policy, and the critic unless the module is for acting only."""
        given = self.model_config
        config: Any = given if isinstance(given, MAPPOModelConfig) else MAPPOModelConfig.of(given)
        self.model_config = dataclasses.replace(config, vf_share_layers=False)
        super().setup()

    def _make_value_layers(self, num_embeddings: int) -> None:
        config: Any = self.model_config
        if self.inference_only:
            return
        if config.critic_inputs < 1:
            raise ModuleError(
                f"{type(self).__name__}: model_config says critic_inputs={config.critic_inputs}. MAPPOConfig sets it; "
                f"outside of it, pass how many numbers 'critic_obs' has."
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
        """The policy's layers, and those of the critic."""
        layers = super().training_layers()
        return None if layers is None else layers._replace(values_read=Columns.CRITIC_OBS)

    def compute_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """``[B]`` value estimates of ``batch["critic_obs"]``."""
        return self.vf(self.vf_encoder(batch[Columns.CRITIC_OBS])).squeeze(-1)
