"""Plays a policy on sampled observations, to find the modules of its agents and to compare an export with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space
from gymnasium import spaces as gym_spaces

from marl_connectors import spaces
from marl_connectors.algorithms.inference.onnx_policy import OnnxPolicy
from marl_connectors.columns import Columns
from marl_connectors.errors import ModuleError
from marl_connectors.spaces import parts_of, values_per_choice
from marl_connectors.trees import leaves
from marl_connectors.typing import AgentID, ModuleID, Tree

if TYPE_CHECKING:
    from marl_connectors.algorithms.inference.policy import Policy

_NUM_EPISODES = 8
_WIDEST = 5.0
"""Numbers of observations are sampled between -5 and 5, where the space allows that."""
_ROUNDING = 1e-4
"""The largest difference that counts as rounding, as a share of the largest number."""
_FORBIDDEN = 1e30
"""Larger numbers than this stand for forbidden actions."""
_MISFITS = 0.02
"""The share of rows in which actions without a range may differ, because two actions are equally likely there."""


def modules_of_agents(policy: Policy) -> dict[AgentID, set[ModuleID]]:
    """Returns the modules that each agent has in several episodes."""
    probe, rng = policy._new(False, 0), np.random.default_rng(0)
    found: dict[AgentID, set[ModuleID]] = {agent_id: set() for agent_id in policy.agent_ids}
    for _ in range(2):
        for agent_ids in _calls(policy):
            act_on_samples(probe, agent_ids, rng, first=True)
            for lanes in probe._episodes.lanes.by_env:
                for agent_id, lane in lanes.items():
                    found[agent_id].add(lane.module_id)
        probe.reset()
    return found


def check_export(policy: Policy, theirs: OnnxPolicy, *, explore: bool, num_steps: int = 5) -> None:
    """Compares an export with the policy, in episodes of sampled observations.

    Args:
        policy: The policy.
        theirs: The export.
        explore: Whether the export samples actions. Sampled actions are not compared.
        num_steps: The number of steps of each episode.

    Raises:
        ModuleError: If an agent's action distribution inputs or actions differ by more than rounding.
    """
    ours, rng = policy._new(explore, 0), np.random.default_rng(0)
    for step in range(num_steps):
        for agent_ids in _calls(policy):
            given, actions = act_on_samples(ours, agent_ids, rng, first=step == 0)
            inputs = ours.newest_outputs(Columns.ACTION_DIST_INPUTS, explore=explore)
            found = theirs.actions(**given)
            for agent_id in agent_ids:
                is_sampled = explore or ours._always_samples
                why = _difference(inputs.get(agent_id), theirs.newest_inputs(agent_id))
                if not why and not is_sampled:
                    why = _difference_of_actions(actions[agent_id], found[agent_id])
                if why:
                    raise ModuleError(
                        f"export_onnx: the exported program of agent {agent_id!r} differs from the policy in step "
                        f"{step} of an episode of sampled observations: {why}. In columns(c, xp), your connector "
                        f"pieces must do the same with tensors as with arrays. check=False leaves the comparison out."
                    )


def _calls(policy: Policy) -> list[list[AgentID]]:
    """Returns the agents of each call of a step. In turn-based environments there is one agent in each."""
    return [[agent_id] for agent_id in policy.agent_ids] if policy.takes_turns else [policy.agent_ids]


def act_on_samples(
    policy: Policy, agent_ids: list[AgentID], rng: np.random.Generator, *, first: bool, num_envs: int = _NUM_EPISODES
) -> tuple[dict[str, Any], dict[AgentID, Any]]:
    """Lets some agents of a policy act on sampled observations, rewards and masks.

    Args:
        policy: The policy.
        agent_ids: The agents.
        rng: Draws the samples.
        first: Whether this is the first step of all episodes, so that there are no rewards.
        num_envs: The number of environments.

    Returns:
        The samples, as arguments of ``policy.actions``, and the actions.
    """
    pairs = {agent_id: policy.spaces_of(agent_id) for agent_id in agent_ids}
    given: dict[str, Any] = {
        "observations": {agent_id: sample(space, num_envs, rng) for agent_id, (space, _) in pairs.items()},
        "rewards": None if first else {agent_id: rng.normal(size=num_envs) for agent_id in agent_ids},
        "infos": {},
    }
    key = policy.info_mask_key
    if key is not None:
        masked = [agent_id for agent_id in agent_ids if values_per_choice(pairs[agent_id][1])]
        given["infos"] = {
            agent_id: [{key: sample_mask(pairs[agent_id][1], rng)} for _ in range(num_envs)] for agent_id in masked
        }
    return given, policy.actions(**given)


def sample(space: Space, rows: int, rng: np.random.Generator) -> Tree:
    """Returns ``[rows, ...]`` observations of a space, without very large numbers."""
    if isinstance(space, gym_spaces.Dict):
        return {key: sample(part, rows, rng) for key, part in space.spaces.items()}
    if isinstance(space, gym_spaces.Tuple):
        return tuple([sample(part, rows, rng) for part in space.spaces])
    if isinstance(space, gym_spaces.Box):
        low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
        if space.dtype.kind == "f":
            low = np.clip(low, np.minimum(-_WIDEST, high), None)
            high = np.clip(high, None, np.maximum(_WIDEST, low))
            return rng.uniform(low, high, (rows, *space.shape)).astype(space.dtype)
        return np.floor(rng.uniform(low, high + 1.0, (rows, *space.shape))).clip(low, high).astype(space.dtype)
    space.seed(int(rng.integers(2**31)))
    return spaces.stack([space.sample() for _ in range(rows)], space)


def sample_mask(space: Space, rng: np.random.Generator) -> Any:
    """Returns a random mask of one action, in the form of environments; some masks forbid everything."""
    if isinstance(space, (gym_spaces.Dict, gym_spaces.Tuple)):
        parts = {key: sample_mask(part, rng) for key, part in parts_of(space)}
        return parts if isinstance(space, gym_spaces.Dict) else tuple(parts.values())
    if isinstance(space, gym_spaces.MultiBinary):
        return rng.integers(3, size=space.shape).astype(np.int8)
    lens = values_per_choice(space)
    return None if lens is None else (rng.random(sum(lens)) < rng.choice([0.0, 0.5, 0.9])).astype(np.int8)


def _difference(ours: Any, theirs: Any) -> str:
    if ours is None or theirs is None:
        return ""
    if ours.shape != theirs.shape:
        return f"its action distribution inputs have the shape {theirs.shape}, those of the policy {ours.shape}"
    return _distance("action distribution inputs", ours, theirs)


def _distance(what: str, ours: np.ndarray, theirs: np.ndarray) -> str:
    """Compares numbers with the largest of them. Those of forbidden actions are too large for that, and are equal."""
    is_usual = np.abs(ours) < _FORBIDDEN
    if not np.array_equal(ours[~is_usual], theirs[~is_usual]):
        return f"{what} of forbidden actions differ"
    apart = np.abs(ours - theirs)[is_usual].max(initial=0.0) / (np.abs(ours)[is_usual].max(initial=0.0) + 1e-6)
    return "" if apart <= _ROUNDING else f"{what} differ by up to {apart:.1g} of the largest"


def _difference_of_actions(ours: Tree, theirs: Tree) -> str:
    for own, other in zip(leaves(ours), leaves(theirs), strict=True):
        if own.shape != other.shape or own.dtype != other.dtype:
            return f"actions have the shape {other.shape} and dtype {other.dtype}, not {own.shape} and {own.dtype}"
        if own.dtype.kind == "f":
            if why := _distance("actions", own, other):
                return why
        elif np.mean(own != other) > max(_MISFITS, 1 / len(own)):
            return f"{np.mean(own != other):.0%} of the actions differ"
    return ""
