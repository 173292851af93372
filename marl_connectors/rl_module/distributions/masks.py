"""Action masks: inputs of distributions in which forbidden actions have the probability 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marl_connectors.errors import ModuleError


def without_forbidden(inputs: Tensor, mask: Any) -> Tensor:
    """Inputs of a categorical distribution that gives forbidden actions the probability 0, exactly.

    They get the most negative number there is, and no gradient. All else stays finite: log-probabilities of forbidden
    actions, entropy, KL divergence, and the gradients of all three.

    Args:
        inputs: ``[..., n]`` logits.
        mask: ``[..., n]``, of the same shape, 0 or False for forbidden actions. A row that forbids all, such as padding
            or that of an agent that only waits, forbids none.

    Returns:
        ``[..., n]``.

    Raises:
        ModuleError: If the shapes differ.
    """
    mask = fitting_mask(inputs, mask)
    forbidden = mask.logical_not() & mask.any(-1, keepdim=True)
    return inputs.masked_fill(forbidden, torch.finfo(inputs.dtype).min)


def fitting_mask(inputs: Tensor, mask: Any, numbers_per_input: int = 1) -> Tensor:
    """The mask as a bool tensor beside ``inputs``.

    Raises:
        ModuleError: If it does not have so many numbers for each input.
    """
    mask = torch.as_tensor(mask, dtype=torch.bool, device=inputs.device)
    wanted = (*inputs.shape[:-1], inputs.shape[-1] * numbers_per_input)
    if not torch._C._is_tracing() and mask.shape != wanted:  # a trace's shapes are tensors, not to be asked
        each = "one number" if numbers_per_input == 1 else f"{numbers_per_input} numbers"
        raise ModuleError(
            f"action mask: its shape is {tuple(mask.shape)}, but that of 'action_dist_inputs' is "
            f"{tuple(inputs.shape)}, so it should be {tuple(wanted)}: {each} for each of them. A module that works "
            f"otherwise sets handles_action_masks = True and sees to its masks itself."
        )
    return mask
