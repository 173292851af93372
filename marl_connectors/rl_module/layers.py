"""Layers that run one module, or many modules of one shape at once.

A layer whose parameters carry an extra first axis ``M`` computes ``M`` modules in one batched operation: ``[M, B, n]``
in, ``[M, B, k]`` out. Without that axis it is an ordinary torch layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError, did_you_mean
from marl_connectors.rl_module.array_layers import (
    BOUND_ACTIVATIONS,
    NUMPY_ACTIVATIONS,
    Activation,
    ArrayLayer,
    is_watched,
    run_layers,
)
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
_HOOKS = itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""What somebody wants to have called with a module, of its attributes."""
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
        weight = self.weight.transpose(-1, -2)
        outputs = torch.bmm(rows, weight) if self.bias is None else torch.baddbmm(self.bias.unsqueeze(-2), rows, weight)
        return outputs if input.dim() == 3 else outputs.unflatten(1, input.shape[1:-1])


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm`` over the last axis; also takes stacked weights ``[M, n]`` with inputs ``[M, ..., n]``."""

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return super().forward(input)
        lead = (len(self.weight), *[1] * (input.dim() - 2), -1)
        normal = F.layer_norm(input, input.shape[-1:], eps=self.eps)
        return normal * self.weight.view(lead) + self.bias.view(lead)


_PLAIN = (nn.Parameter, Tensor)


class _Arrays(NamedTuple):
    """An MLP's layers in numpy, and the tensors whose memory they share.

    Attributes:
        layers: One after another.
        parameters: Weight and bias of each.
        places: Where in memory each of them is.
    """

    layers: Sequence[ArrayLayer]
    parameters: Sequence[Tensor]
    places: Sequence[int]

    @classmethod
    def over(cls, mlp: MLP, parameters: Sequence[Tensor]) -> _Arrays:
        """Those over the parameters' memory as it is now."""
        fixed = [parameter.detach() for parameter in parameters]  # whatever else is done to the parameters meanwhile
        count = len(fixed) // 2
        layers = []
        for i, (weight, bias) in enumerate(zip(fixed[::2], fixed[1::2], strict=True)):
            activation = mlp._numpy_activation if mlp.activate_last or i + 1 < count else None
            layers.append(ArrayLayer.over(weight.numpy(), bias.numpy(), activation))
        return cls(layers, list(parameters), [tensor.data_ptr() for tensor in fixed])

    def are_over(self, parameters: Sequence[Any]) -> bool:
        """Whether these are the tensors, and are where they were. A hot path."""
        if len(parameters) != len(self.parameters):
            return False
        for own, known, place in zip(parameters, self.parameters, self.places, strict=True):
            if own is not known or own.data_ptr() != place:
                return False
        return True


