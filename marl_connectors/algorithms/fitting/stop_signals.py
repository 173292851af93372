"""Signals that ask a command to end: Ctrl-C, SIGTERM (batch systems, containers) and SIGHUP (a closed terminal)."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from typing_extensions import Self

GRACE_S = 20.0
"""The seconds that an iteration may take after SIGTERM or SIGHUP. They are often followed by a kill after 30 s."""

STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class StopSignal(KeyboardInterrupt):
    """A signal asks the command to end.

    Attributes:
        number: The signal's number.
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_status(stop: KeyboardInterrupt | int) -> int:
    """Returns the exit status of a program that a signal has ended: 128 plus the signal's number.

    >>> exit_status(signal.SIGTERM), exit_status(KeyboardInterrupt())
    (143, 130)
    """
    if isinstance(stop, int):
        return 128 + stop
    # Compiled code that waits, such as Ray's, replaces a StopSignal by a KeyboardInterrupt.
    return 128 + getattr(stop, "number", StopSignals.latest or signal.SIGINT)


class StopSignals:
    """Within its ``with`` block, the stop signals raise ``StopSignal`` in the main thread.

    Signals that are ignored, as under ``nohup``, or that have another handler, are left alone. In a process that the
    environment has forked, the signals have their usual effect.

    Attributes:
        latest: The signal for which the newest ``StopSignal`` was raised, since the beginning of the newest block.
    """

    latest: ClassVar[int | None] = None

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._former: dict[int, Any] = {}
        self._terminals = [fd for fd in (1, 2) if os.isatty(fd)]

    def __enter__(self) -> Self:
        StopSignals.latest = None
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                former = signal.getsignal(number)
                if self._replaces(former):
                    self._former[number] = former
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exc_info: object) -> None:
        while self._former:
            signal.signal(*self._former.popitem())

    def _replaces(self, handler: Any) -> bool:
        return handler in (signal.SIG_DFL, signal.default_int_handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            signal.raise_signal(number)
            return
        if number == getattr(signal, "SIGHUP", None):
            self._leave_terminal()
        self._answer(number)

    def _answer(self, number: int) -> None:
        self._stop(number)

    def _stop(self, number: int) -> NoReturn:
        StopSignals.latest = number
        raise StopSignal(number)

    def _leave_terminal(self) -> None:
        """Discards everything that is printed from now on, because writing to the closed terminal would be an error."""
        for fd in self._terminals:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, fd)
            os.close(nowhere)


class InterruptGate(StopSignals):
    """Turns a first stop signal into a request that the work in its block reads. A second one raises ``StopSignal``.

    So a run finishes the iteration, and saves the state between two iterations; and an evaluation keeps the episodes
    that have ended. SIGTERM and SIGHUP are usually followed by a ``kill``, so after these (but not after Ctrl-C) an
    iteration that takes too long is given up.

    Attributes:
        requested: The first signal; None if there was none.
        gave_up: Whether the ongoing iteration took too long and was given up.
    """

    def __init__(self, grace_s: float = GRACE_S, *, stops: str = "after this iteration") -> None:
        """Opens the gate.

        Args:
            grace_s: The seconds after which an iteration is given up.
            stops: Says when the work stops after a first signal, for the message.
        """
        super().__init__()
        self._stops = stops
        self.requested: int | None = None
        self.gave_up = False
        self._grace_s = grace_s
        self._in_iteration = False
        self._timer: threading.Timer | None = None
        self._is_late = False

    def __exit__(self, *exc_info: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().__exit__(*exc_info)

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        """Runs an iteration, or an evaluation, in its block, which may be given up."""
        self._in_iteration = True
        try:
            yield
        finally:
            self._in_iteration = False

    def is_requested(self) -> bool:
        """Whether there was a signal."""
        return self.requested is not None

    def _replaces(self, handler: Any) -> bool:
        return handler not in (signal.SIG_IGN, None)

    def _answer(self, number: int) -> None:
        if self._is_late:
            self._is_late = False
            if self._in_iteration:
                self.gave_up = True
                self._stop(number)
        elif self.requested is not None:
            self._stop(number)
        else:
            self.requested = number
            self._say(number)
            if number != signal.SIGINT:
                self._timer = threading.Timer(self._grace_s, self._run_late, (number,))
                self._timer.daemon = True
                self._timer.start()

    def _run_late(self, number: int) -> None:
        """Runs in a thread and interrupts the main thread, even while it waits for a worker process."""
        self._is_late = True
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(threading.main_thread().ident or 0, number)
        else:
            _thread.interrupt_main(signal.Signals(number))

    def _say(self, number: int) -> None:
        if number == signal.SIGINT:
            text = f"Stopping {self._stops}; Ctrl-C again stops at once."
        else:
            text = f"{signal.Signals(number).name}: stopping {self._stops}; a second signal stops at once."
        # print could fail, because the interrupted code may be writing to stderr itself.
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            sys.stderr.write(f"\n{text}\n")
