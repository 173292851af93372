"""Messages between two processes that wait for one another many times a second."""

from __future__ import annotations

import math
import multiprocessing
import os
import select
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from typing import Any

_ROOM = 2**20
"""The size of the largest message, in bytes, that is sent in shared memory."""
_LETTER = _ROOM + 2
"""The number in an ``eventfd`` that announces a message in the connection; others are 1 more than its length."""


class Channel:
    """One of two ends over which two processes talk in turn: one sends, the other one answers.

    A message is in memory that both share, and the other process is woken by a number in an ``eventfd``. After a write
    to a pipe or a socket, Linux expects the writer to wait and tends to move the woken process to the writer's core, so
    that processes woken one after another share one core while other cores are idle. A process woken by an ``eventfd``
    usually stays on its core. An ``eventfd`` is also some microseconds faster. Large messages, and where there is no
    ``eventfd`` (macOS) all messages, are sent over a connection.
    """

    def __init__(self, connection: Connection, memory: Any, own_bell: int | None, other_bell: int | None):
        """Becomes the owner of the connection and of the file descriptors; see ``channel``."""
        self._connection = connection
        self._memory, self._room = memory, memoryview(memory).cast("B")
        self._own_bell, self._other_bell = own_bell, other_bell
        self._sentinel: int | None = None
        self._poll = select.poll()
        if own_bell is None:
            self._poll.register(connection.fileno(), select.POLLIN)
        else:
            self._poll.register(own_bell, select.POLLIN)
            self._poll.register(connection.fileno(), 0)  # reports when the other end is gone

    def watch(self, sentinel: int) -> None:
        """Watches a file descriptor that becomes readable when the other process ends.

        The other end of the channel may stay open longer: processes that the other process has forked have it too.
        """
        self._sentinel = sentinel
        self._poll.register(sentinel, select.POLLIN)

    def send(self, message: bytes) -> None:
        """Sends a message.

        Raises:
            OSError: If the other process is known to be gone. It may be gone without this error.
        """
        if self._other_bell is None:
            self._connection.send_bytes(message)
        elif len(message) <= _ROOM:
            self._room[: len(message)] = message
            os.eventfd_write(self._other_bell, len(message) + 1)
        else:
            os.eventfd_write(self._other_bell, _LETTER)
            self._connection.send_bytes(message)

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Waits for the next message and returns it.

        Args:
            timeout_s: Seconds to wait; None for no limit.

        Raises:
            EOFError: If the other process is gone.
            OSError: If the other process is gone and the connection is broken.
            TimeoutError: If no message came in time.
        """
        ready = self._poll.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
        if not ready:
            raise TimeoutError
        speaks = self._connection.fileno() if self._own_bell is None else self._own_bell
        if all(fd != speaks for fd, _ in ready):
            raise EOFError
        if self._own_bell is None:
            return self._connection.recv_bytes()
        if (number := os.eventfd_read(self._own_bell)) != _LETTER:
            return bytes(self._room[: number - 1])
        sources: list[Any] = [self._connection] if self._sentinel is None else [self._connection, self._sentinel]
        found = wait(sources, timeout_s)
        if not found:
            raise TimeoutError
        if self._connection not in found:
            raise EOFError
        return self._connection.recv_bytes()

    def close(self) -> None:
        """Closes the file descriptors."""
        self._connection.close()
        for bell in (self._own_bell, self._other_bell):
            if bell is not None:
                os.close(bell)
        self._own_bell = self._other_bell = None

    def __reduce__(self) -> tuple[Callable[..., Channel], tuple[Any, ...]]:
        bells = [None if bell is None else reduction.DupFd(bell) for bell in (self._own_bell, self._other_bell)]
        return _received, (self._connection, self._memory, *bells)


def _received(connection: Connection, memory: Any, *bells: Any) -> Channel:
    own, other = (None if bell is None else bell.detach() for bell in bells)
    return Channel(connection, memory, own, other)


def channel() -> tuple[Channel, Channel]:
    """Returns both ends of a new channel. One of them can be passed to a new process as an argument."""
    here, there = multiprocessing.Pipe()
    memory = RawArray("b", _ROOM)
    if not hasattr(os, "eventfd"):
        return Channel(here, memory, None, None), Channel(there, memory, None, None)
    bells = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(2)]
    return Channel(here, memory, bells[0], bells[1]), Channel(there, memory, os.dup(bells[1]), os.dup(bells[0]))
