"""Gradients of a step, and their clipping.

Clipping bounds each value, the norm of each tensor, or the norm of all gradients of a module together. A learner's
subclass may also replace the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from marl_connectors.errors import LearnerError
from marl_connectors.rl_module.stacking import MemberStack
from marl_connectors.typing import ModuleID

_TINY = 1e-6


def weighted(losses: Tensor, weights: Sequence[float] | None) -> Tensor:
    """Returns a scalar loss, or ``[M]`` losses, times ``MiniBatch.weights``."""
    if weights is None:
        return losses
    return losses * (losses.new_tensor(weights) if losses.dim() else weights[0])


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Returns the Euclidean norm of all gradients of a module together, a scalar."""
    return torch.nn.utils.get_total_norm(list(gradients))


def clip_gradients(gradients: Sequence[Tensor], grad_clip: float | None, grad_clip_by: str) -> None:
    """Clips the gradients of one module in place.

    Args:
        gradients: The gradients of its parameters.
        grad_clip: The bound; None for none.
        grad_clip_by: ``"value"``, ``"norm"`` (of each tensor) or ``"global_norm"``.
    """
    if grad_clip is None or not gradients:
        return
    if grad_clip_by == "value":
        for gradient in gradients:
            gradient.clamp_(-grad_clip, grad_clip)
    elif grad_clip_by == "norm":
        for gradient in gradients:
            gradient.mul_(_scale(grad_clip, torch.linalg.vector_norm(gradient)))
    else:
        scale = _scale(grad_clip, global_norm(gradients))
        for gradient in gradients:
            gradient.mul_(scale)


def clip_stacked_gradients(stack: MemberStack, gradients: Tensor, norms: Tensor, configs: Sequence[Any]) -> None:
    """Clips the gradients of several members of a bucket in place, each as its config says.

    Args:
        stack: The members.
        gradients: ``[A, P]``.
        norms: ``[A]``, their norms.
        configs: The config of each member.
    """
    kinds = {config.grad_clip_by for config in configs if config.grad_clip is not None}
    for by in sorted(kinds) if len(kinds) > 1 else kinds:
        bounds = [c.grad_clip if c.grad_clip_by == by and c.grad_clip is not None else float("inf") for c in configs]
        bound: Any = bounds[0] if len(set(bounds)) == 1 else gradients.new_tensor(bounds)
        if by == "global_norm":
            gradients.mul_(_scale(bound, norms).unsqueeze(1))
        elif by == "value":
            column = bound if isinstance(bound, float | int) else bound.unsqueeze(1)
            gradients.clamp_(-column, column)
        else:
            for where in stack.bucket.slices:
                own = gradients[:, where.begin : where.end]
                own.mul_(_scale(bound, torch.linalg.vector_norm(own, dim=1)).unsqueeze(1))


def set_gradients(gradients: Sequence[Tensor], given: Any, module_id: ModuleID, learner: str) -> None:
    """Replaces a module's gradients by those that ``postprocess_gradients_for_module`` returned.

    Raises:
        LearnerError: If their number or shapes differ.
    """
    shapes = [tuple(gradient.shape) for gradient in gradients]
    is_list = isinstance(given, Sequence) and all(isinstance(one, Tensor) for one in given)
    came = [tuple(one.shape) for one in given] if is_list else type(given).__name__
    if came != shapes:
        raise LearnerError(
            f"{learner}: its postprocess_gradients_for_module returned {came} for module {module_id!r}, "
            f"expected gradients of the shapes {shapes}. Return them in the order of module_gradients, or change these "
            f"in place and return nothing."
        )
    for gradient, value in zip(gradients, given, strict=True):
        if value is not gradient:
            gradient.copy_(value)


def _scale(bound: Any, norms: Tensor) -> Tensor:
    return (norms + _TINY).reciprocal_().mul_(bound).clamp_(max=1.0)
