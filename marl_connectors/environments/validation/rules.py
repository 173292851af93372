"""The contract of environments: every kind of violation, how bad it is, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from marl_connectors.typing import AgentID

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


class Rule(NamedTuple):
    """How bad a kind of violation is, and what to do about it, unless a violation says otherwise."""

    level: Level
    advice: str = ""


_OBSERVATION = "Fix the environment, or its observation_space."
_RUN_AGAIN = "Runs learn as well, but"
RULES = {
    # Observations.
    "observation-outside-space": Rule(
        "error",
        f"{_OBSERVATION} If its bounds are wrong on purpose, set disable_env_checking=True (--no-env-check on the "
        f"command line).",
    ),
    "observation-shape": Rule("error", _OBSERVATION),
    "observation-structure": Rule("error", _OBSERVATION),
    "observation-not-finite": Rule(
        "error", "Fix the environment: look for a division by zero. A network turns it into NaN losses."
    ),
    "observation-dtype": Rule("error", "Let the space and the observation have one dtype."),
    "float64": Rule("note", "With float32 it takes half the memory and no conversion."),
    "python-data": Rule("note", "It is converted at each step, which is slow for more than a few numbers."),
    "observation-reused": Rule(
        "note",
        "Nothing to do if each copy of the environment has its own: it is copied. Copies that write to one object of "
        "all, such as a class attribute, get each other's data. Code that keeps it must copy it too.",
    ),
    "info-reused": Rule("note", "Nothing to do here: it is copied. Code that keeps it must copy it too."),
    "observation-shared": Rule(
        "error", "Give each agent an array of its own (observation.copy()), also where all are to see the same."
    ),
    "read-only-arrays": Rule(
        "note", "Nothing to do here: they are copied. Code that changes observations in place has to copy them first."
    ),
    "no-observation": Rule("error", "Give an observation to every agent in env.agents."),
    "no-final-observation": Rule(
        "warning", "Give the observation of the state in which it was stopped; until then the one before stands in."
    ),
    # Rewards and infos.
    "reward": Rule("error", "Rewards must be finite numbers: return one float."),
    "reward-missing": Rule("warning", "Give a reward to all agents that acted, also those that end."),
    "reward-without-action": Rule(
        "warning", "It is added to the reward of its last action. Pay an agent in the steps in which it acts."
    ),
    "reward-uncredited": Rule("warning", "It is counted as uncredited_reward. Pay an agent from its first action on."),
    "reward-credit": Rule(
        "error",
        "In step(): self._cumulative_rewards[agent] = 0 for the agent that acts, self._clear_rewards() before rewards "
        "are set, and self._accumulate_rewards() once after that.",
    ),
    "reward-to-the-dead": Rule("error", "Pay an agent before its last turn, step(None), is over."),
    "info": Rule("error", "Return a dict for each agent."),
    # Actions and masks.
    "action-changed": Rule("warning", "Copy the action first: np.clip(action, low, high) instead of action *= ..."),
    "mask-space": Rule(
        "error", "Correct the space; if it is no mask, train with action_mask_key=None (--action-mask-key none)."
    ),
    "mask-length": Rule("error", "Let it have a 0 or 1 for each action."),
    "mask-values": Rule("error", "Let it have a 0 or 1 for each action."),
    "mask-forbids-all": Rule(
        "error",
        "Allow at least one (one that does nothing), or end the agent; .environment(action_mask_key=None) ignores "
        "masks.",
    ),
    "mask-dtype": Rule("note", "Gymnasium's space.sample(mask) takes int8 only."),
    # Agents, flags and turns.
    "left-without-flag": Rule("error", "An agent must be flagged in the step in which it leaves."),
    "ended-but-stays": Rule("warning", "Take it out of env.agents in that step."),
    "no-last-turn": Rule("warning", "Only flag it; AECEnv._was_dead_step(), called from step(None), removes it."),
    "dead-not-removed": Rule(
        "error",
        "Begin step() with: if the agent is terminated or truncated, return self._was_dead_step(action).",
    ),
    "selected-stranger": Rule("error", "An AEC environment must select a live agent until there is none."),
    "flag": Rule("error", "Return True or False for each agent."),
    "flag-missing": Rule("note", "Give both flags to all agents that acted. What is missing counts as False."),
    "flag-of-stranger": Rule(
        "warning", "Flag agents that take part. A flag in the step of its arrival keeps an agent out."
    ),
    "both-flags": Rule(
        "warning", "At a time limit, set truncations only, so that the value of the last state is not lost."
    ),
    "no-agents": Rule("error", "Let somebody take part."),
    "agents-twice": Rule("error", "Let each agent be there once."),
    "agent-not-possible": Rule(
        "warning", "List all agents that can ever appear, so that modules and spaces are known from the start."
    ),
    "agent-returns": Rule(
        "note", "Nothing to do here: it begins a trajectory of its own. PettingZoo wants a new name for it."
    ),
    "agents-never-seen": Rule("note", "Play more episodes (episodes=, --episodes) to check them too."),
    "no-possible-agents": Rule(
        "note", "A run asks the first reset for agents. Those that come later need modules of their own to be named."
    ),
    # Spaces.
    "space-missing": Rule("error", "Every agent that can appear needs one."),
    "space-unsupported": Rule(
        "error", "Use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple spaces of them."
    ),
    "space-bounds": Rule("error", "Correct the bounds, or give -inf and inf."),
    "space-changed": Rule(
        "error", "Networks are built once: let the space hold everything that can come, the same in all episodes."
    ),
    "space-rebuilt": Rule(
        "note", "Keep the spaces in a dict: seeding such a space does nothing, and building it takes time."
    ),
    # Calls and what they return.
    "wrong-result": Rule("error", "Return all of them."),
    "raised": Rule("error", "Fix the environment."),
    "hangs": Rule(
        "error", "Look for what it waits for. If it is only slow, give it longer (call_timeout=, --call-timeout)."
    ),
    "unexpected": Rule("error", "Look at the kinds of data that reset() and step() return."),
    "warns": Rule("note", "See what the environment means by it."),
    "out-of-time": Rule("note", "Give more time (max_seconds=, --max-seconds), or fewer episodes and steps."),
    # Ends of episodes.
    "ends-always-terminated": Rule(
        "note", "If that is a time limit, it must be a truncation: after a termination, nothing is expected to come."
    ),
    "no-end": Rule(
        "warning",
        "Allow more (max_steps=, --max-steps). If there is no end, returns are never reported: add a time limit.",
    ),
    "last-observation-is-first": Rule(
        "warning",
        "Return the state in which an episode was stopped, which its value is estimated from; do not reset in step().",
    ),
    "step-after-end": Rule(
        "note", "Nothing to do here: after the end comes a reset. Other libraries may step once more."
    ),
    # Seeds and copies.
    "seed": Rule(
        "error",
        "Draw everything random from one generator that reset(seed=...) makes, and forget all else at a reset. Runs "
        "cannot be repeated, and a checkpoint cannot be resumed in the middle of an episode.",
    ),
    "seed-leak": Rule(
        "warning",
        f"Forget everything at a reset: what is left over, and objects such as physics worlds and sets of sprites. "
        f"{_RUN_AGAIN} a checkpoint cannot be resumed exactly in the middle of an episode.",
    ),
    "seed-slightly-off": Rule(
        "warning",
        f"Physics engines do so that are not made anew at each reset. {_RUN_AGAIN} they are not repeatable to the "
        f"last digit, nor exactly resumed in the middle of an episode.",
    ),
    "seed-infos": Rule(
        "warning", "If that is a time measured by a clock, nothing is wrong. Masks or rewards in infos must repeat."
    ),
    "seed-without-effect": Rule(
        "note", "Right for a game without chance. Otherwise reset() ignores its seed, and all copies play the same."
    ),
    "reset-repeats": Rule(
        "warning", "Without a seed, go on with the generator as it is. Runs of this library always give a seed."
    ),
    "global-random-state": Rule(
        "warning",
        "Use a generator of the environment's own (gymnasium.utils.seeding.np_random). Copies that are stepped in turn "
        "disturb one another's draws, so that a run is not repeatable.",
    ),
    "copies": Rule(
        "error",
        "Keep what changes in attributes that __init__ or reset() sets, not in class attributes, globals or default "
        "arguments: the copies of a run step in turn.",
    ),
    # What there is besides steps.
    "state-raises": Rule("warning", "Fix the environment."),
    "state-outside-space": Rule(
        "warning", "Let state() give finite numbers of the space's shape, whichever agents are left."
    ),
    "no-state": Rule("note", "A centralised critic then has to be built from the observations of all agents."),
    "render": Rule("warning", "Videos need rgb_array frames."),
    "render-raises": Rule("warning", "Videos need rgb_array."),
    "no-render-modes": Rule("note", "List them, [] if there are none. Videos need rgb_array."),
    "no-metadata": Rule("note", "Give it at least name and render_modes."),
    "close-raises": Rule("warning", "Let it do nothing then."),
    "conformance": Rule(
        "warning", "See what the test asks for. What training depends on is checked here too, and would be an error."
    ),
    "conformance-not-run": Rule("note", "Nothing to do."),
}
"""By kind. The names stay the same from version to version."""

_SUBJECT = re.compile(r"the (agent|action mask|\w+)")


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that an environment must not do, or does differently than one might think.

    ``str`` gives the whole sentence for an error message, with the agent and what to do: ``"the reward of agent 'b' is
    nan, not a finite number. Rewards must ..."``.

    Attributes:
        kind: A name in ``RULES``.
        what: What was seen, as a clause: ``"the reward is nan, not a finite number"``.
        agent: Whose; None where it is nobody's in particular.
        level: How bad it is.
        advice: What to do about it.
        part: What else sets violations of one kind apart, for example the place within an observation.
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
    """A violation, whose level and advice are those of the rule unless they are given."""
    rule = RULES[kind]
    return Violation(kind, what, agent, level or rule.level, rule.advice if advice is None else advice, part)
