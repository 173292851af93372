"""Exception classes, one for each part of the library.

Every message follows one pattern: *who: what was expected, what came, how to fix it.* The command line prints it as
one line and exits with status 2.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Collection, Iterable
from types import FrameType
from typing import Any

_LIBRARY = __name__.partition(".")[0]
_PYTHONS = os.path.dirname(os.__file__) + os.sep
_CALLED_BY_ENVS = (
    "numpy",
    "scipy",
    "torch",
    "supersuit",
    *(f"gymnasium.{part}" for part in ("core", "envs.registration", "logger", "spaces", "utils", "vector", "wrappers")),
    "pettingzoo.utils",
)
"""Modules that environments and pieces call or are wrapped in. Errors raised there are caused by other code."""


_CLOSE = 0.6
"""The likeness from which on a name may be what the user has meant."""
_SAME = 0.95
"""The likeness above which it is, whatever its words are, because an underscore is missing, for example."""
_MOST_NAMES = 20
"""The greatest number of names that a message lists."""


class MarlConnectorsError(Exception):
    """Base of all errors that this library raises on purpose."""


class MarlConnectorsWarning(UserWarning):
    """Base of all warnings of this library."""


class ConfigError(MarlConnectorsError, ValueError):
    """A setting that is unknown, of the wrong kind, or at odds with another one."""


class EnvError(MarlConnectorsError, RuntimeError):
    """An environment that cannot be made, or that broke its own contract."""


class EpisodeError(MarlConnectorsError, ValueError):
    """A call that does not fit the episode's state or data."""


class MappingError(MarlConnectorsError, ValueError):
    """A policy mapping function that raised, or that named a module which does not exist."""


class ConnectorError(MarlConnectorsError, RuntimeError):
    """A connector piece that failed; the original error is its cause."""


class ModuleError(MarlConnectorsError, ValueError):
    """A module whose spaces, outputs or settings do not fit."""


class LearnerError(MarlConnectorsError, RuntimeError):
    """An update that would have damaged the modules."""


class CheckpointError(MarlConnectorsError, RuntimeError):
    """A checkpoint that is missing, damaged, or of another setup."""


class OfflineDataError(MarlConnectorsError, RuntimeError):
    """Recorded episodes that are missing, damaged, or of another setup."""


class OfflineDataWarning(MarlConnectorsWarning):
    """A part of recorded episodes that is lost, while the rest can be used."""


class MissingDependencyError(MarlConnectorsError, ImportError):
    """An optional package that the called feature needs."""


class EnvWarning(MarlConnectorsWarning):
    """An environment that breaks its own contract in a way that the run survives."""


def describe_error(error: BaseException) -> str:
    """Describes an error of a user's or an environment's code in one line: its class, text and ``place_of_error``.

    For example ``TypeError: 'module' object is not callable (my_package/my_env.py:12 in make)``, without a full stop.
    """
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    said, place = " ".join(str(text).split()).rstrip("."), place_of_error(error)
    return f"{type(error).__name__}{': ' if said else ''}{said}{f' ({place})' if place else ''}"


