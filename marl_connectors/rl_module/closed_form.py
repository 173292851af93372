"""When a result and its gradients may be worked out in closed form, and not by one operation of autograd after another.

Small networks and losses spend more time in autograd's many little operations than in arithmetic. On the CPU, where
nobody has to see these operations, one ``torch.autograd.Function`` stands for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

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
