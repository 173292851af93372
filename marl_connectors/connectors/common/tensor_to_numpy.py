"""Makes arrays of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from marl_connectors.connectors.connector_v2 import MODULE_TO_ENV, ConnectorV2
from marl_connectors.connectors.device_columns import columns_to_host, to_host
from marl_connectors.episodes.batch import ColumnGroup, Phase
from marl_connectors.trees import tree_map


class TensorToNumpy(ConnectorV2):
    """All tensors become arrays; on the CPU they share memory. bfloat16 becomes float32. Keeps no state.

    From a GPU they come in one copy, whatever the number of columns and modules.
    """

    belongs_in = (MODULE_TO_ENV,)

    phase_after = Phase.ARRAYS

    def before_columns(self, groups: Sequence[ColumnGroup], rl_module: Any) -> None:
        """Brings all groups at once, where they are on a device."""
        columns_to_host(groups)

    def on_columns(self, *, columns: ColumnGroup, **kwargs: Any) -> None:
        """A hot path."""
        for name, column in columns.items():
            columns[name] = _array(column) if type(column) is torch.Tensor else tree_map(_array, column)

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Converts every leaf."""
        return tree_map(_array, to_host(batch))


def _array(values: Any) -> Any:
    if not isinstance(values, torch.Tensor):
        return values
    if values.requires_grad:
        values = values.detach()
    return (values if values.dtype is not torch.bfloat16 else values.float()).numpy()  # of which numpy knows nothing
