"""The state of a forward batch that was prepared before the step that uses it.

The batch is saved because computing it again would run the env-to-module pipeline a second time on the same
observations, and its pieces may count, learn from, or change their input.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from marl_connectors.episodes.batch import ColumnBatch
from marl_connectors.episodes.state import fits_in_file
from marl_connectors.state import State
from marl_connectors.trees import leaves


class ForwardBatchState(State):
    """The state of a prepared forward batch, without its rows, which are in the states of the lanes.

    Attributes:
        in_tensors: Whether NumpyToTensor has converted the batch.
        explores: The ``explore`` that the pieces got.
        pieces: The states of the env-to-module pieces before they computed the batch.
        metrics: What they had logged by then.
    """

    in_tensors: bool
    explores: bool
    pieces: dict[str, Any]
    metrics: Any


def can_be_stored(batch: ColumnBatch) -> bool:
    """Whether all columns are tensors, or arrays that a file can hold."""
    found = (leaf for group in batch.groups for column in group.values() for leaf in leaves(column))
    return all(isinstance(x, torch.Tensor) or (isinstance(x, np.ndarray) and fits_in_file(x)) for x in found)
