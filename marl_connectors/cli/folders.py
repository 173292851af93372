"""The folders that commands write to: whether they can be made."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
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
    with _written("--out", "place", path, "Choose another folder."):
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


def check_video_can_be_made(path: Path) -> None:
    """Checks that a GIF or an MP4 file can be written at a path, and leaves none there.

    Raises:
        ConfigError: If it cannot be written.
    """
    if path.suffix.lower() not in (".gif", ".mp4") and not path.is_dir():
        raise ConfigError(f"--video: expected a file that ends in .gif or .mp4, but got {str(path)!r}.")
    with _written("--video", "file", path, "Choose another."):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".marl-connectors-", dir=path.parent) as folder:
            (Path(folder) / path.name).write_bytes(b"GIF")
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@contextlib.contextmanager
def _written(option: str, what: str, path: Path, hint: str) -> Iterator[None]:
    """Turns an error of writing for an option into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"{option}: expected a {what} that can be written, but {path} cannot: {why}. {hint}"
        ) from error
