"""Limits numerical libraries to one thread in each worker process, since the processes already use all cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""The variables that OpenMP, OpenBLAS and MKL read when they are loaded. OpenBLAS and MKL read the first one too."""


def one_thread_unless_set(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables to add so that each library of a process uses one thread.

    >>> one_thread_unless_set({"MKL_NUM_THREADS": "4"})
    {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}
    >>> one_thread_unless_set({"OMP_NUM_THREADS": "4"})  # it applies to all three
    {}
    """
    if THREAD_VARIABLES[0] in variables:
        return {}
    return {name: "1" for name in THREAD_VARIABLES if name not in variables}


@contextlib.contextmanager
def one_thread_for_children() -> Iterator[None]:
    """Adds the variables to this process's environment during the block, so that processes started in it get them."""
    added = one_thread_unless_set(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
