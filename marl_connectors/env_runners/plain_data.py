"""Which data a checkpoint can hold."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.episodes.state import encode
from marl_connectors.errors import EpisodeError


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
