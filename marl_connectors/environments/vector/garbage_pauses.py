"""Pauses the garbage collector while many objects are made that will be kept."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Pauses automatic garbage collection in a block that makes thousands of objects for later use.

    Every few hundred new objects start a collection, and each hundredth collection visits all objects of the process,
    which takes longer than making the new ones. Reference counting frees the objects when they are not needed any more.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
