"""The contract of environments: every kind of contract violation with its level and advice."""

from __future__ import annotations

import re
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
    "observation-shared": (
        "Give each agent an array of its own (observation.copy()), also where all are to see the same."
    ),
    "no-observation": "Give an observation to every agent in env.agents.",
    "reward": "Rewards must be finite numbers: return one float.",
    "reward-credit": (
        "In step(): self._cumulative_rewards[agent] = 0 for the agent that acts, self._clear_rewards() before rewards "
        "are set, and self._accumulate_rewards() once after that."
    ),
    "reward-to-the-dead": "Pay an agent before its last turn, step(None), is over.",
    "info": "Return a dict for each agent.",
    "mask-space": "Correct the space; if it is no mask, train with action_mask_key=None (--action-mask-key none).",
    "mask-length": "Let it have a 0 or 1 for each action.",
    "mask-values": "Let it have a 0 or 1 for each action.",
    "mask-forbids-all": (
        "Allow at least one (one that does nothing), or end the agent; .environment(action_mask_key=None) ignores "
        "masks."
    ),
    "left-without-flag": "An agent must be flagged in the step in which it leaves.",
    "dead-not-removed": (
        "Begin step() with: if the agent is terminated or truncated, return self._was_dead_step(action)."
    ),
    "selected-stranger": "An AEC environment must select a live agent until there is none.",
    "flag": "Return True or False for each agent.",
    "no-agents": "Let somebody take part.",
    "agents-twice": "Let each agent be there once.",
    "space-missing": "Every agent that can appear needs one.",
    "space-unsupported": "Use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple spaces of them.",
    "space-bounds": "Correct the bounds, or give -inf and inf.",
    "space-changed": "Networks are built once: let the space hold everything that can come, the same in all episodes.",
    "wrong-result": "Return all of them.",
    "raised": "Fix the environment.",
    "hangs": "Look for what it waits for. If it is only slow, give it longer (call_timeout=, --call-timeout).",
    "unexpected": "Look at the kinds of data that reset() and step() return.",
    "seed": (
        "Draw everything random from one generator that reset(seed=...) makes, and forget all else at a reset. Runs "
        "cannot be repeated, and a checkpoint cannot be resumed in the middle of an episode."
    ),
    "copies": (
        "Keep what changes in attributes that __init__ or reset() sets, not in class attributes, globals or default "
        "arguments: the copies of a run step in turn."
    ),
}
_WARNINGS = {
    "no-final-observation": (
        "Give the observation of the state in which it was stopped; until then the one before stands in."
    ),
    "reward-missing": "Give a reward to all agents that acted, also those that end.",
    "reward-without-action": (
        "It is added to the reward of its last action. Pay an agent in the steps in which it acts."
    ),
    "reward-uncredited": "It is counted as uncredited_reward. Pay an agent from its first action on.",
    "action-changed": "Copy the action first: np.clip(action, low, high) instead of action *= ...",
    "ended-but-stays": "Take it out of env.agents in that step.",
    "no-last-turn": "Only flag it; AECEnv._was_dead_step(), called from step(None), removes it.",
    "flag-of-stranger": "Flag agents that take part. A flag in the step of its arrival keeps an agent out.",
    "both-flags": "At a time limit, set truncations only, so that the value of the last state is not lost.",
    "agent-not-possible": "List all agents that can ever appear, so that modules and spaces are known from the start.",
    "no-end": "Allow more (max_steps=, --max-steps). If there is no end, returns are never reported: add a time limit.",
    "last-observation-is-first": (
        "Return the state in which an episode was stopped, which its value is estimated from; do not reset in step()."
    ),
    "seed-leak": (
        "Forget everything at a reset: what is left over, and objects such as physics worlds and sets of sprites. "
        "Runs learn as well, but a checkpoint cannot be resumed exactly in the middle of an episode."
    ),
    "seed-slightly-off": (
        "Physics engines do so that are not made anew at each reset. Runs learn as well, but they are not repeatable "
        "to the last digit, nor exactly resumed in the middle of an episode."
    ),
    "seed-infos": "If that is a time measured by a clock, nothing is wrong. Masks or rewards in infos must repeat.",
    "reset-repeats": "Without a seed, go on with the generator as it is. Runs of this library always give a seed.",
    "global-random-state": (
        "Use a generator of the environment's own (gymnasium.utils.seeding.np_random). Copies that are stepped in "
        "turn disturb one another's draws, so that a run is not repeatable."
    ),
    "state-raises": "Fix the environment.",
    "state-outside-space": "Let state() give finite numbers of the space's shape, whichever agents are left.",
    "render": "Videos need rgb_array frames.",
    "render-raises": "Videos need rgb_array.",
    "close-raises": "Let it do nothing then.",
    "conformance": "See what the test asks for. What training depends on is checked here too, and would be an error.",
}
_NOTES = {
    "float64": "With float32 it takes half the memory and no conversion.",
    "python-data": "It is converted at each step, which is slow for more than a few numbers.",
    "observation-reused": (
        "Nothing to do if each copy of the environment has its own: it is copied. Copies that write to one object of "
        "all, such as a class attribute, get each other's data. Code that keeps it must copy it too."
    ),
    "info-reused": "Nothing to do here: it is copied. Code that keeps it must copy it too.",
    "read-only-arrays": (
        "Nothing to do here: they are copied. Code that changes observations in place has to copy them first."
    ),
    "mask-dtype": "Gymnasium's space.sample(mask) takes int8 only.",
    "flag-missing": "Give both flags to all agents that acted. What is missing counts as False.",
    "agent-returns": "Nothing to do here: it begins a trajectory of its own. PettingZoo wants a new name for it.",
    "agents-never-seen": "Play more episodes (episodes=, --episodes) to check them too.",
    "no-possible-agents": (
        "A run asks the first reset for agents. Those that come later need modules of their own to be named."
    ),
    "space-rebuilt": "Keep the spaces in a dict: seeding such a space does nothing, and building it takes time.",
    "warns": "See what the environment means by it.",
    "out-of-time": "Give more time (max_seconds=, --max-seconds), or fewer episodes and steps.",
    "ends-always-terminated": (
        "If that is a time limit, it must be a truncation: after a termination, nothing is expected to come."
    ),
    "step-after-end": "Nothing to do here: after the end comes a reset. Other libraries may step once more.",
    "seed-without-effect": (
        "Right for a game without chance. Otherwise reset() ignores its seed, and all copies play the same."
    ),
    "no-state": "A centralised critic then has to be built from the observations of all agents.",
    "no-render-modes": "List them, [] if there are none. Videos need rgb_array.",
    "no-metadata": "Give it at least name and render_modes.",
    "conformance-not-run": "Nothing to do.",
}
RULES = {
    kind: Rule(level, advice)
    for level, advices in zip(LEVELS, (_ERRORS, _WARNINGS, _NOTES), strict=True)
    for kind, advice in advices.items()
}
"""The rules by kind. The names of the kinds do not change between versions."""

_SUBJECT = re.compile(r"the (agent|action mask|\w+)")


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that an environment must not do, or that may be unexpected.

    ``str`` returns the text of an error message, with the agent and the advice: ``"the reward of agent 'b' is nan, not
    a finite number. Rewards must ..."``.

    Attributes:
        kind: A name in ``RULES``.
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
) -> Violation:
    """Returns a violation. Its level and advice are those of the kind's rule unless they are passed."""
    rule = RULES[kind]
    return Violation(kind, what, agent, level or rule.level, rule.advice if advice is None else advice, part)
