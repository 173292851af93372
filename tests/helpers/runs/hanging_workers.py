"""Waiting for worker processes that hang on purpose, without limits in seconds for those that do not."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marl_connectors.environments.vector.worker_process import WorkerProcess

_NAME = "hangs"


def say_that_this_hangs() -> None:
    """Gives this process a name by which ``hangs`` knows it, unless it is the one that the test runs in."""
    if multiprocessing.parent_process() is not None:
        Path("/proc/self/comm").write_text(_NAME)


def hangs(pid: int | None) -> bool:
    """Whether a process has said that it hangs."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == _NAME
    except (FileNotFoundError, ProcessLookupError):
        return False


def limits_begin_with_hangs(monkeypatch: Any) -> None:
    """Lets the limits of worker processes count from the moment at which the environment hangs.

    Limits may then be short, and a worker that does not hang is late on no machine.
    """
    receive, finish_stop = WorkerProcess._receive, WorkerProcess.finish_stop

    def wait(worker: WorkerProcess, has_come: Callable[[], Any]) -> None:
        while not has_come() and not hangs(worker.pid):
            pass

    def patient_receive(worker: WorkerProcess, timeout_s: float | None, during: str = "") -> Any:
        has_come = lambda: worker._channel._poll.poll(5)
        wait(worker, has_come)
        return receive(worker, None if has_come() else timeout_s, during)

    def patient_finish_stop(worker: WorkerProcess, timeout_s: float) -> None:
        process = worker._process
        assert process is not None
        wait(worker, lambda: process.join(0.005) or not process.is_alive())
        finish_stop(worker, timeout_s)

    monkeypatch.setattr(WorkerProcess, "_receive", patient_receive)
    monkeypatch.setattr(WorkerProcess, "finish_stop", patient_finish_stop)
