"""The contract of environments: the kinds of violations that can stop a run, each with its level and advice."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from marl_connectors.typing import AgentID

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


class Rule(NamedTuple):
    """The default level of a kind of violation, and the default advice."""

    level: Level
    advice: str = ""


_ERRORS = {
    "observation-outside-space": (
        "Fix the environment, or its observation_space. If its bounds are wrong on purpose, set "
        "disable_env_checking=True (--no-env-check on the command line)."
    ),
    "observation-shape": "Fix the environment, or its observation_space.",
    "observation-structure": "Fix the environment, or its observation_space.",
    "observation-not-finite": "Fix the environment: look for a division by zero. A network turns it into NaN losses.",
    "observation-dtype": "Let the space and the observation have one dtype.",
    "no-observation": "Give an observation to every agent in env.agents.",
    "reward": "Rewards must be finite numbers: return one float.",
    "info": "Return a dict for each agent.",
    "mask-forbids-all": (
        "Allow at least one action, such as one that does nothing, or end the agent. "
        ".environment(action_mask_key=None) ignores masks."
    ),
    "left-without-flag": "An agent must be flagged in the step in which it leaves.",
    "dead-not-removed": (
        "Begin step() with: if the agent is terminated or truncated, return self._was_dead_step(action)."
    ),
    "selected-stranger": "An AEC environment must select a live agent until there is none.",
    "flag": "Return True or False for each agent.",
    "no-agents": "At least one agent must be live after reset().",
    "agents-twice": "List each agent once.",
    "agent-id": "Use strings, numbers, bytes, or tuples of these; of an enum, the value of a member.",
    "space-missing": "Every agent that can appear needs a space.",
    "wrong-result": "Return all of them.",
    "copies": (
        "Keep what changes in attributes that __init__ or reset() sets, not in class attributes, globals or default "
        "arguments: the sub-environments of a run are stepped in turn."
    ),
}
RULES = {kind: Rule("error", advice) for kind, advice in _ERRORS.items()}
RULES["state-outside-space"] = Rule(
    "warning", "state() must return finite numbers of the space's shape, whichever agents are left."
)
"""The rules that a run needs, by kind. The names of the kinds do not change between versions."""

_SUBJECT = re.compile(r"the (agent|action mask|\w+)")


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that an environment must not do, or that may be unexpected.

    ``str`` returns the text of an error message, with the agent and the advice: ``"the reward of agent 'b' is nan, not
    a finite number. Rewards must ..."``.

    Attributes:
        kind: The name of a rule.
        what: The observed behaviour as a clause: ``"the reward is nan, not a finite number"``.
        agent: The agent concerned; None if it concerns no particular agent.
        level: ``"error"``, ``"warning"`` or ``"note"``.
        advice: What the user should do about it.
        part: Distinguishes violations of one kind, for example the place within an observation.
    """

    kind: str
    what: str
    agent: AgentID | None
    level: Level
    advice: str
    part: Any = None

    def __str__(self) -> str:
        what = self.what
        if self.agent is not None and (subject := _SUBJECT.match(what)):
            named = f"agent {self.agent!r}" if subject[1] == "agent" else f"{subject[0]} of agent {self.agent!r}"
            what = named + what[subject.end() :]
        return f"{what}. {self.advice}".rstrip()


def violation(
    kind: str,
    what: str,
    agent: AgentID | None = None,
    *,
    level: Level | None = None,
    advice: str | None = None,
    part: Any = None,
    rules: Mapping[str, Rule] = RULES,
) -> Violation:
    """Returns a violation. Its level and advice are those of the kind's rule unless they are passed."""
    rule = rules[kind]
    return Violation(kind, what, agent, level or rule.level, rule.advice if advice is None else advice, part)
