"""Configs that are made in Python files: ``--config my_config.py``."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from marl_connectors.errors import ConfigError, describe_error, did_you_mean
from marl_connectors.names import import_module

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

DEFAULT_NAMES = ("config", "make_config")
"""The names in a file or module that are looked up if none is given."""


def load_config(spec: str) -> AlgorithmConfig:
    """Loads the ``AlgorithmConfig`` that ``"my_file.py"`` or ``"my.module:name"`` names or returns, and copies it.

    Args:
        spec: A file whose name ends in ``.py``, or a module; then, after a colon, a name in it. Without one, the name
            is ``config`` or ``make_config``.

    Raises:
        ConfigError: If the file, module or name does not exist, raises an error, or is something else.
    """
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

    source, name = _source_and_name(spec)
    if source.endswith(".py"):
        module = _module_of_file(Path(source))
    else:
        module = import_module(source, who="--config", error=ConfigError)
    name = name or next((each for each in DEFAULT_NAMES if hasattr(module, each)), DEFAULT_NAMES[0])
    if not hasattr(module, name):
        known = [
            key for key, value in vars(module).items() if isinstance(value, AlgorithmConfig) or _is_own(value, module)
        ]
        raise ConfigError(f"--config: {_shown(Path(source))} has no {name!r}. {did_you_mean(name, known)}")
    found = getattr(module, name)
    if callable(found):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"--config: {name}() of {_shown(Path(source))} fails: {describe_error(error)}."
            ) from error
    if not isinstance(found, AlgorithmConfig):
        raise ConfigError(
            f"--config: expected {name!r} of {_shown(Path(source))} to be an AlgorithmConfig, such as PPOConfig(), or "
            f"a function that returns one, but got {type(found).__name__}."
        )
    return found.copy()


def _source_and_name(spec: str) -> tuple[str, str]:
    return (spec, "") if spec.endswith(".py") or ":" not in spec else cast(Any, spec.rpartition(":")[::2])


def has_source(spec: str) -> bool:
    """Whether the file of a spec exists; True for a module."""
    source, _ = _source_and_name(spec)
    return not source.endswith(".py") or Path(source).is_file()


def module_name(spec: str) -> str:
    """Returns the name of the module of a spec: that of its file without the ending, or the module itself."""
    source, _ = _source_and_name(spec)
    return Path(source).stem if source.endswith(".py") else source


def absolute_spec(spec: str, folder: Path | None = None) -> str:
    """Returns a spec with the absolute path of its file, which is relative to a folder (default: the current one)."""
    source, name = _source_and_name(spec)
    if not source.endswith(".py"):
        return spec
    return str(((folder or Path()) / source).resolve()) + (f":{name}" if name else "")


def _shown(path: Path) -> Path:
    """Returns a path relative to the current folder if it is in it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _module_of_file(path: Path) -> Any:
    try:
        stat = path.stat() if path.is_file() else None
    except OSError as error:
        raise ConfigError(
            f"--config: {_shown(path)} cannot be read: {error.strerror or error}. Check its path."
        ) from error
    if stat is None:
        raise ConfigError(f"--config: there is no file {str(_shown(path))!r}. Check its path.")
    return _loaded(path, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, mtime_ns: int, size: int) -> Any:
    """Runs a file once for each of its versions, and returns its module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # for imports of files in the same folder
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(path.stem)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[path.stem]
        else:
            sys.modules[path.stem] = before
        raise ConfigError(f"--config: {_shown(path)} fails: {describe_error(error)}.") from error
    return module


def _is_own(value: Any, module: Any) -> bool:
    """Whether a value is a function that the module defines."""
    return callable(value) and not isinstance(value, type) and getattr(value, "__module__", None) == module.__name__
