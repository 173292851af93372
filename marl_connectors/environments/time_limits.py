"""Calls into environments of this process that take too long: an alarm interrupts them, a watch only tells the log."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

_LOG = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""What a call may take before the log is told."""
_LOOK_EVERY_S = 5.0
_is_watching = True


def stop_watching() -> None:
    """Starts no more watches here, in a worker process, where another process limits the time."""
    global _is_watching
    _is_watching = False


class Hang(BaseException):
    """Raised inside a call that takes too long; no ``except Exception`` of the environment stops it."""


@contextlib.contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """Raises ``Hang`` in the block after so many seconds, in the main thread of a POSIX system.

    Elsewhere, and if the number is None, it waits.

    Python's own waiting (sleep, locks, sockets, loops) is interrupted. Compiled code goes on until it returns.
    """
    can_ring = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if seconds is None or not can_ring:
        yield
        return
    handler = signal.signal(signal.SIGALRM, _ring)
    begin = time.monotonic()
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        # Somebody else's alarm, for example that of a test runner, goes on.
        left = max(remaining - (time.monotonic() - begin), 1e-3) if remaining else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)


def _ring(number: int, frame: Any) -> None:
    raise Hang


class Watched:
    """Tells the log once if the block takes longer than ``PATIENCE_S``.

    A thread looks now and then, as long as there is something to watch. A call that keeps Python's lock keeps it from
    doing so.
    """

    __slots__ = ("_began", "_what", "is_told")

    def __init__(self, what: Callable[[], str]):
        """Takes what gives the name of the call, such as ``"environment copy 3: reset()"``."""
        self._what, self.is_told = what, False

    def __enter__(self) -> None:
        global _watcher
        self._began = time.monotonic()
        _CALLS[id(self)] = self
        if _is_watching and (_watcher is None or not _watcher.is_alive()):
            _watcher = threading.Thread(target=_watch, name="watched-calls", daemon=True)
            _watcher.start()

    def __exit__(self, *exc_info: object) -> None:
        _CALLS.pop(id(self), None)

    def look(self) -> None:
        """Tells the log if it is time to, once."""
        if not self.is_told and time.monotonic() - self._began >= PATIENCE_S:
            self.is_told = True
            _LOG.warning(
                "%s has not returned for %g s. Only in worker processes (num_env_workers) does sample_timeout_s limit "
                "how long an environment may take.",
                self._what(),
                PATIENCE_S,
            )


_CALLS: dict[int, Watched] = {}
_watcher: threading.Thread | None = None


def _watch() -> None:
    while _CALLS:
        time.sleep(_LOOK_EVERY_S)
        for call in list(_CALLS.values()):
            call.look()
