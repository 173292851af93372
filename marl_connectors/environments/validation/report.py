"""What ``check_env`` found, for people and for programs."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from marl_connectors.environments.validation.rules import LEVELS, Level, Violation, violation
from marl_connectors.typing import AgentID

_WIDTH = 116


@dataclass(frozen=True, slots=True)
class EnvFinding:
    """One thing that an environment does.

    Attributes:
        level: ``"error"``: training would go wrong or stop. ``"warning"``: legal, but hardly what was meant.
            ``"note"``: good to know.
        kind: A short name that stays the same from version to version, such as ``"observation-outside-space"``.
        what: What was seen the first time, in a sentence.
        advice: What to do about it.
        agent: Whose, the first time; None where it is nobody's in particular.
        step: Env steps since the reset, the first time; 0 is the reset.
        episode: Which of the played episodes; None outside of them.
        count: How often it was seen.
        num_agents: With how many different agents.
    """

    level: Level
    kind: str
    what: str
    advice: str
    agent: AgentID | None = None
    step: int | None = None
    episode: int | None = None
    count: int = 1
    num_agents: int = 0

    @property
    def where(self) -> str:
        """Agent, episode and step of the first time, and how often: ``"agent 'a', step 3 (12 times)"``."""
        parts = [] if self.agent is None else [f"agent {self.agent!r}"]
        if self.episode is not None:
            parts.append(f"episode {self.episode}")
        if self.step is not None:
            parts.append("the reset" if self.step == 0 else f"step {self.step}")
        times = f"{self.count} times" if self.count > 1 else ""
        if self.num_agents > 1:
            times += f", {self.num_agents} agents"
        return ", ".join(parts) + (f" ({times})" if times else "")


@dataclass(frozen=True, slots=True)
class EnvFigures:
    """What was measured while the environment was played with random actions.

    Attributes:
        episodes: Episodes played.
        episode_lengths: Env steps of those that came to an end.
        steps: Env steps played.
        agent_steps: Actions taken.
        agents_per_step: How many agents acted in a step, on average.
        seconds_per_step: Inside ``step()``, on average.
        seconds_per_reset: Inside ``reset()``, on average.
    """

    episodes: int
    episode_lengths: tuple[int, ...]
    steps: int
    agent_steps: int
    agents_per_step: float
    seconds_per_step: float
    seconds_per_reset: float


@dataclass(frozen=True, slots=True)
class EnvReport:
    """All findings about an environment. ``print(report)`` shows a table.

    Attributes:
        name: The environment's.
        kind: ``"parallel"``, ``"turn-based"`` or ``"single agent"``.
        agents: The possible agents, or those that were seen where the environment does not say.
        findings: All, errors first.
        figures: None if not a single step could be played.
        masks_in: Where action masks were found, and obeyed: ``"observations"``, ``"infos"``, both or neither.
    """

    name: str
    kind: str
    agents: tuple[AgentID, ...]
    findings: tuple[EnvFinding, ...]
    figures: EnvFigures | None = None
    masks_in: tuple[str, ...] = ()

    @property
    def errors(self) -> list[EnvFinding]:
        """What makes training go wrong or stop."""
        return self._of("error")

    @property
    def warnings(self) -> list[EnvFinding]:
        """What is legal, but hardly meant."""
        return self._of("warning")

    @property
    def notes(self) -> list[EnvFinding]:
        """What is good to know."""
        return self._of("note")

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return not self.errors

    def _of(self, level: Level) -> list[EnvFinding]:
        return [finding for finding in self.findings if finding.level == level]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data that JSON can hold; agents that are no strings or ints become their ``repr``."""
        findings = [dataclasses.asdict(finding) | {"agent": _plain(finding.agent)} for finding in self.findings]
        figures = None
        if self.figures is not None:
            figures = dataclasses.asdict(self.figures)
            figures["episode_lengths"] = list(self.figures.episode_lengths)
        return {
            "name": self.name,
            "kind": self.kind,
            "agents": [_plain(agent) for agent in self.agents],
            "ok": self.ok,
            "findings": findings,
            "figures": figures,
            "masks_in": list(self.masks_in),
        }

    def __str__(self) -> str:
        counts = ", ".join(_counted(len(self._of(level)), level) for level in LEVELS)
        lines = [f"{self.name}: {self.kind}, {_counted(len(self.agents), 'agent')}. {counts}."]
        if self.figures is not None:
            lines.append(f"  {_describe(self.figures)}")
        if self.masks_in:
            lines.append(f"  Action masks: in the {' and '.join(self.masks_in)}; they were obeyed.")
        for level in LEVELS:
            findings = self._of(level)
            lines += ["", f"{level}s"] if findings else []
            for finding in findings:
                lines += _rows(finding)
        return "\n".join(lines)


