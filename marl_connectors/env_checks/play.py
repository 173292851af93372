"""Plays whole episodes with random actions, and plays them again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marl_connectors.env_checks.calls import Calls
from marl_connectors.env_checks.data import DataChecks
from marl_connectors.env_checks.report import EnvFigures, Findings
from marl_connectors.typing import AgentID

_MANY = 1000

Token = tuple[str, Any, bytes]
"""What (``"observation"``, ``"reward"``, ...), whose, and a digest of it."""


@dataclass(slots=True)
class Told:
    """What one call of ``reset`` or ``step`` told.

    Attributes:
        to_act: Who acts next. False for one who has ended and is to be stepped with None, as turn-taking has it.
        masks: By agent, where there is one.
        tokens: Everything, to be compared.
        numbers: By (what, agent), observations and rewards that can be compared by how far they are apart.
    """

    to_act: dict[AgentID, bool] = field(default_factory=dict)
    masks: dict[AgentID, np.ndarray] = field(default_factory=dict)
    tokens: list[Token] = field(default_factory=list)
    numbers: dict[tuple[str, Any], np.ndarray] = field(default_factory=dict)

    def observed(self, agent: AgentID, observation: Any, reward: Any) -> None:
        """Keeps the numbers, unless they are many."""
        for what, value in (("observation", observation), ("reward", reward)):
            array = np.asarray(value) if isinstance(value, (np.ndarray, np.generic, float)) else np.zeros(0)
            if array.dtype.kind == "f" and 0 < array.size <= _MANY:
                self.numbers[what, agent] = array.copy()


@dataclass(slots=True)
class Played:
    """An episode, or its beginning.

    Attributes:
        seed: Of the reset; None if it was given none.
        first: What the reset told.
        steps: The actions of each step, and what it told.
        is_over: Whether it came to its end.
        flags: How the agents of the last step ended: ``"terminated"``, ``"truncated"``.
    """

    seed: int | None
    first: Told
    steps: list[tuple[dict[AgentID, Any], Told]] = field(default_factory=list)
    is_over: bool = False
    flags: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Tally:
    """What was measured, over all episodes and copies."""

    resets: int = 0
    reset_seconds: float = 0.0
    steps: int = 0
    step_seconds: float = 0.0
    agent_steps: int = 0
    lengths: list[int] = field(default_factory=list)

    def figures(self, episodes: int) -> EnvFigures | None:
        """None if there were no steps."""
        if not self.steps:
            return None
        return EnvFigures(
            episodes=episodes,
            episode_lengths=tuple(self.lengths),
            steps=self.steps,
            agent_steps=self.agent_steps,
            agents_per_step=self.agent_steps / self.steps,
            seconds_per_step=self.step_seconds / self.steps,
            seconds_per_reset=self.reset_seconds / max(self.resets, 1),
        )


@dataclass(slots=True)
class Checks:
    """What all checks of one environment share.

    Attributes:
        name: The environment's.
        findings: What was found so far.
        calls: Makes the calls.
        data: Checks what agents are given.
        tally: What was measured.
        seen: All agents that ever took part.
    """

    name: str
    findings: Findings
    calls: Calls
    data: DataChecks
    tally: Tally = field(default_factory=Tally)
    seen: dict[AgentID, None] = field(default_factory=dict)


class Player(ABC):
    """One copy of an environment, behind the same two methods whether all act at once or one after another.

    Attributes:
        env: The environment.
        checks: Where it takes note of what it sees.
        t: Steps since the reset.
        ended_as: How the agents that ended in the last step ended.
        tally: Where steps and times are counted.
    """

    takes_turns = False

    def __init__(self, env: Any, checks: Checks):
        self.env = env
        self.checks = checks
        self.t = 0
        self.ended_as: set[str] = set()
        self.tally = checks.tally

    @property
    def allowed_by(self) -> str:
        """Where the actions come from, for messages."""
        data = self.checks.data
        masks = data.masks_in_observations or data.masks_in_infos
        return "that the masks allow" if masks else "from the action space"

    @abstractmethod
    def reset(self, seed: int | None) -> Told:
        """Starts an episode.

        Raises:
            CallFailed: If it cannot be played.
        """

    @abstractmethod
    def step(self, actions: dict[AgentID, Any]) -> Told:
        """Plays a step.

        Args:
            actions: For all of ``Told.to_act``.

        Raises:
            CallFailed: If it cannot be played on.
        """

    def call_reset(self, seed: int | None) -> Any:
        """What the environment's ``reset`` gives."""
        self.t = 0
        self.ended_as = set()
        calls = self.checks.calls
        if seed is None:
            result = calls("reset()", self.env.reset, step=0)
        else:
            result = calls(f"reset(seed={seed})", lambda: self.env.reset(seed=seed), step=0)
        self.tally.resets += 1
        self.tally.reset_seconds += calls.seconds
        self.checks.data.look_again(0)
        return result

    def note_flags(self, agent: AgentID, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Two flags as bools; takes note of what is wrong with them."""
        for word, flag in (("termination", terminated), ("truncation", truncated)):
            if not isinstance(flag, (bool, np.bool_, int, np.integer)) and not _is_one_flag(flag):
                self.add("error", "flag", f"The {word} is {flag!r}.", "Return True or False.", agent)
            elif not isinstance(flag, (bool, np.bool_)):
                self.add("note", "flag", f"The {word} is {flag!r}, not a bool.", "Return True or False.", agent)
        both = bool(np.all(terminated)), bool(np.all(truncated))
        if all(both):
            self.add(
                "warning",
                "both-flags",
                "The agent is both terminated and truncated. That counts as terminated: nothing comes after it.",
                "At a time limit, set truncations only, so that the value of the last state is not lost.",
                agent,
            )
        if any(both):
            self.ended_as.add("terminated" if both[0] else "truncated")
        return both

    def note_agents(self, agents: list[AgentID]) -> None:
        """Takes note of agents that take part from now on."""
        self.checks.data.spaces.compare(agents, self.t)
        possible = getattr(self.env, "possible_agents", None)
        for agent in agents:
            self.checks.seen.setdefault(agent)
            if possible and agent not in possible:
                self.add(
                    "warning",
                    "agent-not-possible",
                    f"The agent is not in possible_agents, {_some(list(possible))}.",
                    "List all agents that can ever appear, so that modules and spaces are known from the start.",
                    agent,
                )

    def no_final_observation(self, agent: AgentID) -> None:
        """Takes note of a truncated agent whose last state is unknown."""
        self.add(
            "warning",
            "no-final-observation",
            "The agent is truncated without a last observation, which its value is estimated from.",
            "Give the observation of the state in which it was stopped; until then the one before stands in.",
            agent,
        )

    def add(
        self, level: Any, kind: str, what: str, advice: str, agent: AgentID | None = None, part: Any = None
    ) -> None:
        """Takes note of something in this step."""
        self.checks.findings.add(level, kind, what, advice, agent=agent, step=self.t, part=part)


def _is_one_flag(flag: Any) -> bool:
    return isinstance(flag, np.ndarray) and flag.size == 1 and flag.dtype.kind in "biu"


def _some(agents: list[AgentID]) -> str:
    return f"[{', '.join(map(repr, agents[:5]))}, ...]" if len(agents) > 5 else str(agents)


def play(player: Player, seed: int | None, rng: np.random.Generator, max_steps: int) -> Played:
    """Plays an episode with random actions that the masks allow.

    Args:
        player: Whose environment.
        seed: Of the reset; None for a reset without one.
        rng: Draws the actions.
        max_steps: Where to stop at the latest.

    Raises:
        CallFailed: If the environment fails.
        OutOfTime: If there is no time left.
    """
    data = player.checks.data
    data.spaces.forget_samplers()
    told = player.reset(seed)
    episode = Played(seed, told)
    while told.to_act and len(episode.steps) < max_steps:
        player.checks.calls.check_time()
        actions = {
            agent: data.spaces.sample(agent, told.masks.get(agent), rng) if lives else None
            for agent, lives in told.to_act.items()
        }
        player.ended_as = set()
        told = player.step(actions)
        episode.steps.append((actions, told))
        episode.flags = player.ended_as or episode.flags
    episode.is_over = not told.to_act
    if episode.is_over:
        player.tally.lengths.append(player.t)
    return episode


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where a replay first told something else.

    Attributes:
        step: 0 for the reset.
        what: ``"observation"``, ``"reward"``, ``"flags"``, ``"info"`` or ``"agents"``.
        agent: Whose; None for ``"agents"``.
        apart: By how much, if that is as little as the rounding of a physics engine; else None.
    """

    step: int
    what: str
    agent: AgentID | None
    apart: float | None = None


def replay(player: Player, seed: int | None, episode: Played) -> tuple[Mismatch | None, Mismatch | None]:
    """Plays the actions of an episode again, and compares.

    Args:
        player: Whose environment.
        seed: Of the reset.
        episode: The episode.

    Returns:
        Where anything but infos differs first, and where infos do, if that comes before; None if nowhere.
    """
    in_infos = None
    for mismatch in replay_by_steps(player, seed, episode):
        if mismatch is not None and mismatch.what != "info":
            return mismatch, in_infos
        in_infos = in_infos or mismatch
    return None, in_infos


def replay_by_steps(player: Player, seed: int | None, episode: Played) -> Iterator[Mismatch | None]:
    """As ``replay``, a reset or step at a time, which gives what differs there, or None."""
    expected, told = episode.first, player.reset(seed)
    for number, (actions, after) in enumerate(episode.steps):
        player.checks.calls.check_time()
        yield _first_mismatch(number, expected, told)
        if list(told.to_act) != list(actions):
            yield Mismatch(number, "agents", None)
            return
        expected, told = after, player.step(actions)
    yield _first_mismatch(len(episode.steps), expected, told)


def _first_mismatch(step: int, expected: Told, found: Told) -> Mismatch | None:
    """Infos come last: what follows from them, or they from, counts more."""
    if expected.tokens == found.tokens:
        return None
    before = {(what, agent): token for what, agent, token in expected.tokens}
    now = {(what, agent): token for what, agent, token in found.tokens}
    different = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if not different:
        return Mismatch(step, "agents", None)
    mismatches = [
        Mismatch(step, *key, _slightly_apart(expected.numbers.get(key), found.numbers.get(key))) for key in different
    ]
    return min(mismatches, key=lambda mismatch: 2 * (mismatch.what == "info") + (mismatch.apart is not None))


def _slightly_apart(before: np.ndarray | None, now: np.ndarray | None) -> float | None:
    if before is None or now is None or before.shape != now.shape:
        return None
    if not np.allclose(before, now, rtol=1e-3, atol=1e-3):
        return None
    return float(np.abs(before.astype(np.float64) - now).max())
