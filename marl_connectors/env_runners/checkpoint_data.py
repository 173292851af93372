"""What of a runner a checkpoint holds beside episodes: plain data, and a forward batch that waits for the next sample.

Making such a batch anew would run the env-to-module pipeline a second time on the same observations, and its pieces may
count, learn from, or change what they see.
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
    """Both as plain data and arrays; None if they hold anything else."""
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
    """The batch for those rows, and the shared data.

    Raises:
        CheckpointError: If it has another number of rows.
    """
    batch = ColumnBatch([ColumnGroup(own) for own in rows], Phase[state["phase"]])
    for group, columns, tensors in zip(batch.groups, state["groups"], state["tensors"], strict=True):
        for (name, column), is_tensor in zip(columns.items(), tensors, strict=True):
            if any(len(leaf) != group.rows.splits[-1] for leaf in leaves(column)):
                raise CheckpointError(
                    f"checkpoint: it is damaged: the waiting batch has not {group.rows.splits[-1]} rows of {name!r}."
                )
            group[name] = tree_map(lambda leaf: torch.tensor(leaf, device=device), column) if is_tensor else column
    return batch, decode(state["shared_data"])


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) or (isinstance(leaf, np.ndarray) and is_numeric(leaf))


def _to_array(leaf: Any) -> np.ndarray:
    return leaf.detach().cpu().numpy() if isinstance(leaf, torch.Tensor) else leaf


def storable(value: Any) -> Any:
    """``value`` as plain data and numeric arrays, for ``marl_connectors.episodes.state.decode``; None if it cannot be.

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
    """Whether a tensor file can hold an array."""
    return array.dtype.kind in "biuf" and array.dtype.itemsize <= 8


def _is_numeric(data: Any) -> bool:
    if isinstance(data, np.ndarray):
        return is_numeric(data)
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return all(map(_is_numeric, parts))
