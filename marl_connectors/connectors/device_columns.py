"""Moves the columns of all groups of a batch to a device, or back to the CPU, in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree
import torch

from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.rl_module.stacking import stacking_of
from marl_connectors.transfers import all_on_host, transfer


def to_device(tree: Any, device: torch.device) -> Any:
    """Returns a tree whose arrays are tensors on a device; all other leaves stay as they are."""
    leaves, structure = optree.tree_flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray) and leaf.dtype != object]
    for i, tensor in zip(places, transfer(device).to_device([leaves[i] for i in places]), strict=True):
        leaves[i] = tensor
    return optree.tree_unflatten(structure, leaves)


def to_host(tree: Any) -> Any:
    """Returns a tree whose tensors are on the CPU; all other leaves stay as they are."""
    leaves, structure = optree.tree_flatten(tree)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and not leaf.is_cpu]
    if not places:
        return tree
    for i, tensor in zip(places, all_on_host([leaves[i] for i in places]), strict=True):
        leaves[i] = tensor
    return optree.tree_unflatten(structure, leaves)


def columns_to_device(groups: Sequence[ColumnGroup], device: torch.device, rl_module: Any) -> None:
    """Moves the arrays of all groups, and the indices that a forward pass needs to stack their rows."""
    stackings = [stacking_of(rl_module, group) for group in groups]
    moved = to_device(
        [
            (dict(group), group.sequences and group.sequences.state_in, stacking and stacking.arrays)
            for group, stacking in zip(groups, stackings, strict=True)
        ],
        device,
    )
    for group, stacking, (columns, state_in, indices) in zip(groups, stackings, moved, strict=True):
        group.update(columns)
        if group.sequences is not None:
            group.sequences.state_in = state_in
        if stacking is not None:
            group.stacking = stacking.with_tensors(indices)


def columns_to_host(groups: Sequence[ColumnGroup]) -> None:
    """Moves the tensors of all groups to the CPU, if any of them is on another device."""
    for group in groups:
        for column in group.values():
            if type(column) is not torch.Tensor or not column.is_cpu:
                for own, columns in zip(groups, to_host([dict(own) for own in groups]), strict=True):
                    own.update(columns)
                return
