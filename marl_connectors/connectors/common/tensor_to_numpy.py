"""Converts tensors to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.device_columns import columns_to_host, to_host
from marl_connectors.connectors.pipeline_kinds import MODULE_TO_ENV
from marl_connectors.episodes.batch import ColumnGroup, Phase
from marl_connectors.trees import tree_map


class TensorToNumpy(ConnectorV2):
    """Converts all tensors to arrays; bfloat16 becomes float32.

    All columns of all modules are moved from a GPU in one copy. On the CPU, arrays share the tensors' memory. Reads and
    writes all columns. Keeps no state.
    """

    belongs_in = (MODULE_TO_ENV,)

    phase_after = Phase.ARRAYS

    def before_columns(self, groups: Sequence[ColumnGroup], rl_module: Any) -> None:
        """Moves all groups to the CPU at once, if they are on another device."""
        columns_to_host(groups)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Converts the columns of a group."""
        for name, column in c.items():
            c[name] = _array(column) if type(column) is torch.Tensor else tree_map(_array, column)

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Converts every tensor of the batch."""
        return tree_map(_array, to_host(batch))


def _array(values: Any) -> Any:
    if not isinstance(values, torch.Tensor):
        return values
    if values.requires_grad:
        values = values.detach()
    return (values if values.dtype is not torch.bfloat16 else values.float()).numpy()  # numpy has no bfloat16
