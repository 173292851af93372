"""Whether what modules put out for a loss has the shape that the loss needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.distributions import Distribution
from marl_connectors.rl_module.rl_module import RLModule
from marl_connectors.spaces import describe
from marl_connectors.typing import ModuleID


def checked_inputs(module_id: ModuleID, module: RLModule, fwd_out: Mapping[str, Any], lead: tuple[int, ...]) -> Tensor:
    """The ``action_dist_inputs`` that a module's ``forward_train`` gave. A hot path.

    Args:
        module_id: For messages; of stacked modules, any of them.
        module: The module.
        fwd_out: What it put out.
        lead: The axes before those of a row: ``(B,)``, or what else the batch's columns begin with.

    Raises:
        ModuleError: If there are none, or not as many rows and numbers as actions need.
    """
    inputs = fwd_out.get(Columns.ACTION_DIST_INPUTS)
    dist_cls, space = module.get_train_action_dist_cls(), module.action_space
    knows_size = space is not None and issubclass(dist_cls, Distribution)
    wanted = dist_cls.required_input_dim(space) if knows_size and space is not None else None
    if not isinstance(inputs, Tensor):
        raise ModuleError(
            f"module {module_id!r}: its forward_train put out {sorted(fwd_out)}, but no 'action_dist_inputs'. Return "
            f"them from its _forward_train (or _forward)."
        )
    found = tuple(inputs.shape)
    if found[:-1] != lead or (wanted is not None and found[-1] != wanted):
        numbers = "any number of" if wanted is None else wanted
        actions = "" if space is None else f" for actions of {describe(space)}"
        raise ModuleError(
            f"module {module_id!r}: its forward_train put out 'action_dist_inputs' of shape {found}, but "
            f"{dist_cls.__name__} needs {numbers} numbers in each of the rows {lead}{actions}. Give every row of the "
            f"batch one that goes out, and the last layer of its policy so many outputs."
        )
    return inputs


def checked_values(module_id: ModuleID, values: Any, lead: tuple[int, ...]) -> Tensor:
    """What a module's ``compute_values`` gave, in single precision at least. A hot path.

    Raises:
        ModuleError: If it is not one number for each row.
    """
    if not isinstance(values, Tensor) or tuple(values.shape) != lead:
        found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ModuleError(
            f"compute_values of module {module_id!r} gave {found}, expected a tensor of shape {lead}: one number for "
            f"each row, without a last axis (.squeeze(-1))."
        )
    return in_full(values)


def in_full(values: Tensor) -> Tensor:
    """In single precision at least: half precision has too few digits for the ratios of a loss."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
