"""The array namespace of arrays: numpy itself; before numpy 2.1, with what numpy lacked of the array API standard.

Computations that serve arrays and tensors get a namespace ``xp``: this one, or that of ``tensor_namespace``.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class _EarlierNumpy:
    """numpy before 2.1, with the names of the standard."""

    bool = np.bool_
    concat = staticmethod(np.concatenate)

    @staticmethod
    def astype(values: np.ndarray, dtype: Any, *, copy: Any = True) -> np.ndarray:
        """Converts an array to a dtype."""
        return values.astype(dtype, copy=copy)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


ARRAYS: Any = np if hasattr(np, "astype") else _EarlierNumpy()
"""The namespace of arrays."""