def _plain(agent: AgentID | None) -> Any:
    return agent if agent is None or isinstance(agent, (str, int)) else repr(agent)


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _rows(finding: EnvFinding) -> list[str]:
    head = f"  {finding.kind:<28} {finding.where}".rstrip()
    texts = [finding.what] + ([f"-> {finding.advice}"] if finding.advice else [])
    wrapped = [
        textwrap.wrap(text, _WIDTH, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False)
        for text in texts
    ]
    return [head, *(line for lines in wrapped for line in lines)]


def _describe(figures: EnvFigures) -> str:
    lengths = figures.episode_lengths
    if not lengths:
        ends = "none came to an end"
    elif min(lengths) == max(lengths):
        ends = f"ends after {_counted(lengths[0], 'step')}"
    else:
        ends = f"ends after {min(lengths):,} to {max(lengths):,} steps"
    return (
        f"{_counted(figures.episodes, 'episode')}, {_counted(figures.steps, 'step')}, {ends}; "
        f"{figures.agents_per_step:.3g} agents act in a step; "
        f"{_time(figures.seconds_per_step)} a step, {_time(figures.seconds_per_reset)} a reset."
    )


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


class Findings:
    """Collects findings; the same kind from many agents and steps is one finding, which tells the first.

    Attributes:
        episode: The episode that is being played, for what is added meanwhile; None outside of episodes.
    """

    def __init__(self) -> None:
        self.episode: int | None = None
        self._first: dict[tuple[Any, ...], EnvFinding] = {}
        self._agents: dict[tuple[Any, ...], set[AgentID]] = {}

    def note(
        self, kind: str, what: str, agent: AgentID | None = None, *, step: int | None = None, **other: Any
    ) -> None:
        """Takes note of what ``violation`` makes of these arguments."""
        self.add(violation(kind, what, agent, **other), step)

    def add(self, found: Violation, step: int | None = None) -> None:
        """Takes note of a violation.

        Args:
            found: The violation.
            step: When.
        """
        key = (found.level, found.kind, found.part)
        known = self._first.get(key)
        agents = self._agents.setdefault(key, set())
        if found.agent is not None:
            agents.add(found.agent)
        if known is not None:
            self._first[key] = dataclasses.replace(known, count=known.count + 1, num_agents=len(agents))
            return
        what = found.what.replace("the ", "The ", 1) if found.what.startswith("the ") else found.what
        here = self.episode if step is not None else None
        self._first[key] = EnvFinding(
            found.level, found.kind, f"{what}.", found.advice, found.agent, step, here, 1, len(agents)
        )

    @property
    def has_errors(self) -> bool:
        """Whether an error was found."""
        return any(finding.level == "error" for finding in self._first.values())

    def has(self, *kinds: str) -> bool:
        """Whether one of these kinds was found."""
        return any(finding.kind in kinds for finding in self._first.values())

    def in_order(self) -> Iterable[EnvFinding]:
        """Errors first, each level in the order in which it came."""
        return sorted(self._first.values(), key=lambda finding: LEVELS.index(finding.level))