def place_of_error(error: BaseException) -> str:
    """Returns the place where the code of an environment or of a user raised an error: ``file:line in function``.

    This is the innermost frame outside of this library, of Python's own modules and of frameworks such as numpy and
    torch. If there is none, it is the innermost frame outside of this library, and ``""`` if there is none either. The
    paths of files are relative to the current folder, or to the folder that they are imported from.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{_short_path(error.filename)}:{error.lineno}"
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _is_in(_module_of(frame), (_LIBRARY,))
    ]
    own = [(frame, line) for frame, line in frames if not _is_called_by_envs(frame)]
    if not frames:
        return ""
    frame, line = (own or frames)[-1]
    return f"{_short_path(frame.f_code.co_filename)}:{line} in {frame.f_code.co_name}"


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _is_called_by_envs(frame: FrameType) -> bool:
    module, file = _module_of(frame), frame.f_code.co_filename
    is_pythons = file.startswith("<frozen ") or (
        file.startswith(_PYTHONS) and module.partition(".")[0] in sys.stdlib_module_names
    )
    return is_pythons or _is_in(module, _CALLED_BY_ENVS)


def _is_in(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def place_of_definition(thing: Any) -> str:
    """Returns the place of a function's or a class's definition, ``file:line``; ``""`` if it is unknown."""
    thing = getattr(thing, "func", thing)  # of a functools.partial
    code = getattr(thing.__init__ if inspect.isclass(thing) else inspect.unwrap(thing), "__code__", None)
    return "" if code is None else f"{_short_path(code.co_filename)}:{code.co_firstlineno}"


def _short_path(path: str) -> str:
    """A file as seen from the nearest folder of: the current one, and those that modules are imported from."""
    folders = (os.path.abspath(folder) for folder in (os.curdir, *sys.path))
    inside = [folder for folder in folders if path.startswith(folder.rstrip(os.sep) + os.sep)]
    return os.path.relpath(path, max(inside, key=len)) if inside else path


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """A closing sentence that names the closest known name, or lists them all. Upper and lower case are alike.

    >>> did_you_mean("gama", ["gamma", "lr"]), did_you_mean("Relu", ["elu", "relu"])
    ("Did you mean 'gamma'?", "Did you mean 'relu'?")
    >>> did_you_mean("zzz", ["gamma", "lr"])
    'Known: gamma, lr.'
    >>> did_you_mean("piece of mine", [*"abcdefghijklmnopqrstuvwxyz", "Mine"])
    'The closest of 27: Mine, p, o, n, m.'
    """
    names = [str(k) for k in known]
    close, _ = _closest(str(name), names)
    if close:
        return f"Did you mean {close!r}?"
    if len(names) <= _MOST_NAMES:
        return f"Known: {', '.join(names)}." if names else "There are none."
    closest = sorted(names, key=lambda each: difflib.SequenceMatcher(None, each.lower(), str(name).lower()).ratio())
    return f"The closest of {len(names)}: {', '.join(closest[:-6:-1])}."


def likeness(name: str, known: Iterable[str]) -> float:
    """Returns how much the closest known name, as in ``did_you_mean``, is like a name, from 0 to 1; 0 if none is close.

    >>> likeness("gama", ["gamma", "lr"]) > 0.8, likeness("zzz", ["gamma", "lr"])
    (True, 0.0)
    """
    return _closest(name, known)[1]


def _closest(name: str, known: Iterable[str]) -> tuple[str, float]:
    """Returns the closest known name, and how much it is like the name; ``("", 0.0)`` if none is close."""
    in_lower_case = {each.lower(): each for each in reversed(list(known))}
    for close in difflib.get_close_matches(name.lower(), in_lower_case, n=5, cutoff=_CLOSE):
        if _have_like_words(close, name.lower()):
            return in_lower_case[close], difflib.SequenceMatcher(None, close, name.lower()).ratio()
    return "", 0.0


def _have_like_words(one: str, other: str) -> bool:
    """Whether each word of a name is like one of the other: another word more or less makes it another thing.

    >>> _have_like_words("num_epochs", "num_epcohs"), _have_like_words("evaluation_duration", "evaluation_type")
    (True, False)
    """
    joined = ["".join(filter(str.isalnum, name)) for name in (one, other)]
    if difflib.SequenceMatcher(None, joined[0], joined[1]).ratio() > _SAME:
        return True
    words = [re.findall("[a-z]+", name) for name in (one, other)]
    pairs = ((word, those) for own, those in (words, words[::-1]) for word in own if len(word) > 1)
    return all(difflib.get_close_matches(word, those, n=1) for word, those in pairs)


def counted(number: int, noun: str) -> str:
    """Returns a number with what it counts.

    >>> counted(1, "step"), counted(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Collection[object], noun: str, *, at_most: int = 4) -> str:
    """Counts names, and lists the first of them.

    >>> listed(["red", "blue"], "module"), listed(range(9), "agent", at_most=2)
    ('2 modules (red, blue)', '9 agents (0, 1, ...)')
    """
    first = ", ".join(str(name) for name, _ in zip(names, range(at_most), strict=False))
    more = ", ..." if len(names) > at_most else ""
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}" + (f" ({first}{more})" if names else "")
