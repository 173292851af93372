"""The default module of MADDPG: a policy and one or two central critics, with their target networks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from marl_connectors.algorithms.sac.rl_module import TwinCritics, by_critic
from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS, make_target_network
from marl_connectors.rl_module.default_model_config import Activation, DefaultModelConfig, Sizes
from marl_connectors.rl_module.distributions import Distribution, TorchCategorical, TorchClippedGaussian
from marl_connectors.rl_module.encoders import Encoder, make_head
from marl_connectors.rl_module.layers import MLP, RecurrentLayer
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.spaces import describe
from marl_connectors.validators import Switch, integer

POLICY_OUTPUTS: Final = "policy_outputs"
"""``[B, n]``, the outputs of the policy head, before ``tanh`` and masks."""
LEAST_STDDEV: Final = 1e-8
"""The least standard deviation of the noise when exploring, of which there is a logarithm."""


@dataclasses.dataclass
class MADDPGModelConfig(DefaultModelConfig):
    """The settings of MADDPG's default modules. Policies and critics have layers like these, and share none.

    Attributes:
        fcnet_hiddens: As in DefaultModelConfig.
        fcnet_activation: As in DefaultModelConfig.
        twin_q: Whether there are two critics. ``MADDPGConfig`` sets it.
        critic_inputs: The number of the critic's inputs beside the action. ``MADDPGConfig`` sets it.
    """

    fcnet_hiddens: Sizes = (64, 64)
    fcnet_activation: Activation = "relu"
    twin_q: Switch = False
    critic_inputs: Annotated[int, integer(min=0)] = 0


class DefaultMADDPGRLModule(RLModule, TwinCritics):
    """A policy that reads ``obs``, and critics that read ``critic_obs`` and an action.

    The policy of a Box is deterministic: ``action_dist_inputs`` are actions, and the logarithm of the standard
    deviation of the noise when exploring. For a Discrete space they are logits.

    Attributes:
        log_stddev: ``[1]``, the logarithm of that standard deviation; the learner sets it.
    """

    stackable = True
    model_config_class = MADDPGModelConfig
    action_distribution = None  # actions are always in [-1, 1]

    def setup(self) -> None:
        """Builds the networks that ``model_config`` (a MADDPGModelConfig or dict) describes."""
        config = self.config = MADDPGModelConfig.of(self.model_config)
        self._check(config)
        assert self.observation_space is not None and self.action_space is not None
        self._is_discrete = isinstance(self.action_space, spaces.Discrete)
        num_actions = spaces.flatdim(self.action_space)
        self.log_stddev = nn.Parameter(torch.full((1,), math.log(LEAST_STDDEV)), requires_grad=False)
        self.encoder = Encoder(self.observation_space, config)
        self.pi = make_head(self.encoder.output_dim, num_actions, config, gain=0.01)
        if self.inference_only:
            return
        read = spaces.Box(-np.inf, np.inf, (config.critic_inputs,))
        judged = spaces.Box(-np.inf, np.inf, (num_actions,))
        self.make_critics(read, judged)

    def _check(self, config: Any) -> None:
        space, name = self.action_space, type(self).__name__
        self.check_networks(instead="MAPPO")
        if isinstance(space, spaces.Box) and not space.is_bounded("both"):
            raise ModuleError(
                f"{name}: its actions are in [-1, 1], which is stretched to the space's range, but {describe(space)} "
                f"has no bounds. Give the action space finite bounds."
            )
        if not self.inference_only and config.critic_inputs < 1:
            raise ModuleError(
                f"{name}: model_config has critic_inputs={config.critic_inputs}, expected at least 1. MADDPGConfig "
                f"sets it. Without MADDPGConfig, pass the number of values of 'critic_obs'."
            )

    def _dist_cls_for(self, action_space: Space) -> type[Distribution]:
        return TorchCategorical if isinstance(action_space, spaces.Discrete) else TorchClippedGaussian

    def acting_layers(self) -> Sequence[MLP | RecurrentLayer]:
        """Returns the encoder and the policy head."""
        return self.encoder, self.pi

    def acting_outputs(
        self, modules: Sequence[Any], counts: Sequence[int]
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Returns what turns outputs into actions with the logarithm of their noise, for a Box."""
        if self._is_discrete:
            return None
        noise = np.repeat([module.log_stddev.detach().numpy() for module in modules], counts, axis=0)

        def with_noise(outputs: np.ndarray) -> np.ndarray:
            actions = np.tanh(outputs)
            own = noise.reshape(*outputs.shape[:-1], 1)
            return np.concatenate([actions, np.broadcast_to(own, actions.shape)], -1)

        return with_noise

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self._inputs(self.pi(self.encoder(batch[Columns.OBS])))}

    def _inputs(self, outputs: Tensor) -> Tensor:
        """Returns ``action_dist_inputs`` of the policy head's outputs."""
        if self._is_discrete:
            return outputs
        noise = self.log_stddev if self.log_stddev.dim() == 1 else self.log_stddev.unsqueeze(-2)  # stacked: [M, 1, 1]
        return torch.cat([outputs.tanh(), noise.expand(outputs.shape)], -1)

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        outputs = self.pi(self.encoder(batch[Columns.OBS]))
        return {Columns.ACTION_DIST_INPUTS: self._inputs(outputs), POLICY_OUTPUTS: outputs}

    def compute_q_values(self, critic_obs: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """Returns ``qf_preds`` and, with ``twin_q``, ``qf_twin_preds``: ``[B]`` values of ``[B, n]`` actions."""
        return by_critic("preds", (critic(critic_obs, actions) for critic in self.critics()))

    def compute_target_q_values(self, critic_obs: Tensor, actions: Tensor) -> dict[str, Tensor]:
        """Returns the same as ``compute_q_values``, by the target networks."""
        return by_critic("preds", (critic(critic_obs, actions) for critic in self.target_critics()))

    def make_target_networks(self) -> None:
        """Makes copies of the policy and the critics."""
        self.target_encoder, self.target_pi = make_target_network(self.encoder), make_target_network(self.pi)
        super().make_target_networks()

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Returns the policy and the critics with their copies."""
        of_policy = (self.encoder, self.target_encoder), (self.pi, self.target_pi)
        return [*of_policy, *super().get_target_network_pairs()]

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ``target_network_action_dist_inputs`` of ``obs``."""
        return {
            TARGET_NETWORK_ACTION_DIST_INPUTS: self._inputs(self.target_pi(self.target_encoder(batch[Columns.OBS])))
        }

    def get_non_inference_attributes(self) -> list[str]:
        """Returns the critics and the target networks."""
        return [*super().get_non_inference_attributes(), "target_encoder", "target_pi"]
