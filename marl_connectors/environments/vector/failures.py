"""What environments may do wrong without stopping the run, what it may cost, and how long their calls may take."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakSet

from marl_connectors.errors import EnvError, MarlConnectorsError, describe_error

_LOG = logging.getLogger(__name__)

ENV_ERRORS: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""What an environment that fails may raise. Anything else is meant for the program, such as a KeyboardInterrupt."""


@contextlib.contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Turns errors of an environment's own code into EnvErrors that say where they come from.

    Args:
        what: Whose and which code it is, such as ``"MyEnv: render()"``.
    """
    try:
        yield
    except MarlConnectorsError:
        raise
    except ENV_ERRORS as error:
        raise EnvError(f"{what} raised {describe_error(error)}.") from error


CLOSE_TIMEOUT_S = 10.0
"""What closing may take at most: all environments of a VectorEnv in this process, or of a worker process."""
MOMENT_S = 0.2
"""What closing may take where environments of the same class have hung before, or where the time is used up."""
_HUNG: WeakSet[type] = WeakSet()


def close_env(env: Any, name: str, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
    """Closes an environment. If it raises or hangs, that is a warning: whatever else there is must be closed too.

    What hangs is interrupted after ``timeout_s`` where ``alarm`` can do that; None for never. A class whose ``close()``
    has hung once in this process is not waited for again.
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
    """How environments that failed are replaced.

    Attributes:
        make_env: Makes one.
        tolerance: Failures of one sub-environment without a finished episode between them that do not stop the run.
        observation_space: Instead of the environments' own: a space, or ``{agent_id: space}``.
    """

    make_env: Callable[[], Any]
    tolerance: int = 100
    observation_space: Any = None


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """What went wrong in a sub-environment that goes on with another episode.

    Attributes:
        index: The sub-environment's place.
        message: Names the sub-environment, its seed, episode and step.
    """

    index: int
    message: str


def sentence(error: BaseException) -> str:
    """What an error says, with a full stop."""
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


@dataclass(slots=True)
class FailureCounts:
    """What failures have cost.

    Attributes:
        num_env_failures: Environments that raised, gave invalid data or hung, and worker processes that ended.
        num_dropped_episodes: Unfinished episodes that these failures ended.
        num_dropped_env_steps: Sampled env steps of those episodes that are in no sample.
    """

    num_env_failures: int = 0
    num_dropped_episodes: int = 0
    num_dropped_env_steps: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


PATIENCE_S = 30.0
"""What a call may take before the log is told."""
_LOOK_EVERY_S = 5.0
_is_watching = True


def stop_watching() -> None:
    """Starts no more watches here, in a worker process, where another process limits the time."""
    global _is_watching
    _is_watching = False


class Hang(BaseException):
    """Raised inside a call that takes too long. An ``except Exception`` of the environment does not catch it."""


@contextlib.contextmanager
def alarm(seconds: float | None) -> Iterator[None]:
    """Raises ``Hang`` in the block after so many seconds, in the main thread of a POSIX system.

    Elsewhere, and if the number is None, the block has no time limit.

    The alarm interrupts Python code that waits or loops (sleep, locks, sockets). Compiled code goes on until it
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
        # Somebody else's alarm, for example that of a test runner, goes on.
        left = max(remaining - (time.monotonic() - begin), 1e-3) if remaining else 0.0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)


def _ring(number: int, frame: Any) -> None:
    raise Hang


class Watched:
    """Writes to the log once if the block takes longer than ``PATIENCE_S``.

    A thread checks this from time to time, as long as there is a block to watch. It cannot check during a call that
    holds Python's lock.
    """

    __slots__ = ("_began", "_what", "is_told")

    def __init__(self, what: Callable[[], str]):
        """Takes a function that gives the name of the call, such as ``"sub-environment 3: reset()"``."""
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
        """Writes to the log, once, if it is time to."""
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
