"""``python -m marl_connectors`` is the command ``marl-connectors``."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Runs the command line. Ctrl-C during its imports ends the process with status 130, and without a traceback."""
    former = signal.getsignal(signal.SIGINT)
    if former is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from marl_connectors.cli.main import main as run

    signal.signal(signal.SIGINT, former)
    return run()


if __name__ == "__main__":
    sys.exit(main())
