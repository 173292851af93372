"""One sub-environment: where it is, and what it may give."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from marl_connectors.environments.validation.checks import infos_violation, raise_first, reward_violation
from marl_connectors.environments.vector.replay import ActionHistory
from marl_connectors.errors import CheckpointError, EnvError
from marl_connectors.typing import AgentID, Tree


class Doing(IntEnum):
    """Which of its calls a sub-environment is in, or was in last; a number that processes can share."""

    STEP = 0
    RESET = 1
    CLOSE = 2
    MAKE = 3


class SubEnvironment:
    """One of the environments that are stepped together, and where it is.

    Attributes:
        env: A PettingZoo parallel environment, or one that behaves like it.
        index: Its place among the sub-environments, as ``env_index`` elsewhere.
        agents: Who acts next, in the order of all lists.
        episode_number: How many episodes were started, less one.
        t: Env steps since the reset.
        newest_actions: Those of the newest steps of the episode, which are not in ``history`` yet.
        expected: What its environment's agents are to observe, where that was asked for; see ``InvalidDataCheck``.
        num_failures: How often the sub-environment has failed since an episode was finished in it.
        settable: The environment with RLlib's ``get_task`` and ``set_task``, if it, or the one within, has them.
        rests: Whether its next step only resets it, so that nobody acts in it; see NextStepVectorEnv.
        task: What ``get_task()`` of an environment with a curriculum gave before the newest reset; else None.
        state: What the environment's ``state()`` was after the newest reset or step, ``[1, ...]``; None where nobody
            wants to know.
    """

    __slots__ = (
        "agents",
        "env",
        "episode_number",
        "expected",
        "history",
        "index",
        "newest_actions",
        "num_failures",
        "rests",
        "settable",
        "state",
        "step",
        "t",
        "task",
    )

    def __init__(self, env: Any, index: int):
        """Takes the environment; None if it is in another process."""
        self.index = index
        self.num_failures = 0
        self.use(env)
        self.agents: list[AgentID] = []
        self.episode_number = -1
        self.t = 0
        self.rests = False
        self.state: Tree | None = None
        self.task: Any = None
        self.newest_actions: list[list[Any]] = []
        self.history = ActionHistory()

    def use(self, env: Any) -> None:
        """Goes on in another environment."""
        self.env = env
        self.settable = _with_tasks(env)
        self.expected: dict[AgentID, Any] = {}
        self.step: Callable[..., Any] = _elsewhere if env is None else env.step

    def pack_history(self, at_least: int = 0) -> ActionHistory:
        """All actions of the episode so far; the newest are only packed if there are ``at_least`` so many steps."""
        if len(self.newest_actions) >= at_least:
            self.history.extend(self.newest_actions)
            self.newest_actions.clear()
        return self.history

    def __str__(self) -> str:
        return f"sub-environment {self.index}, episode {self.episode_number}, step {self.t}"


def _with_tasks(env: Any) -> Any:
    """The environment, or the one within its wrappers, that has RLlib's ``get_task`` and ``set_task``, if any."""
    inner = getattr(env, "env", env)
    for candidate in (env, inner, getattr(inner, "unwrapped", None)):
        if callable(getattr(candidate, "get_task", None)) and callable(getattr(candidate, "set_task", None)):
            return candidate
    return None


def _elsewhere(*args: Any) -> Any:
    raise RuntimeError("This sub-environment is in another process.")


def copied(value: Any) -> Any:
    """Arrays, and dicts, lists and tuples of anything, are copied; whatever else there is stays as it is."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {key: copied(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [copied(part) for part in value]
        return parts if isinstance(value, list) else getattr(type(value), "_make", tuple)(parts)
    return value


def copied_infos(sub_env: SubEnvironment, agents: Iterable[AgentID], infos: Any) -> dict[AgentID, dict[str, Any]]:
    """These agents' infos, so that the environment's next step cannot change them, without empty ones.

    Raises:
        EnvError: If an info is no dict.
    """
    if found := infos_violation(agents, infos):
        raise EnvError(f"{sub_env}: {found}")
    return {agent: copied(info) for agent in agents if (info := infos.get(agent))} if infos else {}


def uncredited_rewards(
    sub_env: SubEnvironment, rewards: Mapping[AgentID, Any], acted: Collection[AgentID]
) -> dict[AgentID, float]:
    """The rewards of agents that did not act in a step, but for zeros.

    Raises:
        EnvError: If one of them is no finite number.
    """
    given = {agent: finite_reward(sub_env, agent, reward) for agent, reward in rewards.items() if agent not in acted}
    return {agent: number for agent, number in given.items() if number}


def finite_reward(sub_env: SubEnvironment, agent: AgentID, reward: Any) -> float:
    """A reward as a number.

    Raises:
        EnvError: If it is no finite number.
    """
    try:
        number = float(reward)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise_first(sub_env, [reward_violation(agent, reward)])
    return number


def not_repeatable(sub_env: SubEnvironment, agent_id: AgentID | None = None) -> CheckpointError:
    """The error for an episode that does not lead to where it led before."""
    whom = "" if agent_id is None else f"agent {agent_id!r} "
    return CheckpointError(
        f"{sub_env}: replaying the episode from its seed leads {whom}elsewhere than before the checkpoint, so the "
        f"environment does not follow from reset(seed=...), or was changed from outside, and the run cannot be "
        f"continued exactly. Pass new_episodes=True (--new-episodes on the command line) to begin new episodes with "
        f"all else that is in the checkpoint, and see docs/checkpoints.md for environments with a curriculum."
    )
