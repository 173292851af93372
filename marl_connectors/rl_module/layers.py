"""Layers that run one module, or many modules of one shape at once.

A layer whose parameters have an additional first axis ``M`` computes ``M`` modules in one batched operation, from
``[M, B, n]`` inputs to ``[M, B, k]`` outputs. Without that axis it is an ordinary torch layer.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marl_connectors import accelerators
from marl_connectors.columns import Columns
from marl_connectors.errors import ConfigError, ModuleError, did_you_mean

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "linear": nn.Identity,
}


def make_activation(name: str) -> nn.Module:
    """Returns a new activation.

    Raises:
        ModuleError: If there is none.
    """
    if name not in ACTIVATIONS:
        raise ModuleError(f"MLP: unknown activation {name!r}. {did_you_mean(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]()


INITIALIZERS = tuple(sorted(name for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")))
"""The names of initializers in ``torch.nn.init``."""


@dataclass(frozen=True)
class Initializers:
    """The initializers of weights and biases: functions of a tensor, or names of functions in ``torch.nn.init``.

    By default, weights are orthogonal with a gain of ``sqrt(2)``, and biases are 0. Engstrom et al. (2020),
    arXiv:2005.12729, show why that matters for PPO.
    """

    kernel: str | Callable[..., Any] | None = None
    kernel_kwargs: Mapping[str, Any] = field(default_factory=dict)
    bias: str | Callable[..., Any] | None = None
    bias_kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Any, prefix: str) -> Initializers:
        """Reads ``{prefix}_kernel_initializer`` and the related settings of a model config."""
        found = [
            getattr(config, f"{prefix}_{part}") for part in ("kernel_initializer", "kernel_initializer_kwargs")
        ] + [getattr(config, f"{prefix}_{part}") for part in ("bias_initializer", "bias_initializer_kwargs")]
        return cls(found[0], found[1] or {}, found[2], found[3] or {})

    def fill_weight(self, weight: Tensor, gain: float = math.sqrt(2)) -> None:
        """Fills an ``[out, in, ...]`` weight; ``gain`` applies to the default initializer."""
        if self.kernel is None:
            nn.init.orthogonal_(weight, gain)
        else:
            _fill(weight, self.kernel, self.kernel_kwargs)

    def fill_bias(self, bias: Tensor) -> None:
        """Fills an ``[out]`` bias."""
        if self.bias is None:
            nn.init.zeros_(bias)
        else:
            _fill(bias, self.bias, self.bias_kwargs)


def _fill(tensor: Tensor, initializer: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Fills a tensor with an initializer. An error of a user's function is not changed; one of torch's is explained."""
    if callable(initializer):
        initializer(tensor, **kwargs)
        return
    name = initializer if initializer.endswith("_") else f"{initializer}_"
    if name not in INITIALIZERS:
        raise ConfigError(
            f"model_config: torch.nn.init has no initializer {initializer!r}. {did_you_mean(name, INITIALIZERS)}"
        )
    try:
        getattr(nn.init, name)(tensor, **kwargs)
    except Exception as error:
        raise ConfigError(
            f"model_config: the initializer {name!r} with arguments {dict(kwargs)} fails for a tensor of shape "
            f"{list(tensor.shape)}: {error}. Choose another one, or change its arguments."
        ) from error


