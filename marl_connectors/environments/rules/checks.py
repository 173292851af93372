"""Checks the data that an environment returns: resets, steps, observations, rewards, flags, infos, masks and states.

Everything here is a pure function from data to violations. The callers decide how to react: ``check_env`` reports all
violations. The smoke test before a run and the run itself raise the first error. In runs that replace failed
environments, that error only ends an episode.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors import spaces as space_tools
from marl_connectors.environments.rules.violations import Violation, violation
from marl_connectors.errors import EnvError
from marl_connectors.flat_action_masks import (
    flat_masks,
    free_where_nothing_is_left,
    mask_of_one_row,
)
from marl_connectors.state import is_id
from marl_connectors.typing import AgentID

ADVICE_ON_OLD_GYM = (
    "Wrap it where it is made (pip install shimmy): shimmy.openai_gym_compatibility.GymV26CompatibilityV0(env=env), or "
    "GymV21CompatibilityV0(env=env) if its step() returns four values."
)
_OLD_STEP = (
    " Four values are those of gym before 0.26 and PettingZoo before 1.22: return terminated and truncated "
    "separately, or wrap an environment of the old gym: shimmy.openai_gym_compatibility.GymV21CompatibilityV0(env=env)."
)
_OLD_RESET = (
    " In gym before 0.26, reset() returned the observation alone. Return an info too, {} if there is nothing to say."
)
_VALUES = {
    "reset": ("observations", "infos"),
    "step": ("observations", "rewards", "terminations", "truncations", "infos"),
    "last": ("observation", "reward", "termination", "truncation", "info"),
}
_INVALID = {"observation-shape", "observation-structure", "observation-not-finite"}
"""Kinds of observations that no column can hold or no network can read, whatever the bounds of the space."""
_BOOL, _DICT = {bool}, {dict}
LARGEST_REWARD = float(np.finfo(np.float32).max)
"""Learners compute with float32."""


# The form of the results of reset() and step().


def wrong_values(method: str, given: Any) -> Violation | None:
    """Returns the violation if ``reset``, ``step`` or ``last`` returned a wrong number of values; else None."""
    names = _VALUES[method]
    if isinstance(given, (tuple, list)) and len(given) == len(names):
        return None
    came, hint = reprlib.repr(given), ""
    if isinstance(given, (tuple, list)):
        came = f"{len(given)} value{'' if len(given) == 1 else 's'}"
        hint = _OLD_STEP if (method, len(given)) == ("step", 4) else ""
    elif method == "reset" and given is not None:
        hint = _OLD_RESET
    advice = f"Return {len(names)}: {', '.join(names[:-1])} and {names[-1]}.{hint}"
    return violation("wrong-result", f"{method}() returned {came}", advice=advice)


def _not_by_agent(word: str, given: Any) -> Violation | None:
    if type(given) is dict or isinstance(given, Mapping):
        return None
    advice = f"Return a dict with the {word} of each agent."
    return violation("wrong-result", f"the {word}s are {reprlib.repr(given)}, not a dict", advice=advice)


def _infos_not_by_agent(infos: Any) -> Violation | None:
    return None if infos is None else _not_by_agent("info", infos)


def reset_violation(given: Any) -> Violation | None:
    """Returns the violation if the result of ``reset`` is not two dicts by agent; else None."""
    return wrong_values("reset", given) or _not_by_agent("observation", given[0]) or _infos_not_by_agent(given[1])


def result_violation(given: Any) -> Violation | None:
    """Returns the violation if the result of ``step`` is not five dicts by agent; else None."""
    if found := wrong_values("step", given):
        return found
    words = ("observation", "reward", "termination", "truncation")
    by_agent = (_not_by_agent(word, part) for word, part in zip(words, given, strict=False))
    return next(filter(None, by_agent), None) or _infos_not_by_agent(given[4])


def step_violation(agents: Iterable[AgentID], terminations: Any, truncations: Any, infos: Any) -> Violation | None:
    """Returns the violation for the first of these agents whose flag or info is invalid; None if there is none.

    Flags and infos may be missing.
    """
    # This is called for unusual steps of a run and must be fast with many agents: there is no loop over agents if all
    # flags are bools and all infos are dicts.
    for word, flags in (("termination", terminations), ("truncation", truncations)):
        if found := _not_by_agent(word, flags):
            return found
        if not set(map(type, flags.values())) <= _BOOL:
            for agent in agents:
                if agent in flags and not is_flag(flags[agent]):
                    return flag_violation(agent, word, flags[agent])
    return infos_violation(agents, infos)


def infos_violation(agents: Iterable[AgentID], infos: Any) -> Violation | None:
    """Returns the violation for the first of these agents whose info is not a dict; None if there is none."""
    if not infos or (type(infos) is dict and set(map(type, infos.values())) <= _DICT):
        return _infos_not_by_agent(infos)
    if found := _not_by_agent("info", infos):
        return found
    for agent in agents:
        info = infos.get(agent)
        if info is not None and not isinstance(info, Mapping):
            return info_violation(agent, info)
    return None


def raise_first(who: Any, violations: Iterable[Violation | None]) -> None:
    """Raises the first violation whose level is ``"error"``.

    Args:
        who: The environment, sub-environment or step, for the message.
        violations: The violations; None is skipped.

    Raises:
        EnvError: If there is an error among the violations.
    """
    for found in violations:
        if found is not None and found.level == "error":
            raise EnvError(f"{who}: {found}")


# The data of one agent.


def is_flag(flag: Any) -> bool:
    """Whether an object can be read as a bool: a bool, or a number or array with one number that is 0 or 1.

    >>> is_flag(np.True_), is_flag(1), is_flag("yes"), is_flag(None)
    (True, True, False, False)
    """
    if isinstance(flag, (bool, np.bool_)):
        return True
    if not isinstance(flag, (int, float, np.number, np.ndarray)) or np.size(flag) != 1:
        return False
    value = np.asarray(flag)
    return value.dtype.kind in "biuf" and value.item() in (0, 1)


def flag_violation(agent: AgentID, word: str, flag: Any) -> Violation | None:
    """Returns the violation if a termination or truncation is not a bool, a note for 0 and 1; else None."""
    if isinstance(flag, (bool, np.bool_)):
        return None
    is_number = is_flag(flag)
    what = f"the {word} is {short(flag)}{', not a bool' if is_number else ''}"
    return violation("flag", what, agent, level="note" if is_number else "error", part=word)


def info_violation(agent: AgentID, info: Any) -> Violation | None:
    """Returns the violation if an agent's info is not a dict, a note for None; else None."""
    if isinstance(info, Mapping):
        return None
    level = "note" if info is None else "error"
    return violation("info", f"the info is {short(info)}, not a dict", agent, level=level, part=level)


