"""The smoke test: plays a few steps with random actions, and raises the first error that would stop training."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors import spaces as space_tools
from marl_connectors.environments.adapters.batched import BatchedCalls, BatchedEnv
from marl_connectors.environments.adapters.multi_agent_env import agents_wait
from marl_connectors.environments.rules import checks
from marl_connectors.environments.rules.violations import violation
from marl_connectors.errors import EnvError
from marl_connectors.flat_action_masks import ACTION_MASK, draw, mask_of
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID, Tree

if TYPE_CHECKING:
    from marl_connectors.environments.vector.batched_vector_env import GymnasiumVectorEnv

NUM_ENVS = 3
"""The number of sub-environments in a smoke test of a natively batched environment."""
_NUM_STEPS = 20
_RESET_AFTER = 2
"""The number of steps after which one running sub-environment is reset alone."""


class SmokeTest:
    """Plays and checks the reset and the first steps of an environment.

    Attributes:
        info_masks: For each agent in whose infos there was an action mask, the first mask.
        step_times: The duration of each step in seconds; empty if several sub-environments step in one call.
        reset_s: The duration of the reset in seconds.
    """

    def __init__(
        self,
        name: str,
        agent_spaces: Callable[[AgentID], tuple[Space, Space]],
        rng: np.random.Generator,
        *,
        mask_key: str | None = ACTION_MASK,
        num_steps: int = _NUM_STEPS,
    ):
        """Prepares the test.

        Args:
            name: The name of the environment in messages.
            agent_spaces: Returns an agent's observation and action space.
            rng: Draws the actions.
            mask_key: The key of observations or infos under which action masks are. None if a run ignores masks; the
                smoke test still obeys masks under ``"action_mask"``.
            num_steps: The number of steps to play.
        """
        self.name = name
        self.info_masks: dict[AgentID, Any] = {}
        self.step_times: list[float] = []
        self.reset_s = 0.0
        self._agent_spaces = agent_spaces
        self._rng = rng
        self._key = mask_key or ACTION_MASK
        self._num_steps = num_steps

    def play(self, env: Any) -> None:
        """Plays a parallel environment, a TurnBasedEnv or a MultiAgentEnvAdapter.

        Raises:
            EnvError: For the first violation. The message names the agent and the step.
        """
        began = time.perf_counter()
        given = env.reset(seed=0)
        self.reset_s = time.perf_counter() - began
        checks.raise_first(f"{self.name}, step 0", [checks.reset_violation(given)])
        given = (given[0], {}, {}, {}, given[1])
        acting = self._judged(env, [], given, 0)
        for t in range(1, self._num_steps + 1):
            if not acting and not (agents_wait(env) and env.agents):
                return
            observations, infos = given[0], given[4] or {}
            actions = {
                agent: self._choose(agent, mask_of(observations.get(agent), infos.get(agent), self._key))
                for agent in acting
            }
            began = time.perf_counter()
            given = env.step(actions)
            self.step_times.append(time.perf_counter() - began)
            checks.raise_first(f"{self.name}, step {t}", [checks.result_violation(given)])
            acting = self._judged(env, acting, given, t)

    def _judged(self, env: Any, acted: list[AgentID], given: tuple[Any, ...], t: int) -> list[AgentID]:
        """Returns the agents that act next, or raises an EnvError for the first violation in a reset or step."""
        who = f"{self.name}, step {t}"
        terminations, truncations, infos = given[2:]
        if agents_wait(env):  # the adapter checks which agents leave
            acted, alive = [agent for agent in terminations if agent != "__all__"], []
            acting = env.acting
        else:
            ended = {agent for flags in (terminations, truncations) for agent, flag in flags.items() if np.any(flag)}
            alive = [agent for agent in acted if agent not in ended]
            acting = alive + [agent for agent in env.agents if agent not in acted and agent not in ended]
        checks.raise_first(who, checks.contents(acted, acting, given, lambda agent: self._agent_spaces(agent)[0]))
        checks.raise_first(who, [checks.left_without_flag(alive, env.agents)])
        for agent, info in (infos or {}).items():
            if isinstance(info, Mapping) and info.get(self._key) is not None:
                self.info_masks.setdefault(agent, info[self._key])
        return acting

    def _choose(self, agent: AgentID, mask: Any) -> Any:
        space = self._agent_spaces(agent)[1]
        allowed = checks.allowed_actions(space, mask)
        if allowed is None:
            space.seed(int(self._rng.integers(2**31)))
        return random_action(space, allowed, self._rng)

    # Several sub-environments in one call.

    def play_batched(self, env: BatchedEnv, *, twins: bool = False) -> None:
        """Plays a natively batched environment. After two steps, one sub-environment is reset while others continue.

        Args:
            env: An environment with three sub-environments.
            twins: Whether the first and the last sub-environment get the same seed and actions, and must return the
                same data until their episode ends.

        Raises:
            EnvError: For the first violation; also if some agents of a sub-environment end before the others, or if
                resetting a sub-environment changes another one.
        """
        calls = BatchedCalls(env, self.name)
        observations = calls.reset([0, *range(1, env.num_envs - 1), 0 if twins else env.num_envs - 1], None)
        self._judge_arrays(calls, observations, None, 0)
        if twins:
            self._compare(0, observations)
        infos: dict[str, np.ndarray] = {}
        for t in range(1, self._num_steps + 1):
            masks = _masks(calls, observations, infos, self._key)
            chosen = [
                [self._choose_noting(agent, _at(masks[agent], index)) for agent in calls.agents]
                for index in range(env.num_envs)
            ]
            if twins:
                chosen[-1] = chosen[0]
            step = calls.step([np.asarray(action) for actions in chosen for action in actions])
            observations, infos, over = step.observations, step.infos, step.over
            self._judge_arrays(calls, observations, step.rewards, t)
            if twins:
                self._compare(t, (observations, step.rewards, step.terminations, step.truncations))
                twins = not over[0]
            for index in np.flatnonzero(step.ended.any(1) & ~over)[:1]:
                gone = [agent for agent, flag in zip(calls.agents, step.ended[index], strict=True) if flag]
                checks.raise_first(f"{self.name}, sub-environment {index}, step {t}", [checks.ended_alone(gone)])
            if t == _RESET_AFTER:
                over[1] = True
            if over.any():
                observations, infos = _reset(calls, self.name, observations, over), _infos_after(infos, over, self._key)

    def _compare(self, t: int, given: Tree) -> None:
        if any(not np.array_equal(leaf[0], leaf[-1]) for leaf in leaves(given)):
            advice = "Keep all state separate for each sub-environment, also its random generator."
            what = "the first and the last sub-environment differ, although they got the same seed and the same actions"
            checks.raise_first(f"{self.name}, step {t}", [violation("copies", what, advice=advice)])

    def _judge_arrays(self, calls: BatchedCalls, observations: Tree, rewards: np.ndarray | None, t: int) -> None:
        sub_envs = list(range(calls.env.num_envs))
        for i, agent in enumerate(calls.agents):
            self._judge_observations(sub_envs, agent, calls.of_agent(observations, agent), t)
            if rewards is not None:
                self._judge_rewards(sub_envs, agent, rewards[:, i], t)

    def _judge_observations(self, sub_envs: list[int], agent: AgentID, observations: Tree, t: int) -> None:
        """Raises an EnvError for invalid observations of an agent, ``[B, ...]`` of ``B`` sub-environments."""
        if not sub_envs:
            return
        space = self._agent_spaces(agent)[0]
        bad = space_tools.outside(space, observations)[0]
        for leaf in leaves(observations):
            bad = bad | ~np.isfinite(leaf).reshape(len(leaf), -1).all(1)
        for place in np.flatnonzero(bad).tolist():
            who = f"{self.name}, sub-environment {sub_envs[place]}, step {t}"
            checks.raise_first(who, checks.observation_violations(agent, space, _at(observations, place)))

    def _judge_rewards(self, sub_envs: list[int], agent: AgentID, rewards: np.ndarray, t: int) -> None:
        for place in np.flatnonzero(~(np.abs(rewards) <= checks.LARGEST_REWARD)).tolist():
            who = f"{self.name}, sub-environment {sub_envs[place]}, step {t}"
            checks.raise_first(who, [checks.reward_violation(agent, rewards[place].item())])

    def _choose_noting(self, agent: AgentID, mask: Any) -> Any:
        seen = self._agent_spaces(agent)[0]
        if mask is not None and not (isinstance(seen, spaces.Dict) and self._key in seen.spaces):
            self.info_masks.setdefault(agent, mask)
        return self._choose(agent, mask)

    def play_vector(self, vector_env: GymnasiumVectorEnv) -> None:
        """Plays a Gymnasium VectorEnv in the way in which a runner plays it.

        Raises:
            EnvError: For the first violation, also if its resets do not fit the autoreset mode.
        """
        agent = DEFAULT_AGENT_ID
        space = self._agent_spaces(agent)[0]
        first = vector_env.reset_all()
        acting = list(range(len(first)))
        observations: Tree = space_tools.stack([own[agent] for own, _ in first], space)
        self._judge_observations(acting, agent, observations, 0)
        infos = {index: own[agent] for index, (_, own) in enumerate(first) if own}
        for t in range(1, self._num_steps + 1):
            rows = [_at(observations, place) for place in range(len(acting))]
            masks = [mask_of(row, infos.get(index), self._key) for row, index in zip(rows, acting, strict=True)]
            step = vector_env.step(np.stack([np.asarray(self._choose_noting(agent, mask)) for mask in masks]))
            self._judge_rewards(acting, agent, np.asarray(step.rewards), t)
            if step.ends is not None:
                self._judge_observations(step.ends.indices, agent, step.ends.observations, t)
            acting = [sub_env.index for sub_env in vector_env.sub_envs if not sub_env.is_reset_step]
            observations = step.observations
            self._judge_observations(acting, agent, observations, t)
            infos = {index: own[agent] for index, own in step.infos}


def random_action(space: Space, allowed: np.ndarray | None, rng: np.random.Generator) -> Any:
    """Draws a random allowed action.

    Args:
        space: The action space.
        allowed: ``[n]`` bool, as ``allowed_actions`` returns it; None if all actions are allowed. Then the space's own
            generator draws the action.
        rng: Draws the action if ``allowed`` is not None.
    """
    if allowed is None:
        return space.sample()
    return tree_map(lambda leaf: leaf[0], space_tools.from_start(space, draw(space, allowed[None], rng)))


def _at(tree: Any, index: int) -> Any:
    """Returns one row of a tree of arrays; None for None."""
    return None if tree is None else tree_map(lambda leaf: leaf[index], tree)


def _reset(calls: BatchedCalls, name: str, observations: Tree, mask: np.ndarray) -> Tree:
    before = tree_map(lambda leaf: leaf[~mask].copy(), observations)
    seeds = [index if own else None for index, own in enumerate(mask.tolist())]
    fresh = calls.reset(seeds, mask)
    for old, new in zip(leaves(before), leaves(fresh), strict=True):
        if not np.array_equal(old, new[~mask]):
            raise EnvError(
                f"{name}: reset(seeds, mask) with the mask {mask.tolist()} changed the "
                f"observations of sub-environments that are not in the mask. It must leave these as they are, and "
                f"return their newest observations."
            )
    return fresh


def _infos_after(infos: dict[str, np.ndarray], reset: np.ndarray, key: str) -> dict[str, np.ndarray]:
    """Returns the masks in infos after some sub-environments were reset, in which all actions are allowed then."""
    if key not in infos:
        return {}
    masks = np.array(infos[key])
    masks[reset] = 1
    return {key: masks}


def _masks(calls: BatchedCalls, observations: Tree, infos: dict[str, np.ndarray], key: str) -> dict[AgentID, Any]:
    """Returns each agent's masks, ``[num_envs, n]``, or None if it has none."""
    masks: dict[AgentID, Any] = dict.fromkeys(calls.agents)
    for i, agent in enumerate(calls.agents):
        own = calls.of_agent(observations, agent)
        if isinstance(own, dict) and key in own:
            masks[agent] = tree_map(np.asarray, own[key])
        elif key in infos:
            masks[agent] = np.asarray(infos[key])[:, i]
    return masks
