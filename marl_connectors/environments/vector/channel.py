"""Messages between two processes that wait for one another many times a second."""

from __future__ import annotations

import math
import multiprocessing
import os
import select
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from typing import Any

_BELL, _LETTER = 1, 2  # what the number in an eventfd says: that is all, or there is a message


class Channel:
    """One of two ends over which two processes talk in turn: one sends, the other one answers.

    The other process is woken by a number in an ``eventfd``, which is all that there is to the message ``STEP``. Who
    writes to a pipe or a socket is taken to wait next, so Linux likes to put the woken process on the writer's own
    core, and processes that were woken one after another share that one while others are idle. Whom an ``eventfd``
    wakes is rather left where it ran before. It is also some microseconds faster. Where there is none (macOS), all
    messages go over the connection.
    """

    STEP = b"s"

    def __init__(self, connection: Connection, own_bell: int | None, other_bell: int | None):
        """Takes over file descriptors; see ``channel``."""
        self._connection = connection
        self._own_bell, self._other_bell = own_bell, other_bell
        self._sentinel: int | None = None
        self._poll = select.poll()
        if own_bell is None:
            self._poll.register(connection.fileno(), select.POLLIN)
        else:
            self._poll.register(own_bell, select.POLLIN)
            self._poll.register(connection.fileno(), 0)  # tells when the other end is gone

    def watch(self, sentinel: int) -> None:
        """Takes a file descriptor that tells of the end of the other process.

        Its end of the channel may outlive it: processes that it has forked have it, too.
        """
        self._sentinel = sentinel
        self._poll.register(sentinel, select.POLLIN)

    def send(self, message: bytes) -> None:
        """Sends a message.

        Raises:
            OSError: If the other process is gone; not each time.
        """
        if self._other_bell is None:
            self._connection.send_bytes(message)
        elif message == self.STEP:
            os.eventfd_write(self._other_bell, _BELL)
        else:
            os.eventfd_write(self._other_bell, _LETTER)
            self._connection.send_bytes(message)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Waits for the next message.

        Raises:
            EOFError: If the other process is gone. Or an OSError.
            TimeoutError: If nothing came in time.
        """
        ready = self._poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
        if not ready:
            raise TimeoutError
        speaks = self._connection.fileno() if self._own_bell is None else self._own_bell
        if all(fd != speaks for fd, _ in ready):
            raise EOFError
        if self._own_bell is None:
            return self._connection.recv_bytes()
        if os.eventfd_read(self._own_bell) == _BELL:
            return self.STEP
        sources: list[Any] = [self._connection] if self._sentinel is None else [self._connection, self._sentinel]
        found = wait(sources, timeout_s)
        if not found:
            raise TimeoutError
        if self._connection not in found:
            raise EOFError
        return self._connection.recv_bytes()

    def close(self) -> None:
        """Gives the file descriptors back."""
        self._connection.close()
        for bell in (self._own_bell, self._other_bell):
            if bell is not None:
                os.close(bell)
        self._own_bell = self._other_bell = None

    def __reduce__(self) -> tuple[Callable[..., Channel], tuple[Any, ...]]:
        bells = [None if bell is None else reduction.DupFd(bell) for bell in (self._own_bell, self._other_bell)]
        return _received, (self._connection, *bells)


def _received(connection: Connection, *bells: Any) -> Channel:
    own, other = (None if bell is None else bell.detach() for bell in bells)
    return Channel(connection, own, other)


def channel() -> tuple[Channel, Channel]:
    """Both ends of a new channel. One of them can be given to a new process as an argument."""
    here, there = multiprocessing.Pipe()
    if not hasattr(os, "eventfd"):
        return Channel(here, None, None), Channel(there, None, None)
    bells = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2)]
    return Channel(here, bells[0], bells[1]), Channel(there, os.dup(bells[1]), os.dup(bells[0]))