def reward_violation(agent: AgentID | None, reward: Any) -> Violation | None:
    """Returns the violation if a reward is not one finite number of float32; else None."""
    try:
        array = np.asarray(reward)
        if not array.ndim and array.dtype.kind in "biuf" and np.isfinite(array):
            if abs(float(array)) <= LARGEST_REWARD:
                return None
            what = f"the reward is {short(reward)}, and float32 holds no more than {LARGEST_REWARD:.2g}"
            return violation("reward", what, agent, advice="Divide the rewards by a constant in the environment.")
    except ValueError:  # a ragged list
        pass
    what = f"the reward is {short(reward)}, not a finite number"
    return violation("reward", what, agent, advice=advice_on_reward(reward))


def advice_on_reward(reward: Any) -> str | None:
    """Returns advice about a reward that has several numbers; None if the rule's advice is enough."""
    size = reward.size if isinstance(reward, np.ndarray) else len(reward) if isinstance(reward, (list, tuple)) else 1
    if size <= 1:
        return None
    return (
        f"A reward is one number, not {size}. Those of several agents belong in a PettingZoo environment, by "
        f"agent; several objectives have to be weighed into one number in a wrapper. docs/errors.md shows both."
    )


def observation_violations(agent: AgentID | None, space: Space, item: Any) -> Iterator[Violation]:
    """Yields the violations of an observation, at most one for each part of a nested observation."""
    for kind, path, why in _misfits(space, item):
        if kind != "observation-not-finite":
            why = f"leaves its space, {space_tools.describe(space)}: {why}"
        yield violation(kind, f"the observation {why}", agent, part=path)


def _misfits(space: Space, item: Any) -> Iterator[tuple[str, tuple[Any, ...], str]]:
    """Yields the kind, the path and a short reason for each part that is not in its space."""
    for path, part, own in space_leaves(space, item, ()):
        found = _leaf_violation(part, own)
        if found is None:
            continue
        kind, why = found
        place = [f"in part {key!r}" for key in path]
        yield kind, path, ", ".join([why, *place] if kind == "observation-not-finite" else [*place, why])


def space_leaves(space: Space, item: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Space, Any]]:
    """Yields the path, space and value of each leaf, and of each nested part that does not have its space's parts."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        try:
            found = space_tools.parts_in(space, item)
        except ValueError:
            pass
        else:
            for (key, part), own in zip(space_tools.parts_of(space), found, strict=True):
                yield from space_leaves(part, own, (*path, key))
            return
    yield path, space, item


def _leaf_violation(space: Space, item: Any) -> tuple[str, str] | None:
    """Returns the kind of the violation and a short reason; None if the item is in the space."""
    try:
        values = np.asarray(item)
    except ValueError:
        values = np.array(None)
    are_numbers = values.dtype.kind in "biuf" and not isinstance(space, (spaces.Dict, spaces.Tuple))
    if are_numbers and values.shape == space.shape and not np.isfinite(values).all():
        place = ", ".join(map(str, np.argwhere(~np.isfinite(values))[0].tolist()))
        word = "NaN" if np.isnan(values).any() else "infinity"
        return "observation-not-finite", f"contains {word}{f' at component {place}' if place else ''}"
    why = space_tools.misfit(space, item)
    if not why:
        return None
    if not are_numbers:
        return "observation-structure", f"it is {short(item)}, which is not numbers" if "not numbers" in why else why
    if values.shape != space.shape:
        return "observation-shape", why
    return ("observation-dtype" if "cannot hold" in why else "observation-outside-space"), why


def state_violation(space: Space, state: Any) -> Violation | None:
    """Returns the violation if the environment's ``state()`` is not in ``space``, its ``state_space``; else None."""
    for _, _, why in _misfits(space, state):
        what = f"the state does not fit state_space, {space_tools.describe(space)}: {why}"
        return violation("state-outside-space", what)
    return None


