"""What environments may do wrong without stopping the run, and what it may cost."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any
from weakref import WeakSet

from marl_connectors.environments.time_limits import Hang, Watched, alarm
from marl_connectors.errors import EnvError, MarlConnectorsError, describe_error

_LOG = logging.getLogger(__name__)

ENV_ERRORS: tuple[type[BaseException], ...] = (Exception, SystemExit)
"""What an environment that fails may raise. Anything else is meant for the program, such as a KeyboardInterrupt."""


@contextlib.contextmanager
def errors_named(what: str) -> Iterator[None]:
    """Turns errors of an environment's own code into EnvErrors that say where they come from.

    Args:
        what: Whose and which code it is, such as ``"MyEnv: render()"``.
    """
    try:
        yield
    except MarlConnectorsError:
        raise
    except ENV_ERRORS as error:
        raise EnvError(f"{what} raised {describe_error(error)}.") from error


CLOSE_TIMEOUT_S = 10.0
"""What closing may take at most: all environments of a VectorEnv in this process, or of a worker process."""
MOMENT_S = 0.2
"""What closing may take where environments of the same class have hung before, or where the time is used up."""
_HUNG: WeakSet[type] = WeakSet()


def close_env(env: Any, name: str, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
    """Closes an environment. If it raises or hangs, that is a warning: whatever else there is must be closed too.

    What hangs is interrupted after ``timeout_s`` where ``alarm`` can do that; None for never. A class whose ``close()``
    has hung once in this process is not waited for again.
    """
    kind = _class_of(env)
    if timeout_s is not None and kind in _HUNG:
        timeout_s = min(timeout_s, MOMENT_S)
    try:
        with Watched(lambda: f"{name}: close()"), alarm(timeout_s):
            env.close()
    except Hang:
        _HUNG.add(kind)
        _LOG.warning("%s: close() did not return within %.3g s and was given up.", name, timeout_s)
    except ENV_ERRORS as error:
        _LOG.warning("%s: close() raised %s.", name, describe_error(error))


def _class_of(env: Any) -> type:
    try:
        return type(env.unwrapped)
    except ENV_ERRORS:
        return type(env)


@dataclass(frozen=True, slots=True)
class EnvRestarts:
    """How environments that failed are replaced.

    Attributes:
        make_env: Makes one.
        tolerance: Failures of one copy without a finished episode between them that do not stop the run.
        observation_space: Instead of the environments' own: a space, or ``{agent_id: space}``.
    """

    make_env: Callable[[], Any]
    tolerance: int = 100
    observation_space: Any = None


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """What went wrong in a copy that goes on with another episode.

    Attributes:
        index: The copy's place.
        message: Names the copy, its seed, episode and step.
    """

    index: int
    message: str


def sentence(error: BaseException) -> str:
    """What an error says, with a full stop."""
    text = str(error)
    return text if text.endswith((".", "!", "?")) else f"{text}."


@dataclass(slots=True)
class FailureCounts:
    """What failures have cost.

    Attributes:
        num_env_failures: Environments that raised, gave invalid data or hung, and worker processes that ended.
        num_dropped_episodes: Unfinished episodes that these failures ended.
        num_dropped_env_steps: Sampled env steps of those episodes that are in no sample.
    """

    num_env_failures: int = 0
    num_dropped_episodes: int = 0
    num_dropped_env_steps: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)
