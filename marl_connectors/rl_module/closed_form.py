"""Results and gradients in closed form, and not by one operation of autograd after another; those of linear layers.

Small networks and losses spend more time in autograd's many little operations than in arithmetic. On the CPU, where
nobody has to see these operations, one ``torch.autograd.Function`` stands for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from marl_connectors.rl_module.array_layers import is_recorded

_KINDS = (Tensor, torch.nn.Parameter)
_DTYPES = (torch.float32, torch.float64)


def are_plain(tensors: Sequence[Any]) -> bool:
    """Whether these are ordinary tensors on the CPU, all in single or all in double precision. A hot path."""
    dtype = getattr(tensors[0], "dtype", None)
    for tensor in tensors:
        if type(tensor) not in _KINDS or tensor.dtype is not dtype or not tensor.is_cpu:
            return False
    return dtype in _DTYPES


def is_allowed(tensors: Sequence[Any]) -> bool:
    """Whether a closed form may stand for what torch would compute of these tensors. A hot path."""
    return are_plain(tensors) and not is_recorded() and not torch.is_autocast_enabled("cpu")


def differentiable_gradients(
    function: Callable[..., Any], inputs: Sequence[Any], wanted: Sequence[bool], gradients: Sequence[Any]
) -> tuple[Any, ...]:
    """Gradients by autograd, for the backward pass of a closed form: these can be differentiated themselves.

    Args:
        function: What the closed form stands for; gives a tensor or several.
        inputs: What it was computed of.
        wanted: Of which inputs gradients are wanted.
        gradients: Of its outputs; None for an output that took no part.
    """
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        outputs = function(*inputs)
        outputs = (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None and o.requires_grad]
        of = [tensor for tensor, is_wanted in zip(inputs, wanted, strict=True) if is_wanted]
        found = torch.autograd.grad(
            [o for o, _ in pairs], of, [g for _, g in pairs], create_graph=create_graph, allow_unused=True
        )
    by_input = iter(found)
    return tuple(next(by_input) if is_wanted else None for is_wanted in wanted)


class Activation(NamedTuple):
    """An elementwise function with its derivative.

    Attributes:
        plain: The function, as autograd knows it.
        run: The same of ``[..., n]`` values without gradients; may write over them unless ``keeps_input``.
        backward: Of the gradient of its outputs, and of what was kept, to the gradient of its inputs.
        keeps_input: Whether the derivative is worked out from the inputs; else from the outputs.
    """

    plain: Callable[[Tensor], Tensor]
    run: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    keeps_input: bool = False


def _relu_backward(gradient: Tensor, outputs: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(gradient, outputs, 0)


ACTIVATIONS: dict[type[nn.Module], Activation | None] = {
    nn.Tanh: Activation(torch.tanh, torch.tanh_, torch.ops.aten.tanh_backward),
    nn.ReLU: Activation(F.relu, torch.relu_, _relu_backward),
    nn.SiLU: Activation(F.silu, F.silu, torch.ops.aten.silu_backward, keeps_input=True),
    nn.Identity: None,
}
"""Those that are known here; none of them has settings."""


def run_layer_stack(x: Tensor, activations: Sequence[Activation | None], parameters: Sequence[Tensor]) -> Tensor:
    """``[..., out]`` of ``[..., in]``, or ``[M, ..., out]`` of ``[M, ..., in]`` by ``M`` stacks at once. A hot path.

    Args:
        x: On the CPU, of the dtype of the parameters.
        activations: What follows each layer; None for nothing.
        parameters: The weight ``[out, in]`` (or ``[M, out, in]``) and bias ``[out]`` (or ``[M, out]``) of each layer.
    """
    if x.dim() == parameters[0].dim():
        return _LayerStack.apply(x, activations, *parameters)
    first = parameters[0].dim() - 2  # axis of rows
    return _LayerStack.apply(x.flatten(first, -2), activations, *parameters).unflatten(first, x.shape[first:-1])


def _layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 2:
        return torch.addmm(bias, x, weight.t())
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


def _by_autograd(x: Tensor, activations: Sequence[Activation | None], *parameters: Tensor) -> Tensor:
    for activation, weight, bias in zip(activations, parameters[::2], parameters[1::2], strict=True):
        x = _layer(x, weight, bias)
        x = x if activation is None else activation.plain(x)
    return x


def stack_forward(
    x: Tensor, activations: Sequence[Activation | None], parameters: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """The outputs of layers, their inputs, and what each activation keeps for its derivative. A hot path.

    Args:
        x: ``[B, in]`` or ``[M, B, in]``.
        activations: As for ``run_layer_stack``.
        parameters: As for ``run_layer_stack``.
    """
    inputs: list[Tensor] = []
    kept: list[Tensor | None] = []
    for activation, weight, bias in zip(activations, parameters[::2], parameters[1::2], strict=True):
        inputs.append(x)
        before = x = _layer(x, weight, bias)
        if activation is not None:
            x = activation.run(x)
        kept.append(None if activation is None else before if activation.keeps_input else x)
    return x, inputs, kept


def stack_backward(
    gradient: Tensor,
    activations: Sequence[Activation | None],
    parameters: Sequence[Tensor],
    inputs: Sequence[Tensor],
    kept: Sequence[Tensor | None],
    wanted: Sequence[bool],
    out: Sequence[Tensor | None] | None = None,
) -> tuple[Tensor | None, list[Tensor | None]]:
    """The gradients of the first layer's inputs and of the parameters; None where they are not wanted. A hot path.

    Args:
        gradient: Of the last layer's outputs.
        activations: As ``stack_forward`` was given.
        parameters: As ``stack_forward`` was given.
        inputs: What ``stack_forward`` gave.
        kept: What ``stack_forward`` gave.
        wanted: First for the inputs, then for each parameter.
        out: Where the gradients of the parameters are written to; None for new tensors.
    """
    is_stacked = gradient.dim() == 3
    product = torch.bmm if is_stacked else torch.mm
    found: list[Tensor | None] = [None] * len(parameters)
    for i in range(len(activations) - 1, -1, -1):
        activation, of_output = activations[i], kept[i]
        if activation is not None and of_output is not None:
            gradient = activation.backward(gradient, of_output)
        if wanted[1 + 2 * i]:
            place = None if out is None else out[2 * i]
            if place is None or is_stacked:  # copying takes less time than a batched product to memory with gaps
                own = product(gradient.transpose(-1, -2), inputs[i])
                found[2 * i] = own if place is None else place.copy_(own)
            else:
                found[2 * i] = torch.mm(gradient.t(), inputs[i], out=place)
        if wanted[2 + 2 * i]:
            place = None if out is None else out[2 * i + 1]
            found[2 * i + 1] = gradient.sum(-2) if place is None else torch.sum(gradient, -2, out=place)
        if i or wanted[0]:
            gradient = product(gradient, parameters[2 * i])
    return gradient if wanted[0] else None, found


class _LayerStack(torch.autograd.Function):
    """Of ``[B, in]`` or ``[M, B, in]`` rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activations: Sequence[Activation | None], *parameters: Tensor) -> Tensor:
        rows, inputs, kept = stack_forward(x, activations, parameters)
        ctx.activations = activations
        ctx.save_for_backward(*parameters, *inputs, *kept)
        return rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        activations, wanted, count = ctx.activations, ctx.needs_input_grad, len(ctx.activations)
        saved = ctx.saved_tensors
        parameters, inputs, kept = saved[: 2 * count], saved[2 * count : 3 * count], saved[3 * count :]
        if torch.is_grad_enabled():  # somebody differentiates the gradients
            given = inputs[0], activations, *parameters
            return differentiable_gradients(_by_autograd, given, wanted, [gradient])
        of_x, found = stack_backward(gradient, activations, parameters, inputs, kept, (wanted[0], *wanted[2:]))
        return of_x, None, *found