# Agents and turns.


def not_a_space(kind: str, agent: AgentID, space: Any, advice: str = "") -> Violation | None:
    """Returns the violation if an object that should be an agent's space is not a Gymnasium space; else None.

    Args:
        kind: ``"observation_space"`` or ``"action_space"``.
        agent: The agent.
        space: The object that the environment returned.
        advice: The advice; ``""`` for a general one.
    """
    if isinstance(space, Space):
        return None
    advice = advice or "Use a space of gymnasium.spaces. Those of the old gym package are other classes."
    what = f"{kind}({agent!r}) is {space!r}, not a gymnasium space"
    return violation("space-missing", what, agent, advice=advice, part=kind)


def no_observation(agent: AgentID, is_none: bool) -> Violation:
    """Returns the violation for an agent that acts next and has no observation, or None as its observation."""
    what = f"the agent acts next, but {'observes None' if is_none else 'has no observation'}"
    return violation("no-observation", what, agent)


def not_observed(agents: Iterable[AgentID], observations: Mapping[AgentID, Any]) -> Violation | None:
    """Returns the violation for the first of these agents, which act next, without an observation; else None."""
    return next((no_observation(agent, False) for agent in agents if agent not in observations), None)


def left_without_flag(alive: Iterable[AgentID], now: Collection[AgentID]) -> Violation | None:
    """Returns the violation for the first agent of ``alive`` that is not in ``now``; None if all are."""
    what = "the agent left env.agents without being terminated or truncated"
    return next((violation("left-without-flag", what, agent) for agent in alive if agent not in now), None)


def id_violation(agent: AgentID) -> Violation | None:
    """Returns the violation if no checkpoint can hold an agent's id; else None."""
    if is_id(agent):
        return None
    kind = "" if agent is None else f" of the type {type(agent).__name__}"
    return violation("agent-id", f"the id of an agent is {short(agent)}{kind}, which cannot be saved", part=repr(agent))


def no_live_agents() -> Violation:
    """Returns the violation for a reset after which there are no live agents."""
    return violation("no-agents", "reset() left no live agents in env.agents, so no agent can act")


def selected_absent(agent: AgentID, agents: Iterable[AgentID]) -> Violation:
    """Returns the violation for an AEC environment that selects an absent agent."""
    return violation(
        "selected-stranger", f"env.agent_selection is {agent!r}, which is not in env.agents, {list(agents)}"
    )


def not_removed(agent: AgentID) -> Violation:
    """Returns the violation for an AEC environment that keeps an agent that has ended and had its last turn."""
    what = "the agent has ended, but step(None) did not remove it from env.agents"
    return violation("dead-not-removed", what, agent)


def ended_alone(gone: list[AgentID]) -> Violation:
    """Returns the violation for agents of a natively batched environment that ended before the others."""
    return violation(
        "copies",
        f"agents {gone} ended before the others",
        advice="In a natively batched environment, all agents of a sub-environment end in one step. Make it a "
        "PettingZoo environment if they do not.",
    )


# Masks.


def allowed_actions(space: Space, mask: Any) -> np.ndarray | None:
    """Returns which values a mask allows, ``[n]`` bool; None if the mask does not fit the action space.

    If a mask forbids all values of a choice, all values of this choice are allowed.
    """
    flat = None if mask is None else flat_masks(space, mask_of_one_row(mask))
    usable = flat is not None and space_tools.values_per_choice(space) is not None
    return free_where_nothing_is_left(space, flat)[0] if usable else None  # type: ignore[arg-type]


def forbids_all(agent: AgentID, key: str, *, takes_turns: bool) -> Violation:
    """Returns the violation for a mask that forbids all actions of an agent that acts next."""
    what = f"the agent acts next, but its {key!r} forbids all actions"
    if takes_turns:
        return violation("mask-forbids-all", what, agent)
    advice = "Such an agent counts as waiting, and any action may be chosen. Allow one that does nothing instead."
    return violation("mask-forbids-all", what, agent, level="warning", advice=advice)


def invalid_data(agent: AgentID | None, space: Space, observation: Any) -> list[Violation]:
    """Returns the violations of an observation that no column can hold or no network can read.

    The bounds of the space are not checked.
    """
    if type(observation) is np.ndarray and observation.shape == space.shape:
        kind = observation.dtype.kind
        if kind in "biu" or (kind == "f" and np.isfinite(observation).all()):
            return []
    return [found for found in observation_violations(agent, space, observation) if found.kind in _INVALID]


def leaf_name(path: tuple[Any, ...]) -> str:
    """Returns the place of a leaf in a nested observation, such as ``"['mask'][0]"``."""
    return "".join(f"[{key!r}]" for key in path)


def short(value: Any) -> str:
    """Returns a value in one line of at most 80 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
