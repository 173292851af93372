"""Calls methods of an environment that may raise, hang or draw from the global random state."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import random
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors.environments.check.report import Findings
from marl_connectors.environments.check.rules import RULES
from marl_connectors.environments.rules import env_failures
from marl_connectors.environments.rules.env_failures import Hang, alarm
from marl_connectors.errors import describe_error


class CallFailed(Exception):
    """Raised after an environment call failed or hung and its finding was recorded."""


class OutOfTime(Exception):
    """The time for all checks is used up."""


class Calls:
    """Calls methods of an environment with a time limit, and turns failures into findings.

    Attributes:
        seconds: The duration of the last call in seconds.
    """

    def __init__(self, findings: Findings, *, call_timeout: float, max_seconds: float):
        """Starts the clock.

        Args:
            findings: Collects the failures.
            call_timeout: Seconds after which one call counts as hanging.
            max_seconds: Seconds for all calls together.
        """
        self.findings = findings
        self.seconds = 0.0
        self._call_timeout = call_timeout
        self._max_seconds = max_seconds
        self._end = time.monotonic() + max_seconds

    @property
    def time_left(self) -> float:
        """The seconds that are left for all calls; negative after that."""
        return self._end - time.monotonic()

    def check_time(self) -> None:
        """Raises OutOfTime, after adding a note, if there is no time left."""
        if self.time_left <= 0:
            self.findings.note(
                "out-of-time", f"The rest of the checks was left out after {self._max_seconds:g} seconds"
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
        """Calls ``fn``.

        Args:
            doing: The name of the call, for the finding.
            fn: Calls the environment.
            kind: The kind of the finding if ``fn`` raises.
            step: The env step of the finding.
            at_least: Seconds that the call may take, if that is more than ``call_timeout``.

        Returns:
            The result of ``fn``.

        Raises:
            CallFailed: If ``fn`` raised or hung.
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
    # Frames of the alarm and of this module are left out: they are not where the environment hangs.
    own = (__file__, env_failures.__file__)
    kept = [frame for frame in frames if frame.filename not in own] or list(frames)
    frame = kept[-1]
    line = f": {frame.line}" if frame.line and not frame.line.startswith("raise ") else ""
    return f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}{line}"


def outcome_in_child(fn: Callable[[], Any], seconds: float = 5.0) -> str:
    """Calls a function that may crash the interpreter in a forked process.

    Args:
        fn: The function.
        seconds: Seconds after which the process is killed.

    Returns:
        ``""`` if the function returned, took too long, or if this process cannot fork; else a description of the error.
    """
    if "fork" not in multiprocessing.get_all_start_methods() or multiprocessing.current_process().daemon:
        return ""
    context: Any = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_run_silently, args=(fn, writer))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns if there are threads
        process.start()
    writer.close()
    process.join(seconds)
    if (status := process.exitcode) is None:
        process.kill()
        process.join()
    with reader, contextlib.suppress(EOFError):
        if status is not None and status < 0:
            return f"killed the process with {signal.Signals(-status).name}"
        return "" if status is None else reader.recv()
    return ""


def _run_silently(fn: Callable[[], Any], writer: Any) -> None:
    """Runs ``fn`` in the forked process without any output, and sends an error's description to ``writer``."""
    import faulthandler

    faulthandler.disable()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        fn()
    except BaseException as error:
        writer.send(f"raised {describe_error(error)}"[:4000])
    finally:
        os._exit(0)


@contextlib.contextmanager
def global_random_state(seed: int) -> Iterator[None]:
    """Seeds numpy's and Python's global generators for the block, and restores them afterwards."""
    python, numpy_state = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)


def global_draws() -> dict[str, int]:
    """Returns a hash of each global generator's state by its name. A hash that differs later shows that it was used."""
    _, keys, position, *gauss = np.random.get_state()
    numpy_state = hash((np.asarray(keys).tobytes(), position, *gauss))
    return {"np.random": numpy_state, "random": hash(random.getstate())}


@contextlib.contextmanager
def collected_warnings(findings: Findings) -> Iterator[None]:
    """Turns warnings in the block into notes, except those about deprecations, imports and open resources."""
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
    """Returns a warning's text in one line, without the colour codes that Gymnasium adds."""
    text = " ".join(str(caught.message).split())
    for code in ("\x1b[33m", "\x1b[31m", "\x1b[0m"):
        text = text.replace(code, "")
    return text.removeprefix("WARN: ")


def digest(value: Any) -> bytes:
    """Returns a short hash of nested data. It is equal for equal data, even in different objects."""
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
