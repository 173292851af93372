"""Converts arrays to tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from marl_connectors.connectors.arguments import argument
from marl_connectors.connectors.connector_v2 import InBothPipelines
from marl_connectors.connectors.device_columns import columns_to_device, to_device
from marl_connectors.episodes.batch import ColumnGroup, Phase
from marl_connectors.transfers import moved
from marl_connectors.trees import tree_map


class NumpyToTensor(InBothPipelines):
    """Converts all arrays to tensors on ``device``; float64 becomes float32.

    All columns of all modules are moved to a GPU in one copy. On the CPU, tensors share the arrays' memory. Reads and
    writes all columns. Keeps no state.

    Args:
        as_learner_connector: RLlib's argument, without an effect: arrays are converted alike in both pipelines. It
            must not contradict the pipeline.
        pin_memory: Whether tensors on the CPU are in pinned memory, if torch sees a GPU. Copies to a GPU start from
            pinned memory in any case.
        device: The device of the tensors; None for the CPU.
    """

    phase_after = Phase.TENSORS
    pin_memory: bool = argument(default=False)
    device: Any = argument(default=None)

    def begin(self) -> None:
        super().begin()
        self.device = torch.device(self.device or "cpu")
        self._on_cpu = self.device.type == "cpu"
        self._pins = self.pin_memory and self._on_cpu and torch.cuda.is_available()

    def before_columns(self, groups: Sequence[ColumnGroup], rl_module: Any) -> None:
        """Moves all groups at once, unless the device is the CPU."""
        if not self._on_cpu:
            columns_to_device(groups, self.device, rl_module)

    def columns(self, c: ColumnGroup, xp: Any) -> None:
        """Converts the columns of a group."""
        for name, column in c.items():
            c[name] = self._tensor(column) if type(column) is np.ndarray else tree_map(self._tensor, column)
        sequences = c.sequences
        if sequences is not None:
            sequences.to_column = self._tensor
            if sequences.state_in is not None:
                sequences.state_in = tree_map(self._tensor, sequences.state_in)

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Converts every array of the batch."""
        return tree_map(self._tensor, batch) if self._on_cpu else to_device(batch, self.device)

    def _tensor(self, values: Any) -> Any:
        if not isinstance(values, np.ndarray) or values.dtype == object:
            return values
        if not self._on_cpu:
            return moved(values, self.device)
        if values.dtype == np.float64:
            values = values.astype(np.float32)
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
        return tensor.pin_memory() if self._pins else tensor
