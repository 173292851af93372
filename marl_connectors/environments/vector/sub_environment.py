"""One sub-environment: its progress in the episode, and checks of what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from itertools import chain, islice
from typing import Any

from gymnasium import Space

from marl_connectors import spaces as space_tools
from marl_connectors.environments.rules import checks
from marl_connectors.environments.rules.env_failures import ENV_ERRORS
from marl_connectors.environments.rules.violations import violation
from marl_connectors.environments.vector.action_history import ActionHistory
from marl_connectors.errors import CheckpointError, EnvError, describe_error
from marl_connectors.trees import copied
from marl_connectors.typing import AgentID, Tree

_MANY_AGENTS = 1000
"""The observation spaces of at least this many agents are cached."""


class EnvCall(IntEnum):
    """The environment method that is running or ran last, as an int in shared memory."""

    STEP = 0
    RESET = 1
    CLOSE = 2
    MAKE = 3


CALLED_ENV, RESET_ENV, RESET_EPISODE, CALL = range(4)
"""The indices of the numbers in ``VectorEnv.current_call``."""


class SubEnvironment:
    """One of the environments that are stepped together, and its progress in the current episode.

    Attributes:
        env: A PettingZoo parallel environment, or one that behaves like it.
        index: Its index among the sub-environments of its env runner, called ``env_index`` elsewhere.
        number: Its number among all sub-environments of the run. Seeds, noise, ids of episodes and messages use it, so
            that an episode does not depend on the env runner that plays it.
        agents: The agents that act next. Lists of actions, rewards and observations are in this order.
        episode_number: The index of the current episode, counted from 0; -1 before the first reset.
        t: The number of env steps since the reset.
        newest_actions: The actions of the newest steps of the episode, which are not in ``history`` yet.
        expected: The observation space of each agent whose data was checked; see ``InvalidDataCheck``.
        num_failures: The number of failures since an episode was last finished.
        settable: The environment with RLlib's ``get_task`` and ``set_task``: the given one or the one that it wraps;
            None if neither has these methods.
        is_reset_step: Whether its next step only resets it, so that no agent acts in it; see NextStepVectorEnv.
        task: The task that ``get_task()`` of an environment with a curriculum returned before the newest reset; None
            for other environments.
        state: The environment's ``state()`` after the newest reset or step, ``[1, ...]``; None if states are not used.
    """

    def __init__(self, env: Any, index: int, number: int | None = None):
        """Creates the record of one sub-environment.

        Args:
            env: The environment; None if it is in another process.
            index: Its index among the sub-environments of its env runner.
            number: Its number among all sub-environments of the run; the index if None.
        """
        self.index = index
        self.number = index if number is None else number
        self.num_failures = 0
        self.use(env)
        self.agents: list[AgentID] = []
        self.episode_number = -1
        self.t = 0
        self.is_reset_step = False
        self.state: Tree | None = None
        self.task: Any = None
        self.newest_actions: list[list[Any]] = []
        self.history = ActionHistory()

    def episode_id(self, ahead: int = 0) -> str:
        """Returns the id of the current episode, or of the one that is ``ahead`` so many episodes later."""
        return f"{self.number}-{self.episode_number + ahead}"

    def use(self, env: Any) -> None:
        """Replaces the environment and keeps the counts."""
        self.env = env
        self.settable = _with_tasks(env)
        self.expected: dict[AgentID, Any] = {}
        self.step: Callable[..., Any] = _elsewhere if env is None else env.step

    def pack_history(self, at_least: int = 0) -> ActionHistory:
        """Returns the history, after moving the newest actions into it if they are of ``at_least`` so many steps."""
        if len(self.newest_actions) >= at_least:
            self.history.extend(self.newest_actions)
            self.newest_actions.clear()
        return self.history

    def keep_history(self) -> Callable[[], ActionHistory]:
        """Returns a function that returns the history up to now, also after later steps and resets."""
        history, newest = self.history, self.newest_actions
        num_steps = len(history) + len(newest)

        def kept() -> ActionHistory:
            if len(history) + len(newest) == num_steps:
                history.extend(newest)
                newest.clear()
                return history
            found = ActionHistory()
            found.is_complete = history.is_complete
            found.extend(list(islice(chain(history, newest), num_steps)))
            return found

        return kept

    def at(self, t: int) -> str:
        """Returns the place of a step of the current episode, for messages."""
        return f"sub-environment {self.number}, episode {self.episode_number}, step {t}"

    def __str__(self) -> str:
        return self.at(self.t)


def _with_tasks(env: Any) -> Any:
    """Returns the environment, or the one that it wraps, if it has RLlib's ``get_task`` and ``set_task``; else None."""
    inner = getattr(env, "env", env)
    for candidate in (env, inner, getattr(inner, "unwrapped", None)):
        if callable(getattr(candidate, "get_task", None)) and callable(getattr(candidate, "set_task", None)):
            return candidate
    return None


