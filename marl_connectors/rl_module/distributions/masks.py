"""Action masks: logits of forbidden actions become so low that they are never drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from marl_connectors.array_functions import namespace
from marl_connectors.errors import ModuleError


def apply_action_mask(inputs: Any, mask: Any) -> Any:
    """Returns inputs of a categorical distribution that gives forbidden actions the probability 0, exactly.

    Their logits become the most negative finite number, without a gradient. The log-probabilities of forbidden actions,
    the entropy, the KL divergence, and the gradients of all three stay finite.

    Args:
        inputs: ``[..., n]`` logits, an array or a tensor.
        mask: ``[..., n]``, of the same shape, 0 or False for forbidden actions. A row that forbids all actions, such as
            padding or the row of an agent that only waits, is ignored.

    Returns:
        ``[..., n]``.

    Raises:
        ModuleError: If the shapes differ.
    """
    mask = fitting_mask(inputs, mask)
    return forbid(inputs, ~mask & mask.any(-1)[..., None])


def forbid(inputs: Any, forbidden: Any) -> Any:
    """Returns logits of which the forbidden ones are the most negative finite number, without a gradient."""
    xp = namespace(inputs)
    lowest = xp.finfo(inputs.dtype).min
    return np.where(forbidden, lowest, inputs) if xp is np else inputs.masked_fill(forbidden, lowest)


def as_mask(inputs: Any, mask: Any) -> Any:
    """Returns a mask as truth values, an array or a tensor as ``inputs`` are."""
    if isinstance(inputs, np.ndarray):
        return np.asarray(mask).astype(bool, copy=False)
    mask = mask if isinstance(mask, torch.Tensor) else torch.as_tensor(mask)  # which traces would make a constant
    return mask.to(inputs.device, torch.bool)


def fitting_mask(inputs: Any, mask: Any, numbers_per_input: int = 1) -> Any:
    """Returns the mask as truth values, an array or a tensor as ``inputs`` are.

    Raises:
        ModuleError: If it does not have ``numbers_per_input`` numbers for each input.
    """
    wanted = (*inputs.shape[:-1], inputs.shape[-1] * numbers_per_input)
    mask = as_mask(inputs, mask)
    if not torch._C._is_tracing() and mask.shape != wanted:  # in a trace, shapes are tensors that must not be compared
        each = "one number" if numbers_per_input == 1 else f"{numbers_per_input} numbers"
        raise ModuleError(
            f"action mask: its shape is {tuple(mask.shape)}, but that of 'action_dist_inputs' is "
            f"{tuple(inputs.shape)}, so it should be {tuple(wanted)}: {each} for each of them. A module with other "
            f"masks must set handles_action_masks = True and apply its masks itself."
        )
    return mask
