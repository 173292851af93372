"""Makes arrays of tensors."""

from __future__ import annotations

from typing import Any

import torch

from marl_connectors.connectors.connector_v2 import MODULE_TO_ENV, ConnectorV2
from marl_connectors.episodes.column_batch import ColumnGroup, Phase
from marl_connectors.trees import tree_map


class TensorToNumpy(ConnectorV2):
    """All tensors become arrays; on the CPU they share memory. Keeps no state."""

    belongs_in = (MODULE_TO_ENV,)

    phase_after = Phase.ARRAYS

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """A hot path."""
        for name, column in columns.items():
            if type(column) is torch.Tensor and column.device.type == "cpu":
                columns[name] = column.numpy()
            else:
                columns[name] = tree_map(_array, column)

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Converts every leaf."""
        return tree_map(_array, batch)


def _array(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
