"""Runs whose iteration is ended by an error, by signals or by the death of a worker process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marl_connectors import Algorithm, AlgorithmConfig
from marl_connectors.errors import EnvError

FAULTS = ("error", "SIGTERM", "SIGTERM twice", "death")
"""What can end an iteration: an error, signals, or the death of a worker process, for which there must be one."""


@contextlib.contextmanager
def _sigterm_is_harmless() -> Iterator[None]:
    """Lets SIGTERM do nothing after ``fit``, which raises it again at its end."""
    former = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def disturb(algo: Algorithm, iterations: int, fault: str) -> None:
    """Lets a fault happen in the iteration after ``iterations``, when nearly everything has changed in it."""
    sample_and_update = algo._sample_and_update

    def disturbed() -> Any:
        if algo.iteration == iterations and fault == "death":
            vector_env: Any = algo.env_runner.vector_env
            os.kill(vector_env.workers[0].pid, signal.SIGKILL)
        found = sample_and_update()
        if algo.iteration == iterations:
            if fault == "error":
                raise ZeroDivisionError("a fault of the test")
            for _ in range(fault.count("SIGTERM") + fault.count("twice")):
                signal.raise_signal(signal.SIGTERM)
        return found

    algo._sample_and_update = disturbed  # type: ignore[method-assign]


def left_behind(config: AlgorithmConfig, iterations: int, fault: str, folder: Path) -> Path:
    """Returns the folder of a run that a fault has ended after some whole iterations, of which none was saved."""
    algo = config.copy().build_algo()
    expected = {"error": ZeroDivisionError, "SIGTERM twice": KeyboardInterrupt, "death": EnvError}.get(fault)
    with _sigterm_is_harmless():
        disturb(algo, iterations, fault)
        try:
            with pytest.raises(expected) if expected is not None else contextlib.nullcontext():
                algo.fit(num_iterations=20, folder=folder, checkpoint_every=1000, progress=False)
        finally:
            algo.stop()
    return folder
