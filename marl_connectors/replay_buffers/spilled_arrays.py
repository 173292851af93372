"""Arrays in files, for replay buffers that are larger than the memory."""

from __future__ import annotations

import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors.errors import ConfigError


def zeros(shape: tuple[int, ...], dtype: Any, folder: Path | None) -> np.ndarray:
    """Returns an array of zeros: in memory, or in a file without a name, which is gone when the array is.

    The operating system keeps those parts of the file in memory that are used most, as far as there is room.

    Args:
        shape: The shape.
        dtype: The type of its items.
        folder: Where the file is; None for memory.

    Raises:
        ConfigError: If the folder cannot be written to, or has not enough room.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if folder is None or not size:
        return np.zeros(shape, dtype)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # else a full disk would end the process at some later write
                os.posix_fallocate(file.fileno(), 0, size)
            return np.asarray(np.memmap(file, dtype, "w+", shape=shape))
    except OSError as error:
        raise ConfigError(
            f"spill_folder={str(folder)!r}: a column of the replay buffer needs {size:,} bytes there, but "
            f"{error.strerror or error}. Choose another folder, or a smaller capacity."
        ) from error
