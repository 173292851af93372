"""Layers that run one module, or many modules of one shape at once.

A layer whose parameters carry an extra first axis ``M`` computes ``M`` modules in one batched operation: ``[M, B, n]``
in, ``[M, B, k]`` out. Without that axis it is an ordinary torch layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marl_connectors.errors import ModuleError, did_you_mean
from marl_connectors.rl_module.array_layers import NUMPY_ACTIVATIONS, ArrayLayer, run_layers
from marl_connectors.rl_module.initializers import Initializers

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "linear": nn.Identity,
}
_NUMPY_ROWS = {nn.Tanh: math.inf, nn.ReLU: 2048}
"""Up to how many rows a forward pass without gradients is faster in numpy than in torch. Its calls cost less, and its
tanh takes a tenth of the time."""


def make_activation(name: str) -> nn.Module:
    """The activation of that name.

    Raises:
        ModuleError: If there is none.
    """
    if name not in ACTIVATIONS:
        raise ModuleError(f"MLP: unknown activation {name!r}. {did_you_mean(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]()


class Linear(nn.Linear):
    """``torch.nn.Linear`` that also takes stacked weights ``[M, out, in]`` with inputs ``[M, ..., in]``."""

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return F.linear(input, self.weight, self.bias)
        rows = input if input.dim() == 3 else input.flatten(1, -2)
        outputs = torch.baddbmm(self.bias.unsqueeze(-2), rows, self.weight.transpose(-1, -2))
        return outputs if input.dim() == 3 else outputs.unflatten(1, input.shape[1:-1])


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm`` over the last axis; also takes stacked weights ``[M, n]`` with inputs ``[M, ..., n]``."""

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return super().forward(input)
        lead = (len(self.weight), *[1] * (input.dim() - 2), -1)
        normal = F.layer_norm(input, input.shape[-1:], eps=self.eps)
        return normal * self.weight.view(lead) + self.bias.view(lead)


class MLP(nn.Module):
    """A stack of linear layers with an activation after each but, if asked, the last.

    A hot path: where that is faster, numpy computes batches without gradients, on the weights' own memory.
    """

    _remembered = frozenset({"_arrays", "_places"})

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
            initializers: How the weights and biases begin, if not orthogonal and at 0.
            use_layernorm: Whether to normalise the outputs of each layer with an activation, before it.
        """
        super().__init__()
        self.input_dim = input_dim
        self.output_dim = layer_dims[-1] if layer_dims else input_dim
        self.layers = nn.ModuleList()
        for dim in layer_dims:
            self.layers.append(Linear(input_dim, dim))
            input_dim = dim
        self.activation = make_activation(activation)
        self._own_activation = type(self.activation)
        self.activate_last = activate_last
        active = self._linear_layers if activate_last else self._linear_layers[:-1]
        self.norms = nn.ModuleList([LayerNorm(layer.out_features) for layer in active if use_layernorm])
        self._numpy_activation = None if use_layernorm else NUMPY_ACTIVATIONS.get(type(self.activation))
        has_active = len(self._linear_layers) - (not activate_last) > 0
        self._numpy_rows = _NUMPY_ROWS.get(type(self.activation), 0) if has_active else math.inf
        self._places: list[tuple[int, int]] = []  # of the parameters that the arrays are over
        self._arrays: list[ArrayLayer] = []
        initializers = initializers or Initializers()
        for layer in self._linear_layers:
            is_last = layer is self._linear_layers[-1]
            gain = last_gain if is_last and last_gain is not None else math.sqrt(2)
            initializers.fill_weight(layer.weight, gain)
            initializers.fill_bias(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        if (
            not torch.is_grad_enabled()
            and self._numpy_activation is not None
            and x.dtype is torch.float32
            and x.shape[-2] <= self._numpy_rows
            and x.is_cpu
            and self._is_as_built()
        ):
            layers = self._array_layers()
            if x.dim() <= 3:
                return torch.from_numpy(run_layers(x.numpy(), layers))
            flat = torch.from_numpy(run_layers(x.flatten(1, -2).numpy(), layers))
            return flat.unflatten(1, x.shape[1:-1])
        last = len(self._linear_layers) - 1
        for i, layer in enumerate(self._linear_layers):
            x = layer(x)
            if i < last or self.activate_last:
                x = self.activation(self.norms[i](x) if self.norms else x)
        return x

    @property
    def _linear_layers(self) -> list[Linear]:
        """Those that there are now."""
        return list(self._modules["layers"]._modules.values())  # type: ignore[union-attr,arg-type]

    def _is_as_built(self) -> bool:
        """Whether nobody has put other layers in place of these, or hooks on them. A hot path."""
        parts: Any = self._modules
        activation = parts["activation"]
        if type(activation) is not self._own_activation or activation._forward_hooks or activation._forward_pre_hooks:
            return False
        for layer in parts["layers"]._modules.values():
            if type(layer) is not Linear or layer._forward_hooks or layer._forward_pre_hooks:
                return False
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Without the arrays, which would be copies of the parameters in a copy."""
        return {**vars(self), "_places": [], "_arrays": []}

    def array_layers(self, rows: int) -> list[ArrayLayer] | None:
        """What computes batches of so many rows without gradients on the CPU; None where torch does.

        The arrays are over the parameters' own memory, as it is now: they see updates, but not that a parameter is
        replaced by another one.
        """
        if self._numpy_activation is None or rows > self._numpy_rows or not self._is_as_built():
            return None
        parameters = [p for layer in self._linear_layers for p in (layer.weight, layer.bias)]
        if not all(p.is_cpu and p.dtype is torch.float32 for p in parameters):
            return None
        return list(self._array_layers())

    def _array_layers(self) -> list[ArrayLayer]:
        layers, linear_layers = self._arrays, self._linear_layers
        if len(layers) != len(linear_layers):
            layers.clear()
        for i, layer in enumerate(linear_layers):
            own: Any = layer._parameters  # spares torch's attribute look-up
            weight, bias = own["weight"], own["bias"]
            place = weight.data_ptr(), bias.data_ptr()
            if i == len(layers) or self._places[i] != place:
                is_active = self.activate_last or i + 1 < len(linear_layers)
                activation = self._numpy_activation if is_active else None
                layers[i:] = [ArrayLayer.over(weight.detach().numpy(), bias.detach().numpy(), activation)]
                self._places[i:] = [place]
        return layers
