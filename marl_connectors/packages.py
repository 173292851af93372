"""Optional packages: whether they are installed, and how to install them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any, Final

from marl_connectors.errors import MissingDependencyError
from marl_connectors.programs import command

_DISTRIBUTIONS: Final = {
    "PIL": "pillow",
    "ale_py": "ale-py",
    "gymnasium_robotics": "gymnasium-robotics",
    "imageio_ffmpeg": "imageio-ffmpeg",
    "yaml": "pyyaml",
}
"""The names under which packages are installed, where they differ from those under which they are imported."""


def is_installed(module: str) -> bool:
    """Whether a package can be imported. A folder of its name without code, such as wandb's logs, is not the package.

    >>> is_installed("json"), is_installed("no_such_package")
    (True, False)
    """
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # its parent is missing, or a test has put None or an object in its place
        return sys.modules.get(module) is not None
    return getattr(spec, "origin", None) is not None


def import_package(module: str) -> Any:
    """Imports an optional package.

    Raises:
        ModuleNotFoundError: If it is not installed, also if a folder of its name without code would be imported.
    """
    top = module.partition(".")[0]
    if not is_installed(top):
        raise ModuleNotFoundError(f"No module named {top!r}", name=top)
    return importlib.import_module(module)


def distribution_of(module: str) -> str:
    """Returns the name under which a package is installed, by the name under which it is imported."""
    return _DISTRIBUTIONS.get(module, module)


def how_to_install(*distributions: str) -> str:
    """Returns the sentence with the command that installs packages, which works as it stands in every folder.

    Messages name the packages themselves and not an extra of this library, which is not on every package index.

    Args:
        *distributions: What pip installs, such as ``"pillow"`` or ``"pettingzoo[sisl]"``.
    """
    return f"Install {'it' if len(set(distributions)) == 1 else 'them'} with: {install_command(*distributions)}"


def install_command(*distributions: str) -> str:
    """Returns the command that installs packages into this environment."""
    quoted = [f'"{name}"' if set(name) & set("[]<>=") else name for name in dict.fromkeys(distributions)]
    return " ".join([command("pip", "install"), *quoted])


def require_packages(who: str, *modules: str) -> None:
    """Checks that optional packages are installed, without importing them.

    Args:
        who: The first words of the message.
        *modules: The names under which they are imported.

    Raises:
        MissingDependencyError: If one is missing. The message says how to install all that are missing.
    """
    missing = [distribution_of(name) for name in modules if not is_installed(name)]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise MissingDependencyError(
            f"{who} needs {' and '.join(missing)}, which {are} not installed. {how_to_install(*missing)}"
        )
