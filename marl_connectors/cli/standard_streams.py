"""The output of the process when nobody reads it, when its disk is full, or when it was closed before the start."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import Any


def prepare() -> None:
    """Makes stdout and stderr usable: one that is closed leads nowhere, and shows all characters in some way.

    Otherwise, the next file that is opened would have its number, and get what is printed.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            _lead_nowhere(number)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show every character


def complain(text: str) -> None:
    """Prints a line on stderr, if that is possible."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def nobody_reads() -> bool:
    """Whether stdout has no reader any more, after an OSError."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return True
    return _reader_has_gone(sys.stdout)  # what could not be written may be gone already, so that flush() says nothing


def is_full() -> bool:
    """Whether stdout accepts no more text, after an OSError."""
    try:
        print(flush=True)  # what could not be written is gone with the error
    except BrokenPipeError:
        return False
    except OSError:
        return True
    return False


def discard_output() -> None:
    """Discards what is printed on stdout from now on, so that Python ends without an error."""
    _lead_nowhere(sys.stdout.fileno())


def _lead_nowhere(number: int) -> None:
    """Lets a file descriptor lead to the null device."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)


def _reader_has_gone(stream: Any) -> bool:
    """Whether a stream is a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLERR)
    except (AttributeError, OSError, ValueError):  # there is no poll on this system, or it is no real file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
