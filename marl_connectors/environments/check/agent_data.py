"""Judges what agents get, beyond what a run needs: all violations, types that are converted, all values of a mask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors import spaces as space_tools
from marl_connectors.environments.check.rules import violation
from marl_connectors.environments.rules import checks
from marl_connectors.environments.rules.violations import Violation
from marl_connectors.flat_action_masks import wanted_mask
from marl_connectors.trees import leaves
from marl_connectors.typing import AgentID


def contents(
    acted: Iterable[AgentID], to_act: Collection[AgentID], given: tuple[Any, ...], space_of: Callable[[AgentID], Any]
) -> Iterator[Violation]:
    """Yields all violations in the data of single agents in a reset or step.

    Args:
        acted: The agents that acted; empty for a reset.
        to_act: The agents that act next.
        given: Observations, rewards, terminations, truncations and infos, each by agent.
        space_of: Returns an agent's observation space, or None if its observations are not to be checked.
    """
    observations, rewards, terminations, truncations, infos = given
    acted = list(acted)
    for agent in acted:
        for word, flags in (("termination", terminations), ("truncation", truncations)):
            if agent in flags and (found := checks.flag_violation(agent, word, flags[agent])):
                yield found
    for agent, reward in rewards.items():
        if found := checks.reward_violation(agent, reward):
            yield found
    for agent in dict.fromkeys([*acted, *to_act]):
        observation = observations.get(agent)
        if observation is None:
            yield from [checks.no_observation(agent, agent in observations)] if agent in to_act else []
        elif (space := space_of(agent)) is not None:
            yield from checks.observation_violations(agent, space, observation)
        if found := checks.info_violation(agent, (infos or {}).get(agent, {})):
            yield found


def conversions(agent: AgentID, space: Space, item: Any) -> Iterator[Violation]:
    """Yields warnings and notes about values that are in their space, but are converted when they are stored."""
    for path, part, own in checks.space_leaves(space, item, ()):
        if not isinstance(part, spaces.Box) or space_tools.misfit(part, own):
            continue
        values, wanted = np.asarray(own), np.dtype(part.dtype)
        name = checks.leaf_name(path)
        if wanted.kind in "iub" and values.dtype.kind == "f":
            what = f"the observation{name} is {values.dtype}, but the space {wanted}"
            yield violation("observation-dtype", what, agent, level="warning", part=path)
        elif not isinstance(own, (np.ndarray, np.generic)):
            what = f"the observation{name} is a Python {type(own).__name__}, not a numpy array"
            yield violation("python-data", what, agent, part=path)
        elif values.dtype not in (wanted, np.float64):
            what = f"the observation{name} is {values.dtype}, but the space {wanted}, to which it is converted"
            yield violation("observation-dtype", what, agent, level="note", part=path)
        if values.dtype == np.float64 and isinstance(own, np.ndarray):
            what = f"the observation{name} is float64, but networks compute in float32"
            yield violation("float64", what, agent, part=path)


def mask_violation(agent: AgentID, space: Space, mask: Any, key: str, *, takes_turns: bool) -> Violation | None:
    """Returns the violation if the mask of an agent that acts next is invalid; else None.

    Args:
        agent: The agent.
        space: Its action space, in which some actions are choices among several values.
        mask: The mask that the environment returned.
        key: The key of the mask.
        takes_turns: Whether the environment is turn-based, so that a mask that forbids all actions is an error.
    """
    if isinstance(space, (spaces.MultiBinary, spaces.Dict, spaces.Tuple)):
        if checks.allowed_actions(space, mask) is None or not all(
            np.isin(part, (0, 1, 2)).all() for part in leaves(mask)
        ):
            return violation("mask-values", _mask_is(mask), agent, advice=f"It should be {wanted_mask(space)}.")
        return None
    try:
        flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.asarray(mask)
    except ValueError:
        flat = np.array(None)
    length = sum(space_tools.values_per_choice(space) or ())
    if flat.dtype.kind not in "biuf" or not np.isin(flat, (0, 1)).all():
        return violation("mask-values", _mask_is(mask), agent)
    if flat.shape != (length,):
        what = f"the action mask has the shape {flat.shape}, but {space} has {length} choices"
        return violation("mask-length", what, agent)
    if not flat.any():
        return checks.forbids_all(agent, key, takes_turns=takes_turns)
    return violation("mask-dtype", f"the action mask is {flat.dtype}", agent) if flat.dtype.kind == "f" else None


def _mask_is(mask: Any) -> str:
    return f"the action mask is {checks.short(mask)}"
