"""One thread for the numerical libraries in each worker process: the processes are what uses the cores."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What OpenMP, OpenBLAS and MKL look at, once, when they are loaded; the latter two at the first one too."""


def one_thread_unless_set(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that are to be added so that a process's libraries use a thread each.

    >>> one_thread_unless_set({"MKL_NUM_THREADS": "4"})
    {'OMP_NUM_THREADS': '1', 'OPENBLAS_NUM_THREADS': '1'}
    >>> one_thread_unless_set({"OMP_NUM_THREADS": "4"})  # which goes for all three
    {}
    """
    if THREAD_VARIABLES[0] in variables:
        return {}
    return {name: "1" for name in THREAD_VARIABLES if name not in variables}


@contextlib.contextmanager
def one_thread_for_children() -> Iterator[None]:
    """Processes that are started meanwhile have these variables; afterwards they are gone from this process again."""
    added = one_thread_unless_set(os.environ)
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
