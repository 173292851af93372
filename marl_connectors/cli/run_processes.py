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
from collections.abc import Callable, Iterator
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.fitting.stop_signals import STOP_SIGNALS, InterruptGate, StopSignals, exit_status
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
    """A process in which one run is trained.

    Attributes:
        log: Its output.
    """

    def __init__(self, options: dict[str, Any], log: Path):
        """Starts the process. Stop signals do not reach it before it can handle them.

        Args:
            options: The options of ``train``.
            log: The file for its output.
        """
        self.log = Log(log)
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
            _send(results, training_run.prepared(options).run(suggests=False), "", False)
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


class Log:
    """The output of a run that is trained in another process.

    Args:
        path: The file. What it has already is no news.
    """

    def __init__(self, path: Path):
        self._path, self._line = path, newest_progress(path)

    def news(self) -> str:
        """Returns the newest line of progress; ``""`` if it is that of the last time."""
        former, self._line = self._line, newest_progress(self._path)
        return "" if self._line == former else self._line


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


def train_several(
    runs: Iterator[tuple[str, RunProcess]],
    parallel: int,
    ended: Callable[[str, int, str, bool], int],
    watch: Callable[[str], None] = lambda name: None,
) -> int:
    """Trains several runs at a time, each in a process, and prints from time to time what is new in their output.

    After a stop signal, which the processes get, too, no more are started.

    Args:
        runs: Starts the process of the next run when it is asked for it, and yields its name with it.
        parallel: The number of runs at a time.
        ended: Called with the name of a run that has ended, and what ``RunProcess.result`` returns. Returns the exit
            status if the run was interrupted, or 0.
        watch: Called with the name of each run from time to time, and once more after it has ended.

    Returns:
        The exit status of an interruption, or 0.
    """
    running: dict[str, RunProcess] = {}
    status, sent, news_at = 0, None, time.monotonic() + PROGRESS_S

    def send(number: int) -> None:
        for process in running.values():
            process.send_signal(number)

    with InterruptGate() as gate:
        try:
            while True:
                while gate.requested is None and len(running) < parallel and (begun := next(runs, None)):
                    running.update([begun])
                if not running:
                    return status
                if gate.requested is not None and gate.requested != sent:
                    sent, status = gate.requested, exit_status(gate.requested)
                    send(sent)
                connection.wait([process.sentinel for process in running.values()], timeout=POLL_S)
                for name, process in list(running.items()):
                    has_ended = process.has_ended()  # what it has written before is seen by ``watch``
                    watch(name)
                    if has_ended:
                        status = ended(name, *running.pop(name).result()) or status
                if time.monotonic() >= news_at:
                    news_at = time.monotonic() + PROGRESS_S
                    for name, process in running.items():
                        if line := process.log.news():
                            print(f"{name}: {line}", flush=True)
        except KeyboardInterrupt as stop:  # a second signal
            send(exit_status(stop) - 128)
            return exit_status(stop)
        except BaseException:
            send(signal.SIGTERM)
            raise
        finally:
            for process in running.values():
                process.end()