class Linear(nn.Linear):
    """``torch.nn.Linear`` that also accepts stacked weights ``[M, out, in]`` with inputs ``[M, ..., in]``."""

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return F.linear(input, self.weight, self.bias)
        rows = input if input.dim() == 3 else input.flatten(1, -2)
        weight = self.weight.transpose(-1, -2)
        outputs = torch.bmm(rows, weight) if self.bias is None else torch.baddbmm(self.bias.unsqueeze(-2), rows, weight)
        return outputs if input.dim() == 3 else outputs.unflatten(1, input.shape[1:-1])


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm`` over the last axis that also accepts stacked weights ``[M, n]`` for ``[M, ..., n]``."""

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return super().forward(input)
        lead = (len(self.weight), *[1] * (input.dim() - 2), -1)
        normal = F.layer_norm(input, input.shape[-1:], eps=self.eps)
        return normal * self.weight.view(lead) + self.bias.view(lead)


class MLP(nn.Module):
    """Linear layers with an activation after each, or after each but the last."""

    def __init__(
        self,
        input_dim: int,
        layer_dims: Sequence[int],
        activation: str = "tanh",
        *,
        activate_last: bool = True,
        last_gain: float | None = None,
        initializers: Initializers | None = None,
        use_layernorm: bool = False,
    ):
        """Builds the layers.

        Args:
            input_dim: Size of the input's last axis.
            layer_dims: Size of each layer's output.
            activation: A key of ``ACTIVATIONS``.
            activate_last: Whether the activation also follows the last layer.
            last_gain: Scale of the last layer's orthogonal weights, if not that of the others (``sqrt(2)``).
            initializers: Fill the weights and biases; None for orthogonal weights and biases of 0.
            use_layernorm: Whether to normalise the outputs of each layer with an activation, before the activation.
        """
        super().__init__()
        self.input_dim = input_dim
        self.output_dim = layer_dims[-1] if layer_dims else input_dim
        self.layers = nn.ModuleList()
        for dim in layer_dims:
            self.layers.append(Linear(input_dim, dim))
            input_dim = dim
        self.activation = make_activation(activation)
        self.activate_last = activate_last
        active = self.linear_layers if activate_last else self.linear_layers[:-1]
        self.norms = nn.ModuleList([LayerNorm(layer.out_features) for layer in active if use_layernorm])
        initializers = initializers or Initializers()
        for layer in self.linear_layers:
            is_last = layer is self.linear_layers[-1]
            gain = last_gain if is_last and last_gain is not None else math.sqrt(2)
            initializers.fill_weight(layer.weight, gain)
            initializers.fill_bias(layer.bias)

    def flat(self, x: Any) -> Tensor:
        """Returns the input of the first layer: ``x`` itself, unless a subclass turns it into a vector."""
        return x

    def forward(self, x: Any) -> Tensor:
        rows = self.flat(x)
        if not torch.is_grad_enabled():
            outputs = accelerators.outputs_without_gradients(self, rows)
            if outputs is not None:
                return outputs
        last = len(self.linear_layers) - 1
        for i, layer in enumerate(self.linear_layers):
            rows = layer(rows)
            if i < last or self.activate_last:
                rows = self.activation(self.norms[i](rows) if self.norms else rows)
        return rows

    @property
    def linear_layers(self) -> list[Linear]:
        """The current linear layers."""
        return list(self._modules["layers"]._modules.values())  # type: ignore[union-attr,arg-type]


State = Mapping[str, Tensor]


class RecurrentLayer(nn.Module):
    """One recurrent layer over ``[B, T, n]`` sequences, or ``[M, B, T, n]`` if its weights are stacked.

    Weights have the names and shapes of ``torch.nn.LSTM`` and ``torch.nn.GRU``; each gate's part starts orthogonal.
    """

    _num_gates: int

    def __init__(self, input_dim: int, size: int, initializers: Initializers | None = None):
        super().__init__()
        self.size = size
        gates = self._num_gates * size
        self.weight_ih_l0 = nn.Parameter(torch.empty(gates, input_dim))
        self.weight_hh_l0 = nn.Parameter(torch.empty(gates, size))
        self.bias_ih_l0 = nn.Parameter(torch.empty(gates))
        self.bias_hh_l0 = nn.Parameter(torch.empty(gates))
        initializers = initializers or Initializers()
        with torch.no_grad():
            for weight in (self.weight_ih_l0, self.weight_hh_l0):
                for gate in weight.chunk(self._num_gates):
                    initializers.fill_weight(gate, 1.0)
            initializers.fill_bias(self.bias_ih_l0)
            initializers.fill_bias(self.bias_hh_l0)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the outputs of each step, ``[..., T, size]``, and the state after the last step.

        Args:
            x: ``[B, T, n]`` or ``[M, B, T, n]``.
            state: The state before the first step, ``[B, size]`` or ``[M, B, size]`` each.
        """
        weights: list[Tensor] = [self.weight_ih_l0, self.weight_hh_l0, self.bias_ih_l0, self.bias_hh_l0]
        if weights[0].dim() == 3:
            return self._in_steps(x, state, weights)
        if x.is_cpu:
            return self._at_once(x, {key: leaf.unsqueeze(0).contiguous() for key, leaf in state.items()}, weights)
        # cuDNN needs all weights in one block of memory, but here the bucket holds them.
        return self._alone_in_steps(x, state, weights)

    def _alone_in_steps(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        stacked = {key: leaf.unsqueeze(0) for key, leaf in state.items()}
        outputs, after = self._in_steps(x.unsqueeze(0), stacked, [weight.unsqueeze(0) for weight in weights])
        return outputs.squeeze(0), {key: leaf.squeeze(0) for key, leaf in after.items()}

    def _in_steps(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One step after another, for all of ``M`` layers at once."""
        of_input, of_memory, bias, memory_bias = weights
        rows = torch.baddbmm(bias.unsqueeze(-2), x.flatten(1, 2), of_input.transpose(-1, -2))
        outputs, now = [], dict(state)
        for gates in rows.unflatten(1, x.shape[1:3]).unbind(2):
            remembered = torch.baddbmm(memory_bias.unsqueeze(-2), now["h"], of_memory.transpose(-1, -2))
            now = self._step(gates, remembered, now)
            outputs.append(now["h"])
        return torch.stack(outputs, 2), now

    @abstractmethod
    def initial_state(self) -> dict[str, np.ndarray]:
        """Returns ``[size]`` zeros for each entry of the state, of which ``h`` is the output."""

    @abstractmethod
    def _step(self, gates: Tensor, remembered: Tensor, state: State) -> dict[str, Tensor]:
        """Returns the next state.

        Args:
            gates: ``[M, B, gates]`` gates, as far as they are computed from the input.
            remembered: ``[M, B, gates]`` gates, as far as they are computed from the state.
            state: The state, ``[M, B, size]`` each.
        """

    @abstractmethod
    def _at_once(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """All steps of one layer in a single call, from states ``[1, B, size]``."""


class LSTM(RecurrentLayer):
    """The layer of ``torch.nn.LSTM``; the state is ``{"h": ..., "c": ...}``."""

    _num_gates = 4

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(self.size, np.float32), "c": np.zeros(self.size, np.float32)}

    def _step(self, gates: Tensor, remembered: Tensor, state: State) -> dict[str, Tensor]:
        write, keep, new, read = (gates + remembered).chunk(4, -1)
        c = keep.sigmoid() * state["c"] + write.sigmoid() * new.tanh()
        return {"h": read.sigmoid() * c.tanh(), "c": c}

    def _at_once(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        before = (state["h"], state["c"])
        outputs, h, c = torch.lstm(x, before, weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return outputs, {"h": h.squeeze(0), "c": c.squeeze(0)}


class GRU(RecurrentLayer):
    """The layer of ``torch.nn.GRU``; the state is ``{"h": ...}``."""

    _num_gates = 3

    def initial_state(self) -> dict[str, np.ndarray]:
        return {"h": np.zeros(self.size, np.float32)}

    def _step(self, gates: Tensor, remembered: Tensor, state: State) -> dict[str, Tensor]:
        reset, keep, new = gates.chunk(3, -1)
        reset_h, keep_h, new_h = remembered.chunk(3, -1)
        keep = (keep + keep_h).sigmoid()
        return {"h": (1 - keep) * (new + (reset + reset_h).sigmoid() * new_h).tanh() + keep * state["h"]}

    def _at_once(self, x: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        outputs, h = torch.gru(x, state["h"], weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
        return outputs, {"h": h.squeeze(0)}


class TrainingLayers(NamedTuple):
    """The layers that a module computes when it is trained; see ``RLModule.training_layers``.

    Attributes:
        policy: The MLPs from ``obs`` (or from the outputs of ``shared``) to the outputs of the policy head.
        values: The MLPs from the column ``values_read`` (or from the outputs of ``shared``) to the value estimate.
        shared: The MLPs before both, which read ``obs``; empty if the two share no layers.
        values_read: The column that ``values`` reads if no layers are shared.
        to_inputs: Turns the policy head's outputs and ``log_std`` into ``action_dist_inputs``; None if the outputs are
            the ``action_dist_inputs``.
        log_std: A parameter for ``to_inputs``; None for none.
    """

    policy: Sequence[MLP]
    values: Sequence[MLP]
    shared: Sequence[MLP] = ()
    values_read: str = Columns.OBS
    to_inputs: Callable[[Tensor, Tensor | None], Tensor] | None = None
    log_std: nn.Parameter | None = None
