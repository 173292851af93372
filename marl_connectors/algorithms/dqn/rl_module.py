"""The default module of DQN: an encoder, and a head for the values of all actions, with their target networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI, make_target_network
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.distributions import Distribution, EpsilonGreedy
from marl_connectors.rl_module.encoders import Encoder, make_head, recurrent_layer
from marl_connectors.rl_module.layers import MLP, RecurrentLayer, TrainingLayers
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.spaces import describe
from marl_connectors.validators import Switch

QF_PREDS = "qf_preds"
"""``[B, n]`` the values of all actions."""


@dataclasses.dataclass
class DQNModelConfig(DefaultModelConfig):
    """The settings of DQN's default modules.

    Attributes:
        dueling: Whether a value of the observation and advantages of the actions are computed by heads of their own
            (Wang et al., 2016). ``DQNConfig`` sets it.
    """

    dueling: Switch = True


class DefaultDQNRLModule(RLModule, TargetNetworkAPI, InferenceOnlyAPI):
    """An encoder and a head for the values of the actions of a Discrete space, with their target networks.

    The module reads ``obs``. When acting, it writes ``action_dist_inputs``: the head's outputs and epsilon, as
    EpsilonGreedy expects them. When training, it writes ``qf_preds``. With ``dueling``, the head that acts computes
    advantages, which order the actions as their values do. With an LSTM or GRU after the encoder, all columns have a
    time axis, ``[B, T, ...]``, and the module also reads ``state_in`` and writes ``state_out``.

    Attributes:
        epsilon: ``[1]``, the probability of a random action when exploring; the learner sets it.
    """

    stackable = True
    model_config_class = DQNModelConfig

    def setup(self) -> None:
        """Builds the encoder and the heads that ``model_config`` (a DQNModelConfig or dict) describes."""
        config = self.config = DQNModelConfig.of(self.model_config)
        if self.observation_space is None or not isinstance(self.action_space, spaces.Discrete):
            what = "none" if self.action_space is None else describe(self.action_space)
            raise ModuleError(
                f"{type(self).__name__}: expected an observation space and a Discrete action space, but the action "
                f"space is {what}. DQN chooses among single actions: flatten the action space in a wrapper of the "
                f"environment, or use SAC or PPO."
            )
        self.epsilon = nn.Parameter(torch.ones(1), requires_grad=False)
        self.encoder = Encoder(self.observation_space, config)
        self.rnn = recurrent_layer(self.encoder.output_dim, config)
        self.af = self._head(int(self.action_space.n))
        if self.is_dueling and not self.inference_only:
            self.vf = self._head(1)

    def _head(self, output_dim: int) -> MLP:
        return make_head(
            self.encoder.output_dim if self.rnn is None else self.rnn.size, output_dim, self.config, gain=1.0
        )

    def _default_action_dist_cls(self) -> type[Distribution]:
        return EpsilonGreedy

    def acting_layers(self) -> Sequence[MLP | RecurrentLayer]:
        """Returns the encoder, the recurrent layer if there is one, and the head that acts."""
        return (self.encoder, self.af) if self.rnn is None else (self.encoder, self.rnn, self.af)

    def get_initial_state(self) -> dict[str, Any]:
        """Returns zeros for the LSTM or GRU; ``{}`` without one."""
        return {} if self.rnn is None else self.rnn.initial_state()

    def acting_outputs(
        self, modules: Sequence[Any], counts: Sequence[int]
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Returns what adds epsilon to the head's outputs."""
        epsilon = np.repeat([module.epsilon.detach().numpy() for module in modules], counts, axis=0)
        return lambda outputs: np.concatenate([outputs, epsilon.reshape(*outputs.shape[:-1], 1)], -1)

    def training_layers(self) -> TrainingLayers | None:
        """Returns the layers from ``obs`` to the head that acts and, with ``dueling``, to the value head.

        None with a recurrent layer.
        """
        if self.rnn is not None:
            return None
        if not self.is_dueling:
            layers = [self.encoder, self.af]
            return TrainingLayers(layers, layers)
        if not self.encoder.layers:
            return TrainingLayers([self.encoder, self.af], [self.encoder, self.vf])
        return TrainingLayers([self.af], [self.vf], [self.encoder])

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings, state = _embedded(batch, self.encoder, self.rnn)
        outputs = self.af(embeddings)
        epsilon = self.epsilon
        if epsilon.dim() == 2:  # stacked: one of each module
            epsilon = epsilon.view(-1, *[1] * (outputs.dim() - 1))
        found = {Columns.ACTION_DIST_INPUTS: torch.cat([outputs, epsilon.expand(*outputs.shape[:-1], 1)], -1)}
        return found if state is None else {**found, Columns.STATE_OUT: state}

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {QF_PREDS: self.compute_q_values(batch)}

    @property
    def is_dueling(self) -> bool:
        """Whether the values of actions are the sum of an observation's value and the actions' advantages."""
        return self.config.dueling

    def compute_q_values(self, batch: Mapping[str, Any]) -> Tensor:
        """Returns ``[B, n]``, the values of all actions in ``batch["obs"]``."""
        embeddings, _ = _embedded(batch, self.encoder, self.rnn)
        return q_values(self.af(embeddings), self.vf(embeddings) if self.is_dueling else None)

    def make_target_networks(self) -> None:
        """Makes copies of the encoder, the recurrent layer and the heads."""
        self.target_encoder, self.target_af = make_target_network(self.encoder), make_target_network(self.af)
        self.target_rnn = None if self.rnn is None else make_target_network(self.rnn)
        if self.is_dueling:
            self.target_vf = make_target_network(self.vf)

    def get_target_network_pairs(self) -> list[tuple[nn.Module, nn.Module]]:
        """Returns the encoder, the recurrent layer and the heads with their copies."""
        pairs: list[tuple[nn.Module, nn.Module]] = [(self.encoder, self.target_encoder), (self.af, self.target_af)]
        if self.rnn is not None and self.target_rnn is not None:
            pairs.append((self.rnn, self.target_rnn))
        return [*pairs, (self.vf, self.target_vf)] if self.is_dueling else pairs

    def forward_target(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ``qf_preds`` of the target networks."""
        embeddings, _ = _embedded(batch, self.target_encoder, self.target_rnn)
        return {QF_PREDS: q_values(self.target_af(embeddings), self.target_vf(embeddings) if self.is_dueling else None)}

    def get_non_inference_attributes(self) -> list[str]:
        """Returns the value head and the target networks."""
        return ["vf", "target_encoder", "target_rnn", "target_af", "target_vf"]


def _embedded(batch: Mapping[str, Any], encoder: nn.Module, rnn: nn.Module | None) -> tuple[Tensor, Any]:
    """Returns the inputs of the heads, and the state after the last step; None without a recurrent layer."""
    embeddings = encoder(batch[Columns.OBS])
    return (embeddings, None) if rnn is None else rnn(embeddings, batch[Columns.STATE_IN])


def q_values(advantages: Tensor, value: Tensor | None) -> Tensor:
    """Returns ``[..., n]`` values of actions: of advantages and a value ``[..., 1]``, or as they are if it is None."""
    return advantages if value is None else value + advantages - advantages.mean(-1, keepdim=True)


DefaultDQNTorchRLModule = DefaultDQNRLModule
"""RLlib's name."""
