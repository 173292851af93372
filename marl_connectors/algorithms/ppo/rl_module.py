"""The default module of PPO: an encoder, a policy head and a value head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor, nn

from marl_connectors.array_functions import namespace, split
from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.apis import InferenceOnlyAPI, ValueFunctionAPI
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.rl_module.distributions import (
    Distribution,
    TorchDiagGaussian,
    TorchMultiDistribution,
    default_distribution,
)
from marl_connectors.rl_module.encoders import Encoder, make_head, recurrent_layer
from marl_connectors.rl_module.layers import MLP, RecurrentLayer, TrainingLayers
from marl_connectors.rl_module.rl_module import RLModule


class DefaultPPORLModule(RLModule, ValueFunctionAPI, InferenceOnlyAPI):
    """An encoder, an optional LSTM or GRU, a policy head and a value head, for all spaces with a fixed size.

    The module reads ``obs``, and writes ``action_dist_inputs``, and ``embeddings`` when training with shared value
    layers. With an LSTM or GRU all columns have a time axis, ``[B, T, ...]``, and the module also reads ``state_in``
    and writes ``state_out``. The state is that of the layer, or ``{"actor": ..., "critic": ...}`` if the value function
    has its own recurrent layer, which a module for acting only lacks.
    """

    stackable = True

    def setup(self) -> None:
        """Builds the encoders and heads that ``model_config`` (a DefaultModelConfig or dict) describes."""
        config = self.config = DefaultModelConfig.of(self.model_config)
        if self.observation_space is None or self.action_space is None:
            raise ModuleError(f"{type(self).__name__}: needs an observation_space and an action_space.")
        dist_cls = self.get_train_action_dist_cls()
        self._log_stds = LogStds(dist_cls, self.action_space, free=config.free_log_std, bound=config.log_std_clip_param)
        num_free = self._log_stds.num_free
        self.log_std = nn.Parameter(torch.zeros(num_free)) if num_free else None
        self.encoder, self.rnn, num_embeddings = self._make_encoder()
        self.pi = self._head(num_embeddings, self._log_stds.num_outputs, gain=0.01)
        self.vf_rnn: RecurrentLayer | None = None
        self._make_value_layers(num_embeddings)

    def _make_value_layers(self, num_embeddings: int) -> None:
        """Builds the value head and, unless it shares layers with the policy, the layers before it."""
        if self.inference_only:
            return
        if not self.config.vf_share_layers:
            self.vf_encoder, self.vf_rnn, _ = self._make_encoder()
        self.vf = self._head(num_embeddings, 1, gain=1.0)

    def _make_encoder(self) -> tuple[Encoder, RecurrentLayer | None, int]:
        assert self.observation_space is not None
        encoder = Encoder(self.observation_space, self.config)
        rnn = recurrent_layer(encoder.output_dim, self.config)
        return encoder, rnn, encoder.output_dim if rnn is None else rnn.size

    def _head(self, input_dim: int, output_dim: int, gain: float) -> MLP:
        return make_head(input_dim, output_dim, self.config, gain)

    def _dist_cls_for(self, action_space: Space) -> type[Distribution]:
        return default_distribution(action_space, DefaultModelConfig.of(self.model_config).action_distribution)

    def get_initial_state(self) -> dict[str, Any]:
        """Returns zeros for the LSTM or GRU; ``{}`` without one."""
        if self.rnn is None:
            return {}
        own = self.rnn.initial_state()
        return own if self.vf_rnn is None else {"actor": own, "critic": self.vf_rnn.initial_state()}

    def acting_layers(self) -> Sequence[MLP | RecurrentLayer]:
        """Returns the encoder, the recurrent layer if there is one, and the policy head."""
        return (self.encoder, self.pi) if self.rnn is None else (self.encoder, self.rnn, self.pi)

    def acting_states(self) -> Mapping[str, Sequence[MLP | RecurrentLayer]]:
        """Returns the layers of the policy's and the value function's states, if the latter has a recurrent layer."""
        return {} if self.vf_rnn is None else {"actor": (), "critic": (self.vf_encoder, self.vf_rnn)}

    def acting_outputs(
        self, modules: Sequence[Any], counts: Sequence[int]
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Returns what inserts the log standard deviations and clips them to their bounds, if there are any."""
        if self._log_stds.leave_outputs:
            return None
        free = None if self.log_std is None else [module.log_std.detach().numpy() for module in modules]
        rows = None if free is None else np.repeat(free, counts, axis=0)
        return lambda outputs: self._log_stds.inputs(outputs, rows)

    def training_layers(self) -> TrainingLayers | None:
        """Returns the layers from ``obs`` to the policy head and the value head; None with a recurrent layer."""
        if self.rnn is not None or self.vf_rnn is not None:
            return None
        to_inputs = None if self._log_stds.leave_outputs else self._log_stds.inputs
        if self.config.vf_share_layers:
            shared = [self.encoder] if self.encoder.layers else []
            policy, values = ([self.pi], [self.vf]) if shared else ([self.encoder, self.pi], [self.encoder, self.vf])
            return TrainingLayers(policy, values, shared, to_inputs=to_inputs, log_std=self.log_std)
        policy, values = [self.encoder, self.pi], [self.vf_encoder, self.vf]
        return TrainingLayers(policy, values, to_inputs=to_inputs, log_std=self.log_std)

    def _forward(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings, state = self._embed(batch)
        outputs: dict[str, Any] = {Columns.ACTION_DIST_INPUTS: self._action_dist_inputs(embeddings)}
        if state is not None:
            if self.vf_rnn is not None:
                state = {"actor": state, "critic": self._embed_for_values(batch)[1]}
            outputs[Columns.STATE_OUT] = state
        return outputs

    def _forward_train(self, batch: Mapping[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings, _ = self._embed(batch)
        outputs = {Columns.ACTION_DIST_INPUTS: self._action_dist_inputs(embeddings)}
        if self.config.vf_share_layers:
            outputs[Columns.EMBEDDINGS] = embeddings
        return outputs

    def _embed(self, batch: Mapping[str, Any]) -> tuple[Tensor, Any]:
        """Returns the inputs of the policy head, and the next state."""
        embeddings = self.encoder(batch[Columns.OBS])
        if self.rnn is None:
            return embeddings, None
        state = batch[Columns.STATE_IN]
        return self.rnn(embeddings, state if self.vf_rnn is None else state["actor"])

    def _embed_for_values(self, batch: Mapping[str, Any]) -> tuple[Tensor, Any]:
        """Returns the inputs of the value head, and the next state."""
        if self.config.vf_share_layers:
            return self._embed(batch)
        embeddings = self.vf_encoder(batch[Columns.OBS])
        return (embeddings, None) if self.vf_rnn is None else self.vf_rnn(embeddings, batch[Columns.STATE_IN]["critic"])

    def _action_dist_inputs(self, embeddings: Tensor) -> Tensor:
        return self._log_stds.inputs(self.pi(embeddings), self.log_std)

    def compute_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        """Returns ``[B]`` value estimates of ``batch["obs"]``; uses ``embeddings`` if the value layers are shared."""
        if embeddings is None or not self.config.vf_share_layers:
            embeddings, _ = self._embed_for_values(batch)
        return self.vf(embeddings).squeeze(-1)

    def get_non_inference_attributes(self) -> list[str]:
        """Returns the value layers. Without them, the state is that of the policy's recurrent layer."""
        return ["vf"] if self.config.vf_share_layers else ["vf", "vf_encoder", "vf_rnn"]


class InputRun(NamedTuple):
    """Inputs of a distribution that stand side by side and are of one kind.

    Attributes:
        is_log_std: Whether they are logarithms of standard deviations.
        length: Their number.
    """

    is_log_std: bool
    length: int


def _runs_of(dist_cls: type[Distribution], num_inputs: int) -> list[InputRun]:
    """Returns the runs of all inputs of a distribution, in order."""
    if issubclass(dist_cls, TorchDiagGaussian):
        return [InputRun(False, num_inputs // 2), InputRun(True, num_inputs // 2)]
    if issubclass(dist_cls, TorchMultiDistribution):
        return [run for part in dist_cls.parts for run in _runs_of(part.dist_cls, part.num_inputs)]
    return [InputRun(False, num_inputs)]


class LogStds:
    """Turns the outputs of a policy head into ``action_dist_inputs``.

    Attributes:
        num_outputs: The number of outputs of the head.
        num_free: The number of log standard deviations that are a parameter instead of outputs.
        leave_outputs: Whether the head's outputs are the ``action_dist_inputs``.
    """

    def __init__(self, dist_cls: type[Distribution], action_space: Space, *, free: bool, bound: float):
        """Finds the log standard deviations among the inputs.

        Args:
            dist_cls: The action distribution.
            action_space: The action space.
            free: Whether log standard deviations are a parameter instead of outputs of the head.
            bound: Log standard deviations are clipped to ``[-bound, bound]``.
        """
        num_inputs = dist_cls.required_input_dim(action_space)
        self._runs = _runs_of(dist_cls, num_inputs)
        num_log_stds = sum(run.length for run in self._runs if run.is_log_std)
        self._bound = bound
        self.num_free = num_log_stds if free else 0
        self.num_outputs = num_inputs - self.num_free
        self.leave_outputs = not num_log_stds

    def inputs(self, outputs: Any, parameter: Any) -> Any:
        """Returns ``[..., n]`` inputs, for arrays and tensors.

        Args:
            outputs: The head's ``[..., num_outputs]``.
            parameter: ``[num_free]``, or ``[M, num_free]`` for ``[M, ..., num_outputs]``; None if the head outputs the
                log standard deviations.
        """
        if self.leave_outputs:
            return outputs
        xp, runs = namespace(outputs), self._runs
        if parameter is None:
            parts = split(outputs, [run.length for run in runs])
        else:
            if parameter.ndim == 2:
                parameter = parameter.reshape(len(parameter), *[1] * (outputs.ndim - 2), -1)
            free = xp.broadcast_to(parameter, (*outputs.shape[:-1], parameter.shape[-1]))
            lengths = [[run.length for run in runs if run.is_log_std is kind] for kind in (False, True)]
            from_head, from_parameter = iter(split(outputs, lengths[0])), iter(split(free, lengths[1]))
            parts = [next(from_parameter if run.is_log_std else from_head) for run in runs]
        bound = self._bound
        clipped = [x.clip(-bound, bound) if run.is_log_std else x for x, run in zip(parts, runs, strict=True)]
        return xp.concatenate(clipped, -1)


DefaultPPOTorchRLModule = DefaultPPORLModule
PPOTorchRLModule = DefaultPPORLModule
DefaultBCTorchRLModule = DefaultPPORLModule
"""RLlib's names, the second a former one. BC's default module is PPO's."""
