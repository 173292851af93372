"""What goes wrong, by whose doing.

Every message follows one pattern: *who: what was expected, what came, how to fix it.* The command line prints it as
one line and exits with status 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MarlConnectorsError(Exception):
    """Base of all errors that this library raises on purpose."""


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


class MissingDependencyError(MarlConnectorsError, ImportError):
    """An optional package that the called feature needs."""


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """A closing sentence that names the closest known name, or lists them all.

    >>> did_you_mean("gama", ["gamma", "lr"])
    "Did you mean 'gamma'?"
    >>> did_you_mean("zzz", ["gamma", "lr"])
    'Known: gamma, lr.'
    """
    names = [str(k) for k in known]
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known: {', '.join(names)}." if names else "There are none."
