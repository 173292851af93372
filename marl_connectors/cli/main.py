"""The entry point of the command line, and its errors, which are one line each."""

from __future__ import annotations

import io
import os
import select
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from marl_connectors.algorithms.fitting.stop_signals import StopSignals, exit_status
from marl_connectors.cli.parser import parse
from marl_connectors.environments.vector.worker_threads import one_thread_unless_set
from marl_connectors.errors import EnvWarning, MarlConnectorsError, OfflineDataWarning

EXIT_BAD_INPUT = 2
EXIT_NOBODY_READS = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
        argv: The words after the program's name; None for the words of the process.

    Returns:
        The exit status: 0 if all went well, 1 if ``check`` found errors, 2 for bad input (after one line on stderr),
        130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 141 if the reader of the output has gone.
    """
    # pygame prints a greeting when it is imported, which would be in the middle of the progress display.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    plain = warnings.formatwarning
    warnings.formatwarning = _formatted
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show every character
    try:
        with StopSignals():
            args = parse(sys.argv[1:] if argv is None else argv)
            if getattr(args, "trusted", True) and not {"", os.getcwd()} & set(sys.path):
                sys.path.insert(0, os.getcwd())
            os.environ.update(one_thread_unless_set(os.environ))  # before numpy is imported; torch has its own setting
            status = args.run(args)
            sys.stdout.flush()
            return status
    except MarlConnectorsError as error:
        print(f"marl-connectors: error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BrokenPipeError:
        if _can_print():
            raise
        return EXIT_NOBODY_READS
    except KeyboardInterrupt as stop:
        print("\nStopped before anything was written.", file=sys.stderr)
        return exit_status(stop)
    finally:
        warnings.formatwarning = plain


def _formatted(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Formats a warning about the environment or recorded data in one line.

    Others are formatted as Python does it, but without the source line.
    """
    if issubclass(category, (EnvWarning, OfflineDataWarning)):
        return f"marl-connectors: warning: {' '.join(str(message).split())}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"


def _can_print() -> bool:
    """Whether stdout has a reader. If not, stdout is discarded from now on, so that Python ends without an error."""
    try:
        sys.stdout.flush()
        if not _reader_has_gone(sys.stdout):  # what could not be written may be gone already, so flush() says nothing
            return True
    except BrokenPipeError:
        pass
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return False


def _reader_has_gone(stream: Any) -> bool:
    """Whether a stream is a pipe that nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLERR)
    except (AttributeError, OSError, ValueError):  # there is no poll on this system, or it is no real file
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
