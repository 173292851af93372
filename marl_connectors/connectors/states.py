"""Comparing pieces' states."""

from __future__ import annotations

from typing import Any

import numpy as np


def same_state(one: Any, other: Any) -> bool:
    """Whether two states, JSON data and arrays, are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_state(part, other[key]) for key, part in one.items())
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(same_state(*parts) for parts in zip(one, other, strict=True))
    one_array, other_array = np.asarray(one), np.asarray(other)
    both_floats = one_array.dtype.kind in "fc" and other_array.dtype.kind in "fc"
    return np.array_equal(one_array, other_array, equal_nan=both_floats)
