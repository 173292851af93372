"""What is wrong with the flags and infos of a step, in words that name the agent."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_connectors.typing import AgentID

ADVICE_ON_OLD_GYM = (
    "Wrap it where it is made (pip install shimmy): shimmy.openai_gym_compatibility.GymV26CompatibilityV0(env=env), or "
    "GymV21CompatibilityV0(env=env) if its step() returns four values."
)
_OLD_STEP = (
    " Four values are those of gym before 0.26 and PettingZoo before 1.22: return terminated and truncated apart, or "
    "wrap an environment of the old gym in shimmy.openai_gym_compatibility.GymV21CompatibilityV0(env=env)."
)
_OLD_RESET = (
    " The observation alone is what reset() gave in gym before 0.26: return an info too, {} if there is nothing to say."
)


def is_flag(flag: Any) -> bool:
    """Whether something is True or False: a bool, or one number or array of one number that is 0 or 1.

    >>> is_flag(np.True_), is_flag(1), is_flag("yes"), is_flag(None)
    (True, True, False, False)
    """
    if isinstance(flag, (bool, np.bool_)):
        return True
    if not isinstance(flag, (int, float, np.number, np.ndarray)) or np.size(flag) != 1:
        return False
    value = np.asarray(flag)
    return value.dtype.kind in "biuf" and value.item() in (0, 1)


def fault_in_reset(given: Any) -> str:
    """A sentence about what ``reset`` gave, if it is not two values by agent; ``""`` if it is."""
    return _not_the_values("reset", given, "observations and infos", 2) or _not_by_agent("observation", given[0])


def fault_in_result(given: Any) -> str:
    """A sentence about what ``step`` gave, if it is not five values by agent; else see ``fault_in_step``."""
    return (
        _not_the_values("step", given, "observations, rewards, terminations, truncations and infos", 5)
        or _not_by_agent("observation", given[0])
        or _not_by_agent("reward", given[1])
    )


def _not_the_values(method: str, given: Any, names: str, number: int) -> str:
    if isinstance(given, (tuple, list)) and len(given) == number:
        return ""
    came = reprlib.repr(given)
    if isinstance(given, (tuple, list)):
        came = f"{len(given)} value{'' if len(given) == 1 else 's'}"
        hint = _OLD_STEP if (method, len(given)) == ("step", 4) else ""
    else:
        hint = _OLD_RESET if method == "reset" and given is not None else ""
    return f"{method}() gave {came}. Return {number}: {names}.{hint}"


def _not_by_agent(word: str, given: Any) -> str:
    if isinstance(given, Mapping):
        return ""
    return f"the {word}s are {reprlib.repr(given)}, not a dict. Return a dict with the {word} of each agent."


def fault_in_step(agents: Iterable[AgentID], terminations: Any, truncations: Any, infos: Any) -> str:
    """A sentence about the first flag or info of one of these agents that is none; ``""`` if all are fine.

    Flags and infos may be missing, and an info may be None or empty.
    """
    for word, flags in (("termination", terminations), ("truncation", truncations)):
        if not isinstance(flags, Mapping):
            return f"the {word}s are {flags!r}, not a dict. Return a dict with a bool for each agent."
        for agent in agents:
            if agent in flags and not is_flag(flags[agent]):
                return f"the {word} of agent {agent!r} is {flags[agent]!r}. Return True or False for each agent."
    return fault_in_infos(agents, infos)


def fault_in_infos(agents: Iterable[AgentID], infos: Any) -> str:
    """As ``fault_in_step``, of infos alone."""
    if infos is not None and not isinstance(infos, Mapping):
        return f"the infos are {infos!r}, not a dict. Return a dict with a dict for each agent."
    for agent in agents:
        info = (infos or {}).get(agent)
        if info is not None and not isinstance(info, Mapping):
            return f"the info of agent {agent!r} is {info!r}, not a dict. Return a dict for each agent."
    return ""


def advice_on_reward(reward: Any) -> str:
    """What to do about a reward that is no finite number."""
    size = reward.size if isinstance(reward, np.ndarray) else len(reward) if isinstance(reward, (list, tuple)) else 1
    if size > 1:
        return (
            f"A reward is one number, not {size}. Those of several agents belong in a PettingZoo environment, by "
            f"agent; several objectives have to be weighed into one number in a wrapper. docs/errors.md shows both."
        )
    return "Rewards must be finite numbers: return one float."


def hint_at_several_agents(env: Any) -> str:
    """A sentence about a Gymnasium environment that seems to hold several agents; ``""`` if it does not."""
    numbers = {_number_of_parts(getattr(env, kind, None)) for kind in ("observation_space", "action_space")}
    if len(numbers) != 1 or max(numbers) < 2:
        return ""
    number = numbers.pop()
    return (
        f"With a list or Tuple of {number} observation spaces and as many action spaces it looks like {number} agents "
        f"in one Gymnasium environment: make it a PettingZoo ParallelEnv. docs/errors.md has a wrapper."
    )


def _number_of_parts(space: Any) -> int:
    parts = space.spaces if isinstance(space, spaces.Tuple) else space
    return len(parts) if isinstance(parts, (list, tuple)) else 0
