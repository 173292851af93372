"""The entry point of the command line, and its errors, which are one line each."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Sequence

from marl_connectors.algorithms.fitting.stop_signals import StopSignals, exit_status
from marl_connectors.cli.parser import parse
from marl_connectors.environments.vector.worker_threads import one_thread_unless_set
from marl_connectors.errors import ConfigError, MarlConnectorsError, MarlConnectorsWarning

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
    # Without a display, SDL complains about its places before it does without one.
    if sys.platform == "linux" and not {"DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"} & os.environ.keys():
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    plain = warnings.formatwarning
    warnings.formatwarning = _formatted
    log_of_masks = logging.getLogger("marl_connectors.action_masks")  # commands print what it says
    log_of_masks.disabled = True
    _prepare_streams()
    try:
        with StopSignals():
            args = parse(sys.argv[1:] if argv is None else argv)
            folder = _current_folder()
            if getattr(args, "trusted", True) and not {"", folder} & set(sys.path):
                sys.path.insert(0, folder)
            os.environ.update(one_thread_unless_set(os.environ))  # before numpy is imported; torch has its own setting
            status = args.run(args)
            print(end="", flush=True)
            return status
    except MarlConnectorsError as error:
        _complain(" ".join(str(error).split()))
        return EXIT_BAD_INPUT
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            _complain(f"{str(error.filename)[:40]!r}... is too long for a path.")
            return EXIT_BAD_INPUT
        if (lost := _lost_output()) is None:
            raise
        if isinstance(lost, BrokenPipeError):
            return EXIT_NOBODY_READS
        _complain(f"the output cannot be written: {lost.strerror or lost}.")
        return EXIT_BAD_INPUT
    except KeyboardInterrupt as stop:
        print("\nStopped before anything was written.", file=sys.stderr)
        return exit_status(stop)
    finally:
        warnings.formatwarning = plain
        log_of_masks.disabled = False


def _prepare_streams() -> None:
    """Makes stdout and stderr usable: one that was closed leads nowhere, and shows all characters in some way."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # this file gets its number, which the next one that is opened would get otherwise
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show every character


def _complain(text: str) -> None:
    print(f"marl-connectors: error: {text}", file=sys.stderr, flush=True)


def _lost_output() -> OSError | None:
    """Returns why stdout cannot be written to any more, and lets it lead nowhere; None if it can."""
    try:
        print(flush=True)  # what could not be written is gone already
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _current_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError as error:
        raise ConfigError("the current folder is not there any more. Go to another one, and repeat this.") from error


def _formatted(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Formats a warning of this library in one line; others as Python does it, but without the source line."""
    if issubclass(category, MarlConnectorsWarning):
        return f"marl-connectors: warning: {' '.join(str(message).split())}\n"
    return f"{filename}:{lineno}: {category.__name__}: {message}\n"
