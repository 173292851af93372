"""Conversions between a ColumnBatch and one dict of columns for each module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress, pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.episodes.batch import ColumnBatch, ColumnGroup, slice_tree
from marl_connectors.episodes.sequences import Sequences, unpadded
from marl_connectors.errors import ModuleError
from marl_connectors.trees import tree_map
from marl_connectors.typing import ModuleID


def concatenated(parts: Sequence[Any]) -> Any:
    """Concatenates arrays, tensors or lists of items."""
    if len(parts) == 1 and not isinstance(parts[0], list):
        return parts[0]
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(first, list):
        return spaces.stack([item for part in parts for item in part])
    if isinstance(first, dict):
        return {key: concatenated([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(concatenated([part[i] for part in parts]) for i in range(len(first)))
    return np.concatenate(list(parts))


def columns_by_module(batch: ColumnBatch) -> dict[ModuleID, dict[str, Any]]:
    """Returns ``{module_id: {column: [B, ...]}}``, where rows of a module from several groups are concatenated."""
    parts: dict[ModuleID, list[Mapping[str, Any]]] = {}
    for group in batch.groups:
        for module_id, columns in group.module_columns():
            parts.setdefault(module_id, []).append(columns)
    return {
        module_id: {name: concatenated([part[name] for part in several]) for name in several[0]}
        for module_id, several in parts.items()
    }


def set_columns_by_module(
    batch: ColumnBatch, by_module: dict[ModuleID, dict[str, Any]], *, fills_up: bool = False
) -> None:
    """Puts ``{module_id: {column: ...}}`` back into a batch's groups.

    Args:
        batch: The batch, whose groups have no columns yet.
        by_module: The columns of each module.
        fills_up: Whether columns that only some modules have are kept (``put_together``), or left out.

    Raises:
        ModuleError: If a column does not have one row for each row (or sequence) of the module.
    """
    for group in batch.groups:
        if group.sequences is not None:
            _set_sequences(group, group.sequences, by_module)
    rest = [group for group in batch.groups if group.sequences is None]
    wanted: dict[ModuleID, int] = {}
    for group in rest:
        for module_id, begin, end in zip(group.module_ids, group.splits, group.splits[1:], strict=False):
            wanted[module_id] = wanted.get(module_id, 0) + end - begin
    for module_id, rows in wanted.items():
        for name, column in by_module.get(module_id, {}).items():
            _check_count(module_id, name, column, rows)
    taken: dict[ModuleID, int] = {}
    for group in rest:
        pieces: list[dict[str, Any]] = []
        for module_id, begin, end in zip(group.module_ids, group.splits, group.splits[1:], strict=False):
            offset = taken.get(module_id, 0)
            taken[module_id] = offset + end - begin
            pieces.append(
                {k: slice_tree(v, offset, offset + end - begin) for k, v in by_module.get(module_id, {}).items()}
            )
        if fills_up:
            group.clear()
            put_together(group, pieces)
        else:
            _set_columns(group, pieces)


def _set_sequences(group: ColumnGroup, sequences: Sequences, by_module: Mapping[ModuleID, Mapping[str, Any]]) -> None:
    """Sets rows from ``[S, L, ...]`` columns of each module. States before the first steps remain one per sequence."""
    pieces: list[dict[str, Any]] = []
    states = []
    for i, module_id in enumerate(group.module_ids):
        columns = dict(by_module.get(module_id, {}))
        columns.pop(Columns.SEQ_LENS, None)
        columns.pop(Columns.STATE_OUT, None)
        within = sequences.within(i)
        for name, column in columns.items():
            _check_count(module_id, name, column, len(within))
        states += [_stacked(columns.pop(Columns.STATE_IN))] if Columns.STATE_IN in columns else []
        pieces.append({name: unpadded(_stacked(column), within) for name, column in columns.items()})
    group.sequences = sequences.with_states(concatenated(states) if len(states) == len(pieces) else None)
    _set_columns(group, pieces)


def _stacked(column: Any) -> Any:
    return spaces.stack(column) if type(column) is list else column


def _check_count(module_id: ModuleID, name: str, column: Any, wanted: int) -> None:
    if _count(column) != wanted:
        raise ModuleError(
            f"module {module_id!r}: {_count(column)} rows of {name!r}, expected {wanted}, one for each row of "
            f"the batch. Return one row for each row of the batch, in the same order."
        )


def _count(column: Any) -> int:
    """Returns the length of the first axis."""
    while isinstance(column, (dict, tuple)):
        column = next(iter(column.values() if isinstance(column, dict) else column))
    return len(column)


def _set_columns(group: ColumnGroup, pieces: list[dict[str, Any]]) -> None:
    group.clear()
    for name in pieces[0]:
        if all(name in piece for piece in pieces):
            group[name] = concatenated([piece[name] for piece in pieces])


def put_together(group: ColumnGroup, parts: Sequence[Mapping[str, Any]]) -> None:
    """Adds the concatenated columns of a group's modules, including columns that only some modules have.

    Such columns are padded with zeros, and ``group.holders`` names the modules that have them.
    """
    counts = [end - begin for begin, end in pairwise(group.splits)]
    for name in dict.fromkeys(name for part in parts for name in part):
        has = [name in part for part in parts]
        holders = {n: own for n, own in group.holders.items() if n != name}
        if all(has):
            group[name] = concatenated(_as_tensors([part[name] for part in parts]))
        else:
            holders[name] = frozenset(compress(group.module_ids, has))
            like = next(part[name] for part in parts if name in part)
            found = [part[name] if name in part else _zeros(like, n) for part, n in zip(parts, counts, strict=True)]
            group[name] = concatenated(_as_tensors(found))
        group.holders = holders


def _zeros(like: Any, count: int) -> Any:
    """Returns ``count`` rows of zeros like those of a column."""
    if isinstance(like, list):
        return [tree_map(np.zeros_like, like[0])] * count

    def leaf_like(leaf: Any) -> Any:
        shape = (count, *leaf.shape[1:])
        return leaf.new_zeros(shape) if isinstance(leaf, Tensor) else np.zeros(shape, leaf.dtype)

    return tree_map(leaf_like, like)


def _as_tensors(parts: list[Any]) -> list[Any]:
    """Converts arrays to tensors if there are tensors, too; modules without networks may return arrays."""
    if any(isinstance(part, Tensor) for part in parts):
        return [torch.as_tensor(part) if isinstance(part, np.ndarray) else part for part in parts]
    return parts


def concatenate(outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenates the columns that all of several modules have."""
    names = [name for name in outputs[0] if all(name in output for output in outputs)]
    return {name: concatenated([output[name] for output in outputs]) for name in names}


def unlike_outputs(outputs: Mapping[ModuleID, Mapping[str, Any]], error: Exception) -> ModuleError:
    """Returns the error for outputs of several modules that cannot be concatenated."""
    first, *others = outputs
    for name, column in outputs[first].items():
        here = _shapes(column)
        for other in others:
            if name in outputs[other] and _shapes(outputs[other][name]) != here:
                return ModuleError(
                    f"modules {first!r} and {other!r} act for agents with like spaces, but {first!r} returns {name!r} "
                    f"with shapes {here}, and {other!r} with {_shapes(outputs[other][name])} (without rows), so they "
                    f"cannot stand in one column. Let _forward of both return the same shapes."
                )
    return ModuleError(f"the outputs of modules {', '.join(map(repr, outputs))} cannot stand in one column: {error}")


def _shapes(column: Any) -> Any:
    """Returns the shapes without the axis of rows."""
    return tree_map(lambda leaf: tuple(getattr(leaf, "shape", ()))[1:], column)
