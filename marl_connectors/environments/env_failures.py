"""What environments may do wrong without stopping the run, and what it may cost."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.environments.env_copy import EnvCopy
from marl_connectors.environments.step_faults import advice_on_reward
from marl_connectors.environments.time_limits import Hang, Watched, alarm
from marl_connectors.errors import EnvError, MarlConnectorsError, describe_error
from marl_connectors.typing import AgentID

_LOG = logging.getLogger(__name__)

_MANY_AGENTS = 1000
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
"""What closing may take at most: an environment of this process, or all those of a worker process."""


def close_env(env: Any, name: str, timeout_s: float | None = CLOSE_TIMEOUT_S) -> None:
    """Closes an environment. If it raises or hangs, that is a warning: whatever else there is must be closed too.

    What hangs is interrupted after ``timeout_s`` where ``alarm`` can do that; None for never.
    """
    try:
        with Watched(lambda: f"{name}: close()"), alarm(timeout_s):
            env.close()
    except Hang:
        _LOG.warning("%s: close() did not return within %g s and was given up.", name, timeout_s)
    except ENV_ERRORS as error:
        _LOG.warning("%s: close() raised %s.", name, describe_error(error))


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
        num_env_failures: Environments that raised, gave garbage or hung, and worker processes that ended.
        num_dropped_episodes: Unfinished episodes that these failures ended.
        num_dropped_env_steps: Sampled env steps of those episodes that are in no sample.
    """

    num_env_failures: int = 0
    num_dropped_episodes: int = 0
    num_dropped_env_steps: int = 0

    def as_dict(self) -> dict[str, int]:
        """By name."""
        return asdict(self)


class GarbageCheck:
    """Finds what no column can hold, and what is not a finite number, before it gets among good data."""

    def __init__(self, observation_space: Any):
        """Takes a space, ``{agent_id: space}``, or None for what the environments say."""
        self._given = observation_space

    def observation(self, copy: EnvCopy, agent_id: AgentID, observation: Any) -> str:
        """Why an agent's observation is garbage; ``""`` if it is not. Its bounds do not matter."""
        expected = copy.expected.get(agent_id)
        if expected is None:
            try:
                expected = self._expected(copy.env, agent_id)
            except ENV_ERRORS as error:
                return f"has no space: observation_space({agent_id!r}) raised {describe_error(error)}"
            if len(copy.expected) >= max(_MANY_AGENTS, 2 * len(copy.agents)):  # names that may never come again
                copy.expected.clear()
            copy.expected[agent_id] = expected
        if type(observation) is np.ndarray and observation.shape == expected.shape:
            return _not_numbers(observation)
        try:
            parts = [(part, np.asarray(own)) for part, own in spaces.leaves_in(expected, observation)]
        except ValueError:
            parts = None
        if parts is None or any(own.shape != part.shape for part, own in parts):
            came = f"shape {observation.shape}" if isinstance(observation, np.ndarray) else repr(observation)
            return f"does not fit its space, {spaces.describe(expected)}: {came}"
        return next(filter(None, (_not_numbers(own) for _, own in parts)), "")

    def check(
        self, copy: EnvCopy, agents: Iterable[AgentID], observations: Mapping[AgentID, Any], rewards: Mapping
    ) -> None:
        """Raises for what a copy gave: where environments are replaced, that must be before it is among good data."""
        for agent in agents:
            why = self.observation(copy, agent, observations[agent]) if agent in observations else ""
            if why:
                raise EnvError(f"{copy}, agent {agent!r}: the observation {why}. Fix the environment.")
        why = self.rewards(rewards)
        if why:
            raise EnvError(f"{copy}, {why}")

    def _expected(self, env: Any, agent_id: AgentID) -> Space:
        given = self._given.get(agent_id) if isinstance(self._given, Mapping) else self._given
        space = env.observation_space(agent_id) if given is None else given
        spaces.zeros(space)  # raises if its values have no fixed shape
        return space

    def rewards(self, rewards: Mapping[AgentID, Any]) -> str:
        """Which reward is not a finite number, and what it is; ``""`` if all are."""
        for agent_id, reward in rewards.items():
            is_number = np.ndim(reward) == 0 and np.asarray(reward).dtype.kind in "biuf"
            if not (is_number and math.isfinite(reward)):
                return f"agent {agent_id!r}: the reward is {reward!r}. {advice_on_reward(reward)}"
        return ""


def _not_numbers(values: np.ndarray) -> str:
    if values.dtype.kind not in "biuf":
        return f"is not numbers but {values.tolist()!r}"
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return ""
    return "contains NaN" if np.isnan(values).any() else "contains infinity"
