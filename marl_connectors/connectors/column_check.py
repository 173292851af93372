"""Checks the columns that a user's piece has set, before a module is trained on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marl_connectors.columns import Columns
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.piece_errors import progress
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.items import InfoColumn
from marl_connectors.errors import ConnectorError
from marl_connectors.trees import leaves


def checked_columns(piece: ConnectorV2) -> Callable[[ColumnGroup, Any], None]:
    """Returns ``piece.columns``; for a user's piece, followed by a check of the columns that it has set."""
    if type(piece).__module__.startswith("marl_connectors."):
        return piece.columns

    return partial(_run_checked, piece)  # a partial can be copied and pickled, a closure cannot


def _run_checked(piece: ConnectorV2, columns: ColumnGroup, xp: Any) -> None:
    progress.begin(piece.in_learner_pipeline)
    rows, before = columns.splits[-1], _known(columns) if columns else {}
    piece.columns(columns, xp)
    if not columns:
        return
    if type(columns.get(Columns.INFOS)) is list:
        columns[Columns.INFOS] = InfoColumn(columns[Columns.INFOS])
    if rows != columns.splits[-1]:
        before, rows = {}, columns.splits[-1]
    for name, column in columns.items():
        if type(column) is np.ndarray:
            if column is before.get(name) or (column.ndim and len(column) == rows):
                continue
        elif type(column) is not Tensor:
            known, now = before.get(name, ()), (len(column) if hasattr(column, "__len__") else 0, *_leaves(column))
            if type(known) is tuple and len(known) == len(now) and all(map(_same, known, now)):
                continue
        elif column is before.get(name):
            continue
        _check(name, _leaves(column), rows)


def _known(columns: ColumnGroup) -> dict[str, Any]:
    """Returns values by which a later call sees whether a column or its number of rows has changed."""
    return {name: own if type(own) in _SOLID else (len(own), *_leaves(own)) for name, own in columns.items()}


_SOLID = (np.ndarray, Tensor)
"""Types of columns that keep their number of rows as long as they are the same object."""


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is int and one == other)


def _leaves(column: Any) -> list[Any]:
    return [column] if isinstance(column, (np.ndarray, torch.Tensor, InfoColumn)) else leaves(column)


def _check(name: str, found: list[Any], rows: int) -> None:
    """Raises a ConnectorError unless a column consists of arrays with this number of rows."""
    expected = f"expected an array [{rows}, ...] with one row for each row of the batch"
    if not found:
        raise ConnectorError(f"set column {name!r} to an empty tree, {expected}. Delete it, or set an array.")
    for leaf in found:
        if not isinstance(leaf, (np.ndarray, torch.Tensor, InfoColumn)):
            raise ConnectorError(
                f"set column {name!r} to a {type(leaf).__name__}, or a list or tree of them, {expected}. Convert it to "
                f"an array first."
            )
        shape = (len(leaf),) if isinstance(leaf, InfoColumn) else tuple(leaf.shape)
        if not shape or shape[0] != rows:
            raise ConnectorError(
                f"set column {name!r} of shape {shape}, {expected}. Rows cannot be added or left out here; in a "
                f"learner pipeline, set 'loss_mask' to False for steps that must not be trained on."
            )
