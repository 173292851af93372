"""The report of ``check_env``, as a table and as data."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from marl_connectors.environments.check.rules import violation
from marl_connectors.environments.rules.violations import LEVELS, Level, Violation
from marl_connectors.errors import counted
from marl_connectors.typing import AgentID

_WIDTH = 116


@dataclass(frozen=True, slots=True)
class EnvFinding:
    """One finding about an environment, which may have been seen several times.

    Attributes:
        level: ``"error"``: training would go wrong or stop. ``"warning"``: valid, but probably not intended.
            ``"note"``: good to know.
        kind: A short name that does not change between versions, such as ``"observation-outside-space"``.
        what: A sentence about what was seen the first time.
        advice: What the user should do about it.
        agent: The agent concerned the first time; None if it concerns no particular agent.
        step: The number of env steps since the reset at the first time; 0 is the reset.
        episode: The number of the played episode at the first time; None outside of episodes.
        count: How often it was seen.
        num_agents: The number of different agents with which it was seen.
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
        """The agent, episode and step of the first time, and the count: ``"agent 'a', step 3 (12 times)"``."""
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
class EnvMeasurements:
    """Measurements from playing the environment with random actions.

    Attributes:
        episodes: The number of episodes played.
        episode_lengths: The lengths, in env steps, of the episodes that ended.
        steps: The number of env steps played.
        agent_steps: The number of actions of all agents.
        agents_per_step: The mean number of agents that acted in a step.
        seconds_per_step: The mean duration of ``step()``, in seconds.
        seconds_per_reset: The mean duration of ``reset()``, in seconds.
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
        name: The name of the environment.
        kind: ``"parallel"``, ``"turn-based"`` or ``"single agent"``.
        agents: The possible agents, or the agents that were seen if the environment does not name them.
        findings: All findings, errors first.
        measurements: The measurements; None if not a single step could be played.
        masks_in: The places in which action masks were found and obeyed: ``"observations"``, ``"infos"``, both or
            neither.
    """

    name: str
    kind: str
    agents: tuple[AgentID, ...]
    findings: tuple[EnvFinding, ...]
    measurements: EnvMeasurements | None = None
    masks_in: tuple[str, ...] = ()

    @property
    def errors(self) -> list[EnvFinding]:
        """The findings that make training go wrong or stop."""
        return self._of("error")

    @property
    def warnings(self) -> list[EnvFinding]:
        """The findings that are valid, but probably not intended."""
        return self._of("warning")

    @property
    def notes(self) -> list[EnvFinding]:
        """The findings that are good to know."""
        return self._of("note")

    @property
    def ok(self) -> bool:
        """Whether there are no errors."""
        return not self.errors

    def _of(self, level: Level) -> list[EnvFinding]:
        return [finding for finding in self.findings if finding.level == level]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON data. Agents that are neither strings nor ints become their ``repr``."""
        data = dataclasses.asdict(self) | {"ok": self.ok, "masks_in": list(self.masks_in)}
        data["agents"] = list(map(_plain, self.agents))
        data["findings"] = [own | {"agent": _plain(own["agent"])} for own in data["findings"]]
        if self.measurements is not None:
            data["measurements"]["episode_lengths"] = list(self.measurements.episode_lengths)
        return data

    def __str__(self) -> str:
        counts = ", ".join(counted(len(self._of(level)), level) for level in LEVELS)
        lines = [f"{self.name}: {self.kind}, {counted(len(self.agents), 'agent')}. {counts}."]
        if self.measurements is not None:
            lines.append(f"  {_describe(self.measurements)}")
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


def _rows(finding: EnvFinding) -> list[str]:
    head = f"  {finding.kind:<28} {finding.where}".rstrip()
    texts = [finding.what] + ([f"-> {finding.advice}"] if finding.advice else [])
    wrapped = [
        textwrap.wrap(text, _WIDTH, initial_indent="      ", subsequent_indent="      ", break_on_hyphens=False)
        for text in texts
    ]
    return [head, *(line for lines in wrapped for line in lines)]


def _describe(measurements: EnvMeasurements) -> str:
    lengths = measurements.episode_lengths
    if not lengths:
        ends = "none came to an end"
    elif min(lengths) == max(lengths):
        ends = f"ends after {counted(lengths[0], 'step')}"
    else:
        ends = f"ends after {min(lengths):,} to {max(lengths):,} steps"
    return (
        f"{counted(measurements.episodes, 'episode')}, {counted(measurements.steps, 'step')}, {ends}; "
        f"{measurements.agents_per_step:.3g} agents act in a step; "
        f"{_time(measurements.seconds_per_step)} a step, {_time(measurements.seconds_per_reset)} a reset."
    )


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


class Findings:
    """Collects findings. Violations of one kind from many agents and steps are one finding, described by the first.

    Attributes:
        episode: The number of the episode that is being played; None outside of episodes.
    """

    def __init__(self) -> None:
        self.episode: int | None = None
        self._first: dict[tuple[Any, ...], EnvFinding] = {}
        self._agents: dict[tuple[Any, ...], set[AgentID]] = {}

    def note(
        self, kind: str, what: str, agent: AgentID | None = None, *, step: int | None = None, **other: Any
    ) -> None:
        """Adds the violation that ``violation`` makes from these arguments."""
        self.add(violation(kind, what, agent, **other), step)

    def add(self, found: Violation, step: int | None = None) -> None:
        """Adds a violation.

        Args:
            found: The violation.
            step: The env step in which it was found; None outside of episodes.
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
        """Returns the findings, errors first, and those of each level in the order in which they were added."""
        return sorted(self._first.values(), key=lambda finding: LEVELS.index(finding.level))
