"""One environment copy, and what a step of it, or of several, led to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from marl_connectors.environments.action_history import ActionHistory
from marl_connectors.errors import EnvError
from marl_connectors.typing import AgentID

_Kind = TypeVar("_Kind", bound="Transition")


@dataclass(slots=True)
class Transition:
    """What one agent's, or all agents', step in one copy led to, where that was out of the ordinary.

    Attributes:
        index: The copy's place.
        t: Env steps since the episode began, this one included.
        observations: By agent, of the step itself.
        terminations: By agent.
        truncations: By agent.
        infos: By agent.
        stray_rewards: By agent, of agents that did not act.
        is_over: Whether the episode ended, so that the copy was reset.
        is_dropped: Whether the episode cannot go on because of a failure, so that the copy began another one.
        begins: Whether the copy has rested in this step, which reset it, so that its episode begins now.
        first_observations: By agent, of the new episode, if ``is_over``.
        first_infos: By agent, of the new episode, if ``is_over``.
        awaits_reset: Whether the episode ended and the copy is still to be reset.
    """

    index: int
    t: int
    observations: dict[AgentID, Any]
    terminations: dict[AgentID, bool]
    truncations: dict[AgentID, bool]
    infos: dict[AgentID, dict]
    stray_rewards: dict[AgentID, float]
    is_over: bool = False
    is_dropped: bool = False
    begins: bool = False
    first_observations: dict[AgentID, Any] = field(default_factory=dict)
    first_infos: dict[AgentID, dict] = field(default_factory=dict)
    awaits_reset: bool = False


@dataclass(slots=True)
class VectorStep:
    """What a step of all copies gave, in lists that run through all agents of copy 0, then of copy 1, and so on.

    Attributes:
        rewards: One for each agent that acted.
        observations: One for each agent that acts next: of a new episode where the old one ended.
        transitions: Of copies in which agents ended or appeared, or an episode ended or, after a rest, began.
        infos: ``(copy index, infos by agent)`` of all other copies that gave any.
        late: Transitions of copies that await their reset, and where their first observations belong.
    """

    rewards: list[Any]
    observations: list[Any]
    transitions: list[Transition]
    infos: list[tuple[int, dict[AgentID, dict]]]
    late: list[tuple[int, Transition]] = field(default_factory=list)


class EnvCopy:
    """One copy of an environment, and where it is.

    Attributes:
        env: A PettingZoo parallel environment, or one that behaves like it.
        index: The copy's place among the copies.
        agents: Who acts next, in the order of all lists.
        episode_number: How many episodes were started, less one.
        t: Env steps since the reset.
        newest_actions: Those of the newest steps of the episode, which are not in ``history`` yet.
        num_failures: How often the copy has failed since an episode was finished in it.
        rests: Whether its next step only resets it, so that nobody acts in it; see NextStepVectorEnv.
    """

    __slots__ = (
        "agents",
        "env",
        "episode_number",
        "history",
        "index",
        "newest_actions",
        "num_failures",
        "rests",
        "step",
        "t",
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
        self.newest_actions: list[list[Any]] = []
        self.history = ActionHistory()

    def use(self, env: Any) -> None:
        """Goes on in another environment."""
        self.env = env
        self.step: Callable[..., Any] = _elsewhere if env is None else env.step

    def pack_history(self, at_least: int = 0) -> ActionHistory:
        """All actions of the episode so far; the newest are only packed if there are ``at_least`` so many steps."""
        if len(self.newest_actions) >= at_least:
            self.history.extend(self.newest_actions)
            self.newest_actions.clear()
        return self.history

    def __str__(self) -> str:
        return f"environment copy {self.index}, episode {self.episode_number}, step {self.t}"


def _elsewhere(*args: Any) -> Any:
    raise RuntimeError("This environment copy is in another process.")


def copied_info(copy_index: int, agent: AgentID, info: Any) -> dict[str, Any]:
    """An agent's info, so that the environment's next step cannot change it.

    Raises:
        EnvError: If it is no dict.
    """
    if not isinstance(info, Mapping):
        raise EnvError(
            f"environment copy {copy_index}, agent {agent!r}: the info is {info!r}, not a dict. Return a dict for each "
            f"agent, which may be empty."
        )
    return dict(info)


def another_episode(
    kind: type[_Kind],
    copy: EnvCopy,
    t: int,
    observations: dict[AgentID, Any],
    infos: dict[AgentID, dict],
) -> _Kind:
    """The transition of a copy whose episode could not go on after ``t`` steps, to the first step of another one."""
    return kind(
        copy.index,
        t,
        {},
        {},
        {},
        {},
        {},
        is_over=True,
        is_dropped=True,
        first_observations=observations,
        first_infos=infos,
    )
