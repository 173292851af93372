"""Forward passes for training with gradients in closed form, which need no autograd.

Small networks spend more time in autograd's bookkeeping than in arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marl_connectors.accelerate.array_layers import is_recorded, parameters_as_built
from marl_connectors.accelerate.unchanged import NEVER_CALLED, class_that_says, is_unchanged
from marl_connectors.columns import Columns
from marl_connectors.learner.gradients import weighted
from marl_connectors.rl_module.apis import TargetNetworkAPI
from marl_connectors.rl_module.encoders import Encoder, FlatPart, OneHotPart
from marl_connectors.rl_module.layers import MLP, TrainingLayers
from marl_connectors.rl_module.rl_module import RLModule, apply_mask_of_module
from marl_connectors.rl_module.stacking import MemberStack

_CHAINS = (MLP, Encoder)
_PARTS = (FlatPart, OneHotPart)
"""The layers without parameters that turn observations into vectors."""
_UNRELATED = frozenset({*NEVER_CALLED, "acting_layers", "acting_states", "acting_outputs"})
"""Methods that a forward pass for training does not call, or that a closed forward pass calls, too."""
_KINDS = (Tensor, torch.nn.Parameter)
_DTYPES = (torch.float32, torch.float64)


def are_plain(tensors: Sequence[Any]) -> bool:
    """Whether these are ordinary tensors on the CPU, all in single or all in double precision."""
    if not tensors:
        return False
    dtype = getattr(tensors[0], "dtype", None)
    for tensor in tensors:
        if type(tensor) not in _KINDS or tensor.dtype is not dtype or not tensor.is_cpu:
            return False
    return dtype in _DTYPES


class Activation(NamedTuple):
    """An elementwise function with its derivative.

    Attributes:
        run: The function of ``[..., n]`` values. It may overwrite them unless ``keeps_input``.
        backward: From the gradient of its outputs and the kept values to the gradient of its inputs.
        keeps_input: Whether the derivative is computed from the inputs, so that these are kept; else from the outputs.
    """

    run: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    keeps_input: bool = False


def _relu_backward(gradient: Tensor, outputs: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(gradient, outputs, 0)


_ACTIVATIONS: dict[type[nn.Module], Activation | None] = {
    nn.Tanh: Activation(torch.tanh_, torch.ops.aten.tanh_backward),
    nn.ReLU: Activation(torch.relu_, _relu_backward),
    nn.SiLU: Activation(F.silu, torch.ops.aten.silu_backward, keeps_input=True),
    nn.Identity: None,
}
"""The activations with closed forms; none of them has settings."""


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


class _Chain:
    """MLPs one after another, with the memory of their gradients."""

    def __init__(self, mlps: Sequence[MLP], gradients: Mapping[Tensor, Tensor | None]):
        """Binds the layers.

        Args:
            mlps: MLPs with at least one layer together.
            gradients: Memory for the gradient of each parameter; None for a frozen one.
        """
        self.mlps = mlps
        self.activations: list[Activation | None] = []
        parameters: list[Tensor] = []
        for mlp in mlps:
            own = parameters_as_built(mlp) or []
            active = len(own) // 2 - (not mlp.activate_last)
            known = _ACTIVATIONS[type(mlp.activation)]
            self.activations += [known if i < active else None for i in range(len(own) // 2)]
            parameters += own
        self.parameters = [parameter.detach() for parameter in parameters]
        self._out = [gradients[parameter] for parameter in parameters]
        self.num_inputs = parameters[0].shape[-1]
        self._kept: list[tuple[Tensor, Tensor]] = []  # of each layer, its inputs and what its activation keeps

    def forward(self, rows: Tensor, *, keeps: bool = True) -> Tensor:
        """Returns ``[..., out]`` outputs of ``[..., in]`` rows, and keeps what ``backward`` needs if ``keeps``."""
        x, kept = rows, []
        for activation, weight, bias in zip(self.activations, self.parameters[::2], self.parameters[1::2], strict=True):
            before, x = x, _layer(x, weight, bias)
            of_activation = x if activation is not None and activation.keeps_input else None
            x = x if activation is None else activation.run(x)
            kept.append((before, x if of_activation is None else of_activation))
        if keeps:
            self._kept = kept
        return x

    def backward(self, gradient: Tensor, *, to_inputs: bool = False) -> Tensor | None:
        """Writes the gradients of the parameters. Returns those of the inputs if ``to_inputs``."""
        kept, self._kept = self._kept, []
        is_stacked = gradient.dim() == 3
        for i in range(len(kept) - 1, -1, -1):
            (inputs, of_activation), activation = kept[i], self.activations[i]
            of_weight, of_bias = self._out[2 * i : 2 * i + 2]
            if activation is not None:
                gradient = activation.backward(gradient, of_activation)
            if of_weight is not None and is_stacked:  # numpy writes to memory with gaps; torch would copy
                np.matmul(gradient.numpy().swapaxes(-1, -2), inputs.numpy(), out=of_weight.numpy())
            elif of_weight is not None:
                torch.mm(gradient.t(), inputs, out=of_weight)
            if of_bias is not None:
                torch.sum(gradient, -2, out=of_bias)
            if i or to_inputs:
                gradient = (torch.bmm if is_stacked else torch.mm)(gradient, self.parameters[2 * i])
        return gradient if to_inputs else None


class Outputs(NamedTuple):
    """The outputs that a closed loss is computed from.

    Attributes:
        inputs: ``action_dist_inputs``, ``[B, n]`` or ``[M, B, n]``, with action masks applied.
        values: Value estimates, ``[B]`` or ``[M, B]``; None if they are not wanted.
    """

    inputs: Tensor
    values: Tensor | None


class ClosedForward:
    """``forward_train`` and ``compute_values`` of a module, or of ``M`` stacked ones, with their gradients.

    A minibatch of a small network takes half as long as with autograd, whose bookkeeping costs as much as the
    arithmetic. The object is bound to the layers of ``RLModule.training_layers``, and valid as long as the module does
    not change.
    """

    def __init__(
        self, module: RLModule, layers: TrainingLayers, gradients: Mapping[Tensor, Tensor | None], *, with_values: bool
    ):
        """Binds the layers of a module.

        Args:
            module: The module. For several modules, their stacked module.
            layers: What ``_closed_layers_of`` returned.
            gradients: Memory for the gradient of each parameter; None for a frozen one.
            with_values: Whether values are wanted.
        """
        self._module = module
        self._shared = _Chain(layers.shared, gradients) if layers.shared else None
        self._policy = _Chain(layers.policy, gradients)
        self._values = _Chain(layers.values, gradients) if with_values else None
        self._values_read = layers.values_read
        self._to_inputs, self._log_std = layers.to_inputs, layers.log_std
        self._of_log_std = None if self._log_std is None else gradients[self._log_std]
        self._is_masked = not module.handles_action_masks
        self._dtype = self._policy.parameters[0].dtype
        self._between: tuple[list[Tensor], Tensor] | None = None
        chains = [layers.shared, layers.policy, layers.values if with_values else ()]
        used = {p for chain in chains for mlp in chain for p in mlp.layers.parameters()} | {self._log_std}
        self._unused = [of for parameter, of in gradients.items() if of is not None and parameter not in used]

    def __call__(self, columns: Mapping[str, Any]) -> Outputs | None:
        """Returns the outputs of a minibatch; None if the layers were not built for its observations."""
        found = self._of_heads(columns, keeps=True)
        return None if found is None else found._replace(inputs=self._after_policy(found.inputs, columns))

    def of_heads(self, columns: Mapping[str, Any]) -> Outputs | None:
        """Returns the outputs of the heads as they are, for rows of which no gradients are wanted; None as above."""
        return self._of_heads(columns, keeps=False)

    def _of_heads(self, columns: Mapping[str, Any], *, keeps: bool) -> Outputs | None:
        first = self._policy if self._shared is None else self._shared
        rows = self._rows(first, columns[Columns.OBS])
        if rows is None:
            return None
        of_values = None
        if self._values is not None and self._shared is None:
            of_values = self._rows(self._values, columns[self._values_read])
            if of_values is None:
                return None
        if self._shared is not None:
            rows = of_values = self._shared.forward(rows, keeps=keeps)
        inputs = self._policy.forward(rows, keeps=keeps)
        if self._values is None or of_values is None:
            return Outputs(inputs, None)
        return Outputs(inputs, self._values.forward(of_values, keeps=keeps)[..., 0])

    def backward(self, of_inputs: Tensor, of_values: Tensor | None) -> None:
        """Writes the gradients of all parameters, given the gradients of the last outputs."""
        for of_unused in self._unused:  # clipping or a user's code may have changed them
            of_unused.zero_()
        of_shared = self._policy.backward(self._before_inputs(of_inputs), to_inputs=self._shared is not None)
        if self._values is not None and of_values is not None:
            more = self._values.backward(of_values.unsqueeze(-1), to_inputs=self._shared is not None)
            if of_shared is not None and more is not None:
                of_shared += more
        if self._shared is not None and of_shared is not None:
            self._shared.backward(of_shared)

    def _rows(self, chain: _Chain, observations: Any) -> Tensor | None:
        """Returns the rows that a chain reads; None if it was not built for such observations."""
        rows = chain.mlps[0].flat(observations)
        rank = chain.parameters[0].dim()
        if type(rows) is not Tensor or rows.dtype is not self._dtype or rows.dim() != rank or not rows.is_cpu:
            return None
        return rows if rows.shape[-1] == chain.num_inputs and rows.shape[-2] else None

    # From the outputs of the policy head to action_dist_inputs. If these differ, autograd differentiates the step.

    def _after_policy(self, outputs: Tensor, columns: Mapping[str, Any]) -> Tensor:
        mask = columns[Columns.ACTION_MASK] if self._is_masked and Columns.ACTION_MASK in columns else None
        self._between = None
        if self._to_inputs is None and mask is None:
            return outputs
        with torch.enable_grad():
            inputs = outputs.detach().requires_grad_()
            wanted = [inputs]
            if self._to_inputs is not None:
                log_std = None if self._log_std is None else self._log_std.detach()
                if log_std is not None and self._of_log_std is not None:
                    wanted.append(log_std.requires_grad_())
                inputs = self._to_inputs(inputs, log_std)
            if mask is not None:
                inputs = apply_mask_of_module(self._module, inputs, mask)
        self._between = wanted, inputs
        return inputs.detach()

    def _before_inputs(self, of_inputs: Tensor) -> Tensor:
        if self._between is None:
            return of_inputs
        (wanted, inputs), self._between = self._between, None
        of_outputs, *of_log_std = torch.autograd.grad(inputs, wanted, of_inputs)
        if of_log_std and self._of_log_std is not None:
            self._of_log_std.copy_(of_log_std[0])
        return of_outputs


def closed_forward(stack: MemberStack, *, with_values: bool) -> ClosedForward | None:
    """Returns the pass of a stack's members with gradients in closed form; None if autograd must compute them.

    It is bound once for a stack, of which there is another one after the members have changed.

    Args:
        stack: The members.
        with_values: Whether values are wanted.
    """
    if is_recorded():
        return None
    key = "closed forward", with_values
    if key not in stack.bound:
        module = stack.load()
        layers = _closed_layers_of(module)
        found = None
        if layers is not None:
            found = ClosedForward(module, layers, stack.bound_gradients(), with_values=with_values)
        stack.bound[key] = found
    return stack.bound[key]


def closed_targets(stack: MemberStack, *, with_values: bool) -> ClosedForward | None:
    """Returns the same pass of the members' target networks, without gradients.

    Args:
        stack: The members.
        with_values: Whether values are wanted.
    """
    key = "closed targets", with_values
    if key not in stack.bound:
        module = stack.load()
        layers = _target_layers_of(module)
        found = None
        if layers is not None:
            no_gradients: dict[Tensor, Tensor | None] = dict.fromkeys(module.parameters())
            found = ClosedForward(module, layers, no_gradients, with_values=with_values)
        stack.bound[key] = found
    return stack.bound[key]


def _closed_layers_of(module: RLModule) -> TrainingLayers | None:
    """Returns the layers that training a module computes, if a closed forward pass can compute them.

    None if training computes anything else than the module's ``training_layers``, or if hooks watch them.
    """
    says = class_that_says(module, "training_layers")
    if not is_unchanged(module, says, free=_UNRELATED) or module.is_stateful():
        return None
    layers = module.training_layers()
    return None if layers is None or not _are_closed(layers) else layers


def _target_layers_of(module: RLModule) -> TrainingLayers | None:
    """Returns the target networks of ``_closed_layers_of``; None if a closed forward pass cannot compute them."""
    layers = _closed_layers_of(module)
    if layers is None or not isinstance(module, TargetNetworkAPI):
        return None
    targets: dict[Any, Any] = dict(module.get_target_network_pairs())
    chains = [[targets.get(mlp) for mlp in chain] for chain in (layers.policy, layers.values, layers.shared)]
    if any(mlp is None for chain in chains for mlp in chain):
        return None
    policy, values, shared = chains
    found = layers._replace(policy=policy, values=values, shared=shared)
    return found if _are_closed(found) else None


def _are_closed(layers: TrainingLayers) -> bool:
    """Whether the layers are as they were built, and their arithmetic has a closed form."""
    mlps = [*layers.shared, *layers.policy, *layers.values]
    parts = [part for mlp in mlps if isinstance(mlp, Encoder) for part in mlp.parts]
    if not all(type(mlp) in _CHAINS for mlp in mlps) or not all(type(part) in _PARTS for part in parts):
        return False
    if not all(is_unchanged(layer, type(layer)) for layer in (*mlps, *parts)):
        return False
    if any(type(mlp.activation) not in _ACTIVATIONS or len(mlp.norms) for mlp in mlps):
        return False
    parameters = [parameters_as_built(mlp) for mlp in mlps]
    flat = [p for own in parameters for p in own or ()]
    if None in parameters or not are_plain(flat):
        return False
    return all(any(mlp.layers for mlp in chain) for chain in (layers.policy, layers.values, layers.shared or mlps))


class LossAndGradients(NamedTuple):
    """The losses and gradients of a minibatch of one module, or of ``M`` stacked ones.

    Attributes:
        losses: A scalar or ``[M]``.
        by_inputs: The gradient of the sum of the losses with respect to ``action_dist_inputs``, of their shape.
        by_values: The gradient with respect to the value estimates; None if the loss uses none.
    """

    losses: Tensor
    by_inputs: Tensor
    by_values: Tensor | None

    def weighted(self, weights: Sequence[float]) -> LossAndGradients:
        """Returns the losses times ``M`` weights, and their gradients."""
        factors = weighted(torch.ones_like(self.losses), weights)
        rows = factors.unsqueeze(-1)
        by_values = None if self.by_values is None else self.by_values * rows
        return LossAndGradients(self.losses * factors, self.by_inputs * rows.unsqueeze(-1), by_values)


class ClosedLoss(Protocol):
    """A loss with its gradients in closed form.

    Attributes:
        uses_values: Whether the loss uses value estimates.
    """

    uses_values: bool

    def __call__(self, inputs: Tensor, values: Tensor | None, batch: Mapping[str, Any]) -> LossAndGradients | None:
        """Computes the losses of a minibatch and logs their terms; returns None if autograd must compute them.

        Args:
            inputs: ``action_dist_inputs``, ``[B, n]`` or ``[M, B, n]``, without gradients.
            values: ``[B]`` or ``[M, B]`` value estimates, without gradients; None if the loss uses none.
            batch: The columns of the minibatch.
        """
        ...
