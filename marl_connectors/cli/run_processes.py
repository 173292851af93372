"""Processes in which runs are trained, several at a time."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.fitting.stop_signals import STOP_SIGNALS, StopSignals, exit_status
from marl_connectors.cli import training_run
from marl_connectors.errors import MarlConnectorsError, describe_error

START_METHOD = "spawn"
"""How processes are started. A forked one would share the threads' locks of this one."""
FAILED = 2
"""The exit status of a run that has ended with an error."""
PROGRESS_S = 10.0
"""The seconds from one line of progress to the next, for runs that are trained in other processes."""
POLL_S = 0.5
"""The seconds from one look at the processes to the next."""
_END_S = 10.0
_MOST_SAID = 160
"""The most characters of a line that is no line of progress."""


class RunProcess:
    """A process in which one run is trained."""

    def __init__(self, options: dict[str, Any], log: Path):
        """Starts the process. Stop signals do not reach it before it can handle them.

        Args:
            options: The options of ``train``.
            log: The file for its output.
        """
        context: Any = multiprocessing.get_context(START_METHOD)
        self._results, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_train_in_process, args=(options, str(log), sender))
        with _signals_blocked():
            self._process.start()
        sender.close()

    @property
    def sentinel(self) -> int:
        return self._process.sentinel

    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def result(self) -> tuple[int, str, bool]:
        """Returns the exit status, the error or ``""``, and whether it is unexpected, of a process that has ended."""
        with contextlib.suppress(EOFError, OSError):
            if self._results.poll():
                return self._results.recv()
        return FAILED, f"its process has ended with the exit code {self._process.exitcode}.", True

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.kill(self._process.pid, number)

    def end(self) -> None:
        """Waits for the process, and kills it if it does not end."""
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class EndedRun:
    """Stands for the process of a run that has ended well, in an earlier command."""

    sentinel = -1

    def has_ended(self) -> bool:
        return True

    def result(self) -> tuple[int, str, bool]:
        return 0, "", False

    def send_signal(self, number: int) -> None:
        pass

    def end(self) -> None:
        pass


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Has processes start with stop signals that wait until the process is ready for them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it would unblock the signals
    former = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _train_in_process(options: dict[str, Any], log: str, results: Any) -> None:
    """Trains in a process of its own, and sends the exit status and an error."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # Ctrl-C reaches the parent process, which sends it on
    _print_to(log)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        with StopSignals():
            if hasattr(signal, "pthread_sigmask"):
                signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            _send(results, training_run.prepared(options, suggests=False).run(), "", False)
    except KeyboardInterrupt as stop:
        _send(results, exit_status(stop), "", False)
    except MarlConnectorsError as error:
        print(f"marl-connectors: error: {error}", file=sys.stderr)
        _send(results, FAILED, str(error), False)
    except Exception as error:
        traceback.print_exc()
        _send(results, FAILED, f"{describe_error(error)}.", True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()


def _send(results: Any, status: int, error: str, is_unexpected: bool) -> None:
    with contextlib.suppress(OSError):  # the parent process may be gone
        results.send((status, error, is_unexpected))


def _print_to(log: str) -> None:
    """Sends everything that this process prints to a file, after what it has already."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        os.dup2(file, number)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace", line_buffering=True)
    os.close(file)


def _stop_with_parent() -> None:
    """Waits in a thread until the parent process is gone, and then ends this one as SIGTERM does."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


class LogNews:
    """Prints from time to time what is new in the output of runs that are trained in other processes.

    Args:
        logs: The file of each run's output, by the name of the run. What the files have already is not printed.
    """

    def __init__(self, logs: Mapping[str, Path]):
        self._logs = dict(logs)
        self._lines = {name: newest_progress(log) for name, log in logs.items()}
        self._next = time.monotonic() + PROGRESS_S

    def watch(self, name: str, log: Path) -> None:
        """Adds the output of another run."""
        self._logs[name], self._lines[name] = log, newest_progress(log)

    def print_of(self, names: Iterable[str]) -> None:
        """Prints the newest line of progress of each of these runs, if it is new and the time has come."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROGRESS_S
        for name in names:
            line = newest_progress(self._logs[name])
            if line and line != self._lines[name]:
                self._lines[name] = line
                print(f"{name}: {line}", flush=True)


def newest_progress(log: Path) -> str:
    """Returns the newest line of progress near the end of a run's output, such as ``"33%  32,832 agent steps ..."``.

    Before training, it is the beginning of the last line. It is "" if there is none.

    Args:
        log: The file with the output. It may be missing.
    """
    try:
        with open(log, "rb") as file:
            file.seek(max(os.path.getsize(log) - 4096, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    said = [line.strip() for line in reversed(lines) if line.strip()]
    return next((line for line in said if re.match("[0-9]+%  ", line)), said[0][:_MOST_SAID] if said else "")
