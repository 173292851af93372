"""Failures of environments: errors that a run can survive, the counts of failures, and time limits for calls."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from msgspec.structs import astuple

from marl_connectors.errors import EnvError, MarlConnectorsError, describe_error
from marl_connectors.state import Count, State

_LOG = logging.getLogger(__name__)

ENV_ERRORS: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""Exceptions that count as a failure of an environment. Others, such as KeyboardInterrupt, concern the program."""


@contextlib.contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Turns errors that are raised in an environment's own code into EnvErrors that name the code.

    Args:
        what: The environment and the call, such as ``"MyEnv: render()"``.
    """
    try:
        yield
    except MarlConnectorsError:
        raise
    except ENV_ERRORS as error:
        raise EnvError(f"{what} raised {describe_error(error)}.") from error


CLOSE_TIMEOUT_S = 10.0
"""Seconds that closing may take for all environments of a VectorEnv in this process, or of a worker process."""
MOMENT_S = 0.2
"""Seconds that closing may take if an environment of the same class has hung before, or if the time is used up."""
_HUNG: WeakSet[type] = WeakSet()


def close_env(env: Any, name: str, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
    """Closes an environment. Errors and hangs are only logged as warnings, since others must be closed too.

    Args:
        env: The environment.
        name: The name of the environment in messages.
        timeout_s: Seconds after which ``close()`` is interrupted, where ``alarm`` can do that; None for no limit. If
            ``close()`` of the same class has hung before in this process, the limit is at most ``MOMENT_S``.
    """
    kind = _class_of(env)
    if timeout_s is not None and kind in _HUNG:
        timeout_s = min(timeout_s, MOMENT_S)
    try:
        with Watched(lambda: f"{name}: close()"), alarm(timeout_s):
            env.close()
    except Hang:
        _HUNG.add(kind)
        _LOG.warning("%s: close() did not return within %.3g s and was given up.", name, timeout_s)
    except ENV_ERRORS as error:
        _LOG.warning("%s: close() raised %s.", name, describe_error(error))


def _class_of(env: Any) -> type:
    try:
        return type(env.unwrapped)
    except ENV_ERRORS:
        return type(env)


@dataclass(frozen=True, slots=True)
class EnvRestarts:
    """Settings for the replacement of environments that failed.

    Attributes:
        tolerance: The number of failures of one sub-environment, without a finished episode between them, that do not
            stop the run.
        observation_space: A space or ``{agent_id: space}`` that replaces the environments' own; None to use theirs.
    """

    tolerance: int = 100
    observation_space: Any = None


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """A failure of a sub-environment that continues with another episode.

    Attributes:
        index: The index of the sub-environment.
        message: What went wrong, with the sub-environment, its seed, episode and step.
    """

    index: int
    message: str


def sentence(error: BaseException) -> str:
    """Returns the text of an error with a full stop at its end."""
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


class FailureCounts(State):
    """Counts of failures, and of the data that was lost by them.

    Attributes:
        num_env_failures: The number of environments that raised, returned invalid data or hung, and of worker
            processes that ended.
        num_dropped_episodes: The number of unfinished episodes that these failures ended.
        num_dropped_env_steps: The number of sampled env steps of those episodes that are not in any sample.
    """

    num_env_failures: Count = 0
    num_dropped_episodes: Count = 0
    num_dropped_env_steps: Count = 0

    @staticmethod
    def merged(counts: Iterable[FailureCounts]) -> FailureCounts:
        """Returns the sums of several counts."""
        return FailureCounts(*map(sum, zip(*map(astuple, counts), strict=True)))


PATIENCE_S = 30.0
"""Seconds after which a warning is logged for a call that has not returned."""
_LOOK_EVERY_S = 5.0
_is_watching = True


def stop_watching() -> None:
    """Stops ``Watched`` from watching in this process. A worker's time is limited by the process that started it."""
    global _is_watching
    _is_watching = False


class Hang(BaseException):
    """Raised inside a call that takes too long. An ``except Exception`` of the environment does not catch it."""


@contextlib.contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """Raises ``Hang`` in the block after ``seconds``, in the main thread of a POSIX system.

    In other threads and on other systems, and if ``seconds`` is None, the block has no time limit.

    The alarm interrupts Python code that waits or loops (sleep, locks, sockets). Compiled code continues until it
    returns.
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
        # An alarm that was set by other code, for example by a test runner, continues.
        left = max(remaining - (time.monotonic() - begin), 1e-3) if remaining else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)


def _ring(number: int, frame: Any) -> None:
    raise Hang


class Watched:
    """Logs one warning if the block takes longer than ``PATIENCE_S`` seconds.

    A thread checks this every few seconds while there is a block to watch. It cannot run during a call that holds
    Python's global interpreter lock.
    """

    __slots__ = ("_began", "_what", "is_told")

    def __init__(self, what: Callable[[], str]):
        """Creates the context manager.

        Args:
            what: Returns the name of the call, such as ``"sub-environment 3: reset()"``. It is only called for a
                warning.
        """
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
        """Logs the warning if the time is over and it was not logged before."""
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