class MLP(nn.Module):
    """A stack of linear layers with an activation after each but, if asked, the last.

    A hot path: on the CPU, numpy computes batches without gradients where that is faster, on the weights' own memory.
    """

    _remembered = frozenset({"_arrays"})

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
        self._arrays: list[_Arrays] = []  # one or none
        initializers = initializers or Initializers()
        for layer in self._linear_layers:
            is_last = layer is self._linear_layers[-1]
            gain = last_gain if is_last and last_gain is not None else math.sqrt(2)
            initializers.fill_weight(layer.weight, gain)
            initializers.fill_bias(layer.bias)

    def flat(self, x: Any) -> Tensor:
        """What the first layer reads: ``x`` itself, unless a subclass makes a vector of it."""
        return x

    def forward(self, x: Any) -> Tensor:
        rows = x if type(self).flat is MLP.flat else self.flat(x)
        if type(rows) is Tensor and rows.is_cpu and not is_watched():
            outputs = self._without_gradients(rows)
            if outputs is not None:
                return outputs
        last = len(self._linear_layers) - 1
        for i, layer in enumerate(self._linear_layers):
            rows = layer(rows)
            if i < last or self.activate_last:
                rows = self.activation(self.norms[i](rows) if self.norms else rows)
        return rows

    def _without_gradients(self, x: Tensor) -> Tensor | None:
        """The outputs by numpy; None where torch is faster, or has to see to the tensors. A hot path."""
        if self._numpy_activation is None or x.dtype is not torch.float32 or x.shape[-2] > self._numpy_rows:
            return None
        layers = self._array_layers()
        if layers is None:
            return None
        if x.dim() <= 3:
            return torch.from_numpy(run_layers(x.numpy(), layers))
        return torch.from_numpy(run_layers(x.flatten(1, -2).numpy(), layers)).unflatten(1, x.shape[1:-1])

    @property
    def _linear_layers(self) -> list[Linear]:
        """Those that there are now."""
        return list(self._modules["layers"]._modules.values())  # type: ignore[union-attr,arg-type]

    def parameters_as_built(self) -> list[Any] | None:
        """Weight and bias of each layer; None if somebody has put other layers in place of these, or hooks on them.

        A hot path.
        """
        parts: Any = self._modules
        activation, layers = parts["activation"], parts["layers"]._modules.values()
        if type(activation) is not self._own_activation:
            return None
        for part in (activation, *layers):
            if any(_HOOKS(part.__dict__)) or "forward" in part.__dict__:
                return None
        parameters: list[Any] = []
        for layer in layers:
            if type(layer) is not Linear:
                return None
            own = layer._parameters
            parameters += (own.get("weight"), own.get("bias"))
        return parameters

    def __getstate__(self) -> dict[str, Any]:
        """Without the arrays, which would be copies of the parameters in a copy."""
        return {**vars(self), "_arrays": []}

    def can_be_bound(self, rows: int) -> bool:
        """Whether numpy is to compute batches of so many rows without gradients on the CPU, and not torch."""
        activation, limit = self.activation, _NUMPY_ROWS.get(type(self.activation), math.inf)
        if len(self.norms) or type(activation) not in BOUND_ACTIVATIONS or getattr(activation, "alpha", 1.0) != 1.0:
            return False
        parameters = self.parameters_as_built()
        return rows <= limit and parameters is not None and all(p is not None for p in parameters)

    def activation_after(self, layer: int) -> Activation | None:
        """What follows a linear layer, in arrays."""
        is_active = self.activate_last or layer + 1 < len(self._linear_layers)
        return BOUND_ACTIVATIONS[type(self.activation)] if is_active else None

    def _array_layers(self) -> Sequence[ArrayLayer] | None:
        """The layers over the parameters that there are now; None where torch has to see to layers or parameters.

        What is remembered is put in its place as a whole, so that threads may ask at the same time.
        """
        parameters = self.parameters_as_built()
        if parameters is None:
            return None
        if self._arrays and self._arrays[0].are_over(parameters):
            return self._arrays[0].layers
        if not all(type(p) in _PLAIN and p.is_cpu and p.dtype is torch.float32 for p in parameters):
            return None
        found = _Arrays.over(self, parameters)
        self._arrays[:] = [found]
        return found.layers


class TrainingLayers(NamedTuple):
    """What a module computes when it is trained; see ``RLModule.training_layers``.

    Attributes:
        policy: The MLPs that lead from ``obs`` (or from the outputs of ``shared``) to the outputs of the policy head.
        values: Those that lead from the column ``values_read`` (or from the outputs of ``shared``) to one number, the
            value estimate.
        shared: Those before both, which read ``obs``; none if the two have nothing in common.
        values_read: The column that ``values`` reads where nothing is shared.
        to_inputs: Makes ``action_dist_inputs`` of the policy head's outputs and ``log_std``; None if they are the same.
        log_std: A parameter for ``to_inputs``, if there is one.
    """

    policy: Sequence[MLP]
    values: Sequence[MLP]
    shared: Sequence[MLP] = ()
    values_read: str = Columns.OBS
    to_inputs: Callable[[Tensor, Tensor | None], Tensor] | None = None
    log_std: nn.Parameter | None = None
