"""The folders that commands write to: whether they can be made."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from marl_connectors.algorithms.fitting.run_files import CONFIG, TEMPORARY
from marl_connectors.algorithms.fitting.run_folder import is_run, is_unused, make_folder
from marl_connectors.errors import ConfigError
from marl_connectors.programs import PROGRAM, command

SEEDS = "seeds.json"
"""The file in the folder of runs of several seeds with their options and results."""
SWEEP = "sweep.json"
"""The file in the folder of a sweep with its options and results."""


def new_folder(out: str | None, name: str) -> Path:
    """Makes the folder of several runs: ``out``, or one in ``runs/`` whose name gets a number if it exists.

    Raises:
        ConfigError: If it is taken or cannot be written.
    """
    path = Path("runs") / name if out is None else Path(out)
    check_can_be_made(path, numbered=out is None)
    return make_folder(path, numbered=out is None)


def check_can_be_made(path: Path, *, numbered: bool) -> None:
    """Checks that a run folder can be made, by writing next to it or into it. Leaves no files behind.

    Args:
        path: The folder to be made.
        numbered: Whether the folder may get another name if ``path`` exists.

    Raises:
        ConfigError: If ``path`` is taken or cannot be written.
    """
    try:
        parent = path.absolute()
        while not os.path.lexists(parent):
            parent = parent.parent
        if parent == path.absolute():
            if not numbered and not is_unused(path):
                resumes = "sweep" if (path / SWEEP).is_file() else "train"
                is_taken_up = is_run(path) or any((path / name).is_file() for name in (SEEDS, SWEEP))
                resume = f", or continue with: {command(PROGRAM, resumes, '--resume', path)}"
                raise ConfigError(
                    f"--out: expected a new or empty folder, but {path} exists. Choose another"
                    + (resume if is_taken_up else ".")
                )
            parent = parent.parent if numbered else parent
        if not parent.is_dir():
            raise OSError(f"{parent} is no folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with tempfile.TemporaryDirectory(prefix=".marl-connectors-", suffix=TEMPORARY, dir=parent) as temporary:
            folder = Path(temporary) / path.absolute().relative_to(parent)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CONFIG).write_text("{}")
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--out: expected a place that can be written, but {path} cannot: {why}. Choose another folder."
        ) from error
