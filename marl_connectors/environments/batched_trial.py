"""A trial run of a natively batched environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.connectors.action_masks import ACTION_MASK
from marl_connectors.environments.batched_calls import BatchedCalls
from marl_connectors.environments.batched_env import BatchedEnv
from marl_connectors.errors import EnvError
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import AgentID, Tree

TRIAL_COPIES = 3
_SEED_STEPS = 50
_RESET_AFTER = 2
"""Steps after which one running copy is reset alone."""


def try_out(
    env: BatchedEnv,
    name: str,
    agent_spaces: Callable[[AgentID], tuple[Space, Space]],
    choose: Callable[[AgentID, np.ndarray | None], Any],
    *,
    num_steps: int,
) -> None:
    """Plays a few steps; after two of them, one copy is reset while the others go on.

    Args:
        env: Two copies at least.
        name: For messages.
        agent_spaces: An agent's observation and action space.
        choose: An action for an agent, who may have a mask.
        num_steps: How many.

    Raises:
        EnvError: If an array has another shape than it must have, an observation is not in its space, a reward is no
            finite number, some agents of a copy end before the others, or resetting a copy changes another one.
    """
    calls = BatchedCalls(env, name)
    num_envs, agents = env.num_envs, calls.agents
    observations = calls.reset(list(range(num_envs)), None)
    _check_inside(calls, name, agent_spaces, observations, 0)
    infos: dict[str, np.ndarray] = {}
    for t in range(1, num_steps + 1):
        masks = _masks(calls, observations, infos)
        chosen = [choose(agent, _at(masks[agent], index)) for index in range(num_envs) for agent in agents]
        step = calls.step([np.asarray(action) for action in chosen])
        observations, infos = step.observations, step.infos
        _check_inside(calls, name, agent_spaces, observations, t)
        if not np.isfinite(step.rewards).all():
            index, i = np.argwhere(~np.isfinite(step.rewards))[0]
            raise EnvError(
                f"{name}: the reward of agent {agents[i]!r} in copy {index} at step {t} is {step.rewards[index, i]}, "
                f"not a finite number."
            )
        over = step.over
        partly = np.flatnonzero(step.ended.any(1) & ~over)
        if len(partly):
            index = int(partly[0])
            raise EnvError(
                f"{name}: some agents of copy {index} ended before the others, at step {t}. In a natively batched "
                f"environment all agents of a copy end in one step; make it a PettingZoo environment if they do not."
            )
        if t == _RESET_AFTER:
            over[1] = True
        if over.any():
            observations, infos = _reset(calls, name, observations, over), _infos_after(infos, over)


def seed_fault(env: BatchedEnv, name: str, choose: Callable[[AgentID, np.ndarray | None], Any], *, seed: int) -> str:
    """What tells copies apart that have the same seed and the same actions, while another goes its own way.

    Args:
        env: Three copies.
        name: For messages.
        choose: An action for an agent, who may have a mask.
        seed: Of the copies.

    Returns:
        A sentence, or ``""``.
    """
    calls = BatchedCalls(env, name)
    observations, infos = calls.reset([seed, seed + 1, seed], None), {}
    if _differ(observations):
        return "Two copies that were reset with the same seed differ from the start."
    for t in range(1, _SEED_STEPS + 1):
        masks = _masks(calls, observations, infos)
        own = [[choose(agent, _at(masks[agent], index)) for agent in calls.agents] for index in range(2)]
        step = calls.step([np.asarray(action) for actions in (*own, own[0]) for action in actions])
        observations, infos = step.observations, step.infos
        if any(map(_differ, (observations, step.rewards, step.terminations, step.truncations))):
            return f"Two copies that were reset with the same seed and got the same actions differ at step {t}."
        over = step.over
        if over[0]:
            break
        if over[1]:
            observations, infos = _reset(calls, name, observations, over), _infos_after(infos, over)
    return ""


def _differ(tree: Tree) -> bool:
    return any(not np.array_equal(leaf[0], leaf[2]) for leaf in leaves(tree))


def _reset(calls: BatchedCalls, name: str, observations: Tree, mask: np.ndarray) -> Tree:
    before = tree_map(lambda leaf: leaf[~mask].copy(), observations)
    seeds = [index if own else None for index, own in enumerate(mask.tolist())]
    fresh = calls.reset(seeds, mask)
    for old, new in zip(leaves(before), leaves(fresh), strict=True):
        if not np.array_equal(old, new[~mask]):
            raise EnvError(
                f"{name}: reset(seeds, mask) with the mask {mask.tolist()} gave copies other observations that are not "
                f"in the mask. It must leave them as they are, and return their newest observations."
            )
    return fresh


def _infos_after(infos: dict[str, np.ndarray], reset: np.ndarray) -> dict[str, np.ndarray]:
    """The masks in infos after some copies were reset, which have none then: all is allowed there."""
    if ACTION_MASK not in infos:
        return {}
    masks = np.array(infos[ACTION_MASK])
    masks[reset] = 1
    return {ACTION_MASK: masks}


def _masks(calls: BatchedCalls, observations: Tree, infos: dict[str, np.ndarray]) -> dict[AgentID, np.ndarray | None]:
    """For each agent ``[num_envs, n]``, if it has masks."""
    masks: dict[AgentID, np.ndarray | None] = dict.fromkeys(calls.agents)
    for i, agent in enumerate(calls.agents):
        own = calls.of_agent(observations, agent)
        if isinstance(own, dict) and ACTION_MASK in own:
            masks[agent] = tree_map(np.asarray, own[ACTION_MASK])
        elif ACTION_MASK in infos:
            masks[agent] = np.asarray(infos[ACTION_MASK])[:, i]
    return masks


def _at(masks: np.ndarray | None, index: int) -> np.ndarray | None:
    return None if masks is None else tree_map(lambda leaf: leaf[index], masks)


def _check_inside(
    calls: BatchedCalls,
    name: str,
    agent_spaces: Callable[[AgentID], tuple[Space, Space]],
    observations: Tree,
    t: int,
) -> None:
    for agent in calls.agents:
        space = agent_spaces(agent)[0]
        bad, why = spaces.outside(space, calls.of_agent(observations, agent))
        if bad.any():
            raise EnvError(
                f"{name}: the observation of agent {agent!r} in copy {int(np.flatnonzero(bad)[0])} at step {t} is not "
                f"in its space, {spaces.describe(space)}: {why}. Fix the environment, or set "
                f"disable_env_checking=True (--no-env-check) if the space's bounds are wrong on purpose."
            )
