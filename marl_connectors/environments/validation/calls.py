"""Calls into an environment that may raise, hang or draw from global random state."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors.environments.validation.report import Findings
from marl_connectors.environments.validation.rules import RULES
from marl_connectors.environments.vector import failures
from marl_connectors.environments.vector.failures import Hang, alarm
from marl_connectors.errors import describe_error


class CallFailed(Exception):
    """The environment raised or hung; a finding says so already."""


class OutOfTime(Exception):
    """The time for all checks is used up."""


class Calls:
    """Makes calls into an environment: with a time limit, and failures become findings.

    Attributes:
        seconds: Time spent inside the last call.
    """

    def __init__(self, findings: Findings, *, call_timeout: float, max_seconds: float):
        """Starts the clock.

        Args:
            findings: Where failures go.
            call_timeout: Seconds after which one call counts as hanging.
            max_seconds: Seconds for everything.
        """
        self.findings = findings
        self.seconds = 0.0
        self._call_timeout = call_timeout
        self._max_seconds = max_seconds
        self._end = time.monotonic() + max_seconds

    @property
    def time_left(self) -> float:
        """Seconds."""
        return self._end - time.monotonic()

    def check_time(self) -> None:
        """Raises OutOfTime if there is no time left; a note says so."""
        if self.time_left <= 0:
            self.findings.note(
                "out-of-time", f"After {self._max_seconds:g} seconds, the rest of the checks was left out"
            )
            raise OutOfTime

    def __call__(
        self,
        doing: str,
        fn: Callable[[], Any],
        *,
        kind: str = "raised",
        step: int | None = None,
        at_least: float = 0.0,
    ) -> Any:
        """What ``fn()`` gives.

        Args:
            doing: What is being done, for the finding.
            fn: Calls the environment.
            kind: Of the finding if it raises.
            step: Of the finding.
            at_least: Seconds that it may take, if that is more than others may.

        Raises:
            CallFailed: If it raised or hung.
        """
        limit = max(self._call_timeout, at_least)
        try:
            with alarm(limit):
                begin = time.perf_counter()
                result = fn()
                self.seconds = time.perf_counter() - begin
                return result
        except Hang as hang:
            what = f"{doing} did not return within {limit:g} seconds: it was at {_place(hang)}"
            self.findings.note("hangs", what, level=RULES[kind].level, step=step)
            raise CallFailed from hang
        except (Exception, SystemExit) as error:
            what = f"{doing} raised {describe_error(error)}"
            self.findings.note(kind, what, step=step)
            raise CallFailed from error


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # What the alarm itself did, and what hands calls on, is not where the environment stands.
    own = (__file__, failures.__file__)
    kept = [frame for frame in frames if frame.filename not in own] or list(frames)
    frame = kept[-1]
    line = f": {frame.line}" if frame.line and not frame.line.startswith("raise ") else ""
    return f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}{line}"


def outcome_in_child(fn: Callable[[], Any], seconds: float = 5.0) -> str:
    """Calls ``fn`` in a forked process, for what may crash the interpreter.

    Returns:
        ``""`` if it returned (or cannot be tried on this system, or took too long), else what happened to it.
    """
    if not hasattr(os, "fork"):
        return ""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _run_and_exit(fn, writer)
    os.close(writer)
    end = time.monotonic() + seconds
    done, status = os.waitpid(child, os.WNOHANG)
    while not done and time.monotonic() < end:
        time.sleep(0.002)
        done, status = os.waitpid(child, os.WNOHANG)
    if not done:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read().decode(errors="replace") if done else ""
    if done and os.WIFSIGNALED(status):
        return f"killed the process with {signal.Signals(os.WTERMSIG(status)).name}"
    return f"raised {text}" if text else ""


def _run_and_exit(fn: Callable[[], Any], writer: int) -> None:
    """The forked process: nothing of it may get out, neither an exception nor output."""
    try:
        import faulthandler

        faulthandler.disable()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        signal.setitimer(signal.ITIMER_REAL, 0)
        fn()
    except BaseException as error:
        os.write(writer, describe_error(error).encode()[:4000])
    finally:
        os._exit(0)


@contextlib.contextmanager
def global_random_state(seed: int) -> Iterator[None]:
    """Seeds numpy's and Python's global generators for the block, and puts them back afterwards."""
    python, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)


def global_draws() -> dict[str, int]:
    """What tells whether a global generator was used in between: by its name, a hash of its state."""
    _, keys, position, *gauss = np.random.get_state()
    numpy_state = hash((np.asarray(keys).tobytes(), position, *gauss))
    return {"np.random": numpy_state, "random": hash(random.getstate())}


@contextlib.contextmanager
def collected_warnings(findings: Findings) -> Iterator[None]:
    """Warnings in the block become notes. Those about deprecations and imports are nobody's concern here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for each in caught:
                if not issubclass(each.category, (DeprecationWarning, ImportWarning, ResourceWarning)):
                    text = warning_text(each)
                    place = f"{Path(each.filename).name}, line {each.lineno}"
                    findings.note("warns", f"{each.category.__name__}: {text} ({place})", part=text)


def warning_text(caught: warnings.WarningMessage) -> str:
    """A warning's text in one line, without the colours that Gymnasium gives it."""
    text = " ".join(str(caught.message).split())
    for code in ("\x1b[33m", "\x1b[31m", "\x1b[0m"):
        text = text.replace(code, "")
    return text.removeprefix("WARN: ")


def digest(value: Any) -> bytes:
    """A short stand-in for nested data: equal for equal data, whatever objects hold it."""
    feed = hashlib.blake2b(digest_size=12)
    _feed(feed, value)
    return feed.digest()


def _feed(feed: Any, value: Any) -> None:
    if isinstance(value, np.ndarray) and value.dtype != object:
        feed.update(f"{value.dtype}{value.shape}".encode())
        feed.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, (np.generic, int, float, complex, bool, str, bytes)) or value is None:
        feed.update(repr(value).encode())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            feed.update(repr(key).encode())
            _feed(feed, item)
    elif isinstance(value, (list, tuple, np.ndarray)):
        for item in value:
            feed.update(b",")
            _feed(feed, item)
    elif isinstance(value, (set, frozenset)):
        feed.update("".join(sorted(map(repr, value))).encode())
    else:  # an object of the environment's own, whose repr may hold an address
        feed.update(type(value).__qualname__.encode())
