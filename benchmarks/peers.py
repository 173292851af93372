"""What benchmarks share that compare libraries: each library's script runs in its own interpreter and prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def name_and_python(peer: str, names: Collection[str]) -> tuple[str, str]:
    """Returns the two parts of ``"name=python"``, an argument of ``--peer``."""
    name, _, python = peer.partition("=")
    if name not in names or not python:
        raise SystemExit(f"--peer: expected NAME=PYTHON with one of the names {', '.join(names)}, got {peer!r}.")
    return name, python


def result_of(script: str, arguments: Sequence[str], *, python: str = sys.executable) -> dict[str, Any]:
    """Runs a script of this folder, and returns the JSON object in its last line of output."""
    environment = {
        **os.environ,
        "SDL_VIDEODRIVER": "dummy",
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(HERE.parent / "envs")]),
    }
    command = [python, str(HERE / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])