def _elsewhere(*args: Any) -> Any:
    raise RuntimeError("This sub-environment is in another process.")


def copied_infos(sub_env: SubEnvironment, agents: Iterable[AgentID], infos: Any) -> dict[AgentID, dict[str, Any]]:
    """Returns copies of these agents' infos, without empty ones. The environment's next step cannot change them.

    Raises:
        EnvError: If an info is not a dict.
    """
    if found := checks.infos_violation(agents, infos):
        raise EnvError(f"{sub_env}: {found}")
    return {agent: copied(info) for agent in agents if (info := infos.get(agent))} if infos else {}


def uncredited_rewards(
    sub_env: SubEnvironment, rewards: Mapping[AgentID, Any], acted: Collection[AgentID]
) -> dict[AgentID, float]:
    """Returns the nonzero rewards of agents that did not act in the step.

    Raises:
        EnvError: If one of them is not a finite number of float32.
    """
    given = {agent: finite_reward(sub_env, agent, reward) for agent, reward in rewards.items() if agent not in acted}
    return {agent: number for agent, number in given.items() if number}


def finite_reward(sub_env: SubEnvironment, agent: AgentID, reward: Any) -> float:
    """Converts a reward to a float.

    Raises:
        EnvError: If it is not a finite number of float32.
    """
    try:
        number = float(reward)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= checks.LARGEST_REWARD:  # not a number is not, either
        checks.raise_first(sub_env, [checks.reward_violation(agent, reward)])
    return number


def not_repeatable(sub_env: SubEnvironment, agent_id: AgentID | None = None) -> CheckpointError:
    """Returns the error for an episode whose replay differs from the original."""
    whom = "" if agent_id is None else f"agent {agent_id!r} "
    return CheckpointError(
        f"{sub_env}: replaying the episode from its seed leads {whom}to other data than before the checkpoint, so the "
        f"episode is not determined by reset(seed=...), or the environment was changed from outside, and the run "
        f"cannot be continued exactly. Pass new_episodes=True (--new-episodes on the command line) to begin new "
        f"episodes with everything else from the checkpoint, and see docs/checkpoints.md for environments with a "
        f"curriculum."
    )


class InvalidDataCheck:
    """Finds observations that do not fit their space and rewards that are not finite, before they are stored."""

    def __init__(self, observation_space: Space):
        """Creates the check.

        Args:
            observation_space: A space, ``{agent_id: space}``, or None to ask the environments.
        """
        self._given = observation_space

    def check(
        self, sub_env: SubEnvironment, agents: Iterable[AgentID], observations: Mapping[AgentID, Any], rewards: Mapping
    ) -> None:
        """Raises an EnvError for invalid data.

        An environment that returns invalid data is replaced, so this is called before any of it is stored.
        """
        for agent in agents:
            if agent not in observations:
                continue
            space = sub_env.expected.get(agent)
            if space is None:
                space = self._learn(sub_env, agent)
            if observations[agent] is None and agent in sub_env.agents:
                checks.raise_first(sub_env, [checks.no_observation(agent, True)])
            checks.raise_first(sub_env, checks.invalid_data(agent, space, observations[agent]))
        for agent, reward in rewards.items():
            if type(reward) is not float or not abs(reward) <= checks.LARGEST_REWARD:
                checks.raise_first(sub_env, [checks.reward_violation(agent, reward)])

    def _learn(self, sub_env: SubEnvironment, agent: AgentID) -> Space:
        try:
            given = self._given.get(agent) if isinstance(self._given, Mapping) else self._given
            space = sub_env.env.observation_space(agent) if given is None else given
            space_tools.zeros(space)  # raises if its values have no fixed shape
        except ENV_ERRORS as error:
            what = f"the observation has no space: observation_space({agent!r}) raised {describe_error(error)}"
            raise EnvError(f"{sub_env}: {violation('space-missing', what, agent)}") from error
        if len(sub_env.expected) >= max(_MANY_AGENTS, 2 * len(sub_env.agents)):  # these agents may never return
            sub_env.expected.clear()
        sub_env.expected[agent] = space
        return space
