"""Encodes the data of a runner that a checkpoint contains in addition to episodes, such as the prepared forward batch.

The batch is saved because computing it again would run the env-to-module pipeline a second time on the same
observations, and its pieces may count, learn from, or change their input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, Phase
from marl_connectors.episodes.rows import Rows
from marl_connectors.episodes.state import decode, encode
from marl_connectors.errors import CheckpointError, EpisodeError
from marl_connectors.trees import leaves, tree_map


def batch_to_state(batch: ColumnBatch, shared_data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Encodes a forward batch and the shared data as plain data and arrays.

    Args:
        batch: The forward batch.
        shared_data: The data that connector pieces share.

    Returns:
        The state for ``batch_from_state``. None if the batch or the shared data contain anything that cannot be stored.
    """
    shared = storable(dict(shared_data))
    every_leaf = [leaf for group in batch.groups for column in group.values() for leaf in leaves(column)]
    if shared is None or not all(map(_is_plain, every_leaf)):
        return None
    return {
        "phase": batch.phase.name,
        "groups": [{name: tree_map(_to_array, column) for name, column in group.items()} for group in batch.groups],
        "tensors": [[isinstance(leaves(column)[0], torch.Tensor) for column in g.values()] for g in batch.groups],
        "shared_data": shared,
    }


def batch_from_state(
    state: Mapping[str, Any], rows: Sequence[Rows], device: torch.device
) -> tuple[ColumnBatch, dict[str, Any]]:
    """Decodes a forward batch and the shared data.

    Args:
        state: The state that ``batch_to_state`` returned.
        rows: The rows of each group of the batch.
        device: The device for columns that were tensors.

    Returns:
        The batch and the shared data.

    Raises:
        CheckpointError: If the batch has another number of rows than ``rows``.
    """
    batch = ColumnBatch([ColumnGroup(own) for own in rows], Phase[state["phase"]])
    for group, columns, tensors in zip(batch.groups, state["groups"], state["tensors"], strict=True):
        for (name, column), is_tensor in zip(columns.items(), tensors, strict=True):
            if any(len(leaf) != group.rows.splits[-1] for leaf in leaves(column)):
                raise CheckpointError(
                    f"checkpoint: it is damaged: its forward batch does not have {group.rows.splits[-1]} rows of "
                    f"{name!r}."
                )
            group[name] = tree_map(lambda leaf: torch.tensor(leaf, device=device), column) if is_tensor else column
    return batch, decode(state["shared_data"])


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) or (isinstance(leaf, np.ndarray) and is_numeric(leaf))


def _to_array(leaf: Any) -> np.ndarray:
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf


def storable(value: Any) -> Any:
    """Encodes ``value`` as plain data and numeric arrays, for ``marl_connectors.episodes.state.decode``.

    Args:
        value: Any value.

    Returns:
        The encoded value. None if it cannot be encoded.

    >>> storable({"goal": (1, 2)})
    {'goal': {'__tuple__': [1, 2]}}
    >>> storable({"goal": {1, 2}}) is None
    True
    """
    try:
        data = encode(value)
    except EpisodeError:
        return None
    return data if _is_numeric(data) else None


def is_numeric(array: np.ndarray) -> bool:
    """Returns whether a tensor file can store an array."""
    return array.dtype.kind in "biuf" and array.dtype.itemsize <= 8


def _is_numeric(data: Any) -> bool:
    if isinstance(data, np.ndarray):
        return is_numeric(data)
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return all(map(_is_numeric, parts))
