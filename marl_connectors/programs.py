"""How the programs of this Python environment are called in a shell, for messages that suggest a command."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PROGRAM: Final = "marl-connectors"
_MODULES: Final = {PROGRAM: "marl_connectors", "tensorboard": "tensorboard.main", "pip": "pip"}
"""The modules that ``python -m`` runs as these programs."""


def command(*words: object) -> str:
    """Returns a command that can be pasted into a shell, whether or not the virtual environment is active.

    A program that the shell finds by its name, and that is the one of this environment, is called by its name. Any
    other is called by its path, such as ``.venv/bin/marl-connectors``. Words are quoted where the shell needs it.

    Args:
        *words: A program of this environment, such as ``"marl-connectors"``, and its arguments.
    """
    program, *arguments = map(str, words)
    return shlex.join([*program_words(program), *arguments])


def program_words(name: str) -> list[str]:
    """Returns the words that begin a command with a program of this environment."""
    if name == "python":
        own = [Path(sys.executable)]
    else:
        own = [Path(found) for folder in _folders() if (found := shutil.which(name, path=str(folder)))]
    if not own:
        return [*program_words("python"), "-m", _MODULES.get(name, name)]
    on_path = shutil.which(name)
    if on_path is not None and any(_is_same_file(on_path, each) for each in own):
        return [name]
    return [_short(own[0])]


def _folders() -> Iterable[Path]:
    """Yields the folders in which programs of this environment may be: the environment's, and then the user's."""
    yield Path(sys.executable).parent
    yield Path(sysconfig.get_path("scripts"))
    with contextlib.suppress(KeyError):
        yield Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))


def _is_same_file(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _short(path: Path) -> str:
    """Returns a path relative to the current folder if it is in it."""
    with contextlib.suppress(OSError, ValueError):
        return str(path.relative_to(Path.cwd()))
    return str(path)
