"""The module that PPO uses when the user brings none: an MLP policy and an MLP value function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.apis import InferenceOnlyAPI, ValueFunctionAPI
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.layers import MLP
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.spaces import describe


class DefaultPPORLModule(RLModule, ValueFunctionAPI, InferenceOnlyAPI):
    """Encoder, policy head and value head for Box observations of any shape, and Discrete or Box actions.

    Reads ``obs``; writes ``action_dist_inputs``, and ``embeddings`` when training with shared value layers.
    """

    stackable = True

    def setup(self) -> None:
        """Builds the encoders and heads that ``model_config`` (a DefaultModelConfig or dict) describes."""
        space = self.observation_space
        if not isinstance(space, spaces.Box):
            raise ModuleError(
                f"{type(self).__name__}: the default module takes Box observations, not "
                f"{describe(space) if space is not None else None}. Turn them into a Box with an env-to-module "
                f"connector piece, or pass your own RLModule in .rl_module(rl_module_spec=...)."
            )
        config = DefaultModelConfig.of(self.model_config)
        self.config = config
        self.action_dist_cls = self.get_train_action_dist_cls()
        assert self.action_space is not None
        num_inputs = self.action_dist_cls.required_input_dim(self.action_space)
        self._is_box = isinstance(self.action_space, spaces.Box)
        self._free_log_std = config.free_log_std and self._is_box
        if self._free_log_std:
            num_inputs //= 2
            self.log_std = nn.Parameter(torch.zeros(num_inputs))
        self._obs_rank = len(space.shape)
        input_dim = int(np.prod(space.shape))
        self.encoder = MLP(input_dim, config.fcnet_hiddens, config.fcnet_activation)
        self.pi = self._head(self.encoder.output_dim, num_inputs, gain=0.01)
        if not self.inference_only:
            if not config.vf_share_layers:
                self.vf_encoder = MLP(input_dim, config.fcnet_hiddens, config.fcnet_activation)
            self.vf = self._head(self.encoder.output_dim, 1, gain=1.0)

    def _head(self, input_dim: int, output_dim: int, gain: float) -> MLP:
        sizes = (*self.config.head_fcnet_hiddens, output_dim)
        return MLP(input_dim, sizes, self.config.head_fcnet_activation, activate_last=False, last_gain=gain)

    def _flat(self, obs: Tensor) -> Tensor:
        if self._obs_rank != 1:
            obs = obs.flatten(-self._obs_rank) if self._obs_rank else obs.unsqueeze(-1)
        return obs if obs.dtype is torch.float32 else obs.float()

    def _action_dist_inputs(self, embeddings: Tensor) -> Tensor:
        outputs = self.pi(embeddings)
        if not self._is_box:
            return outputs
        bound = self.config.log_std_clip_param
        if self._free_log_std:
            mean, log_std = outputs, self.log_std.unsqueeze(-2).expand_as(outputs)
        else:
            mean, log_std = outputs.chunk(2, -1)
        return torch.cat([mean, log_std.clamp(-bound, bound)], -1)

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self._action_dist_inputs(self.encoder(self._flat(batch[Columns.OBS])))}

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings = self.encoder(self._flat(batch[Columns.OBS]))
        outputs = {Columns.ACTION_DIST_INPUTS: self._action_dist_inputs(embeddings)}
        if self.config.vf_share_layers:
            outputs[Columns.EMBEDDINGS] = embeddings
        return outputs

    def compute_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """``[B]`` value estimates of ``batch["obs"]``; reuses ``embeddings`` if the value layers are shared."""
        if not self.config.vf_share_layers:
            embeddings = self.vf_encoder(self._flat(batch[Columns.OBS]))
        elif embeddings is None:
            embeddings = self.encoder(self._flat(batch[Columns.OBS]))
        return self.vf(embeddings).squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        """The value layers."""
        return ["vf"] if self.config.vf_share_layers else ["vf", "vf_encoder"]
