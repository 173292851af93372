"""The smoke test: plays a few steps with random actions, and raises the first error that would stop training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces as space_tools
from marl_connectors.environments.rules import checks
from marl_connectors.environments.rules.step_result import StepResult
from marl_connectors.environments.vector.batched_vector_env import BatchedVectorEnv
from marl_connectors.environments.vector.envs_in_use import release
from marl_connectors.environments.vector.sub_environment import SubEnvironment
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.errors import EnvError
from marl_connectors.flat_action_masks import ACTION_MASK, draw, mask_of
from marl_connectors.trees import as_list, copied, leaves, tree_map
from marl_connectors.typing import AgentID

NUM_ENVS = 3
"""The number of sub-environments in a smoke test of a natively batched environment."""
_NUM_STEPS = 20
_RESET_AFTER = 2
"""The number of steps after which one running sub-environment is reset alone."""

Acting = list[tuple[SubEnvironment, AgentID]]
"""The agents that act in a step, or get something in it, each with its sub-environment."""


class SmokeTest:
    """Plays and checks the reset and the first steps of an environment, in the way in which a runner plays it.

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
        self._places: dict[int, str] = {}  # the step that is judged, by the index of the sub-environment

    def play(self, vector_env: VectorEnv) -> None:
        """Plays a vector environment.

        A single environment is played to the end of its episode. If several step in one call, those whose episode ends
        are reset, and after two steps one is reset while the others continue.

        Raises:
            EnvError: For the first violation. The message names the agent and the step.
        """
        vector_env.look_every = 1
        vector_env.resets_late = True
        vector_env.reset_seed = lambda sub_env: 0  # the seed of no episode of the run
        for sub_env in vector_env.sub_envs:
            sub_env.step = self._judged_step(sub_env)
        try:
            self._play(vector_env)
        except EnvError as error:
            raise EnvError(f"{self.name}, smoke test with random actions: {error}") from error.__cause__
        finally:
            release(vector_env.sub_envs)

    def _play(self, vector_env: VectorEnv) -> None:
        began = time.perf_counter()
        first = vector_env.reset_all()
        self.reset_s = time.perf_counter() - began
        self._places = {sub_env.index: str(sub_env) for sub_env in vector_env.sub_envs}
        acting = _acting(vector_env)
        observations = [first[sub_env.index][0][agent] for sub_env, agent in acting]
        infos = {index: own for index, (_, own) in enumerate(first)}
        self._judge_next(acting, observations, infos)
        for t in range(1, self._num_steps + 1):
            actions = self.actions(acting, observations, infos)
            self._places = {sub_env.index: sub_env.at(sub_env.t + 1) for sub_env in vector_env.sub_envs}
            result = vector_env.step(actions)
            self.judge(acting, result)
            if t == _RESET_AFTER and type(vector_env) is BatchedVectorEnv:
                result.late = sorted({*result.late, (1, 0)})
            if result.late:
                if not isinstance(vector_env, BatchedVectorEnv):
                    return
                self._reset_some(vector_env, result)
            acting, observations, infos = _acting(vector_env), as_list(result.observations), dict(result.infos)
            self._judge_next(acting, observations, infos)

    def _judged_step(self, sub_env: SubEnvironment) -> Callable[..., Any]:
        """Returns the ``step`` of one environment with a clock, and with checks of what no result of it shows."""
        step = sub_env.step

        def judged_step(actions: dict[AgentID, Any]) -> Any:
            began = time.perf_counter()
            given = step(actions)
            self.step_times.append(time.perf_counter() - began)
            found = checks.result_violation(given) or checks.step_violation(list(actions), *given[2:])
            checks.raise_first(self._places[sub_env.index], [found])
            return given

        return judged_step

    def actions(self, acting: Acting, observations: list[Any], infos: Mapping[int, Any]) -> list[Any]:
        """Returns random actions that the masks allow, of all agents that act."""
        return [
            self._choose(agent, mask_of(observation, infos.get(sub_env.index, {}).get(agent), self._key))
            for (sub_env, agent), observation in zip(acting, observations, strict=True)
        ]

    def _choose(self, agent: AgentID, mask: Any) -> Any:
        space = self._agent_spaces(agent)[1]
        allowed = checks.allowed_actions(space, mask)
        if allowed is None:
            space.seed(int(self._rng.integers(2**31)))
        return random_action(space, allowed, self._rng)

    def judge(self, acted: Acting, result: StepResult) -> None:
        """Raises an EnvError for the first invalid reward or last observation.

        Args:
            acted: The agents that acted.
            result: The result of the step.
        """
        owners = [(sub_env.index, agent) for sub_env, agent in acted] if result.rewarded is None else result.rewarded
        rewards = result.rewards if isinstance(result.rewards, list) else result.rewards.tolist()
        for (index, agent), reward in zip(owners, rewards, strict=True):
            checks.raise_first(self._places[index], [checks.reward_violation(agent, reward)])
        if result.ends is not None:
            ended = [(sub_env.index, agent) for sub_env, agent in acted if sub_env.index in result.ends.indices]
            for (index, agent), last in zip(ended, as_list(result.ends.observations), strict=True):
                self._judge_observation(index, agent, last)
        for event in result.events:
            for agent, last in event.observations.items():
                self._judge_observation(event.index, agent, last)

    def _judge_next(self, acting: Acting, observations: Iterable[Any], infos: Mapping[int, Any]) -> None:
        """Judges the observations of the agents that act next, and keeps the first mask in each agent's infos."""
        for (sub_env, agent), observation in zip(acting, observations, strict=True):
            if observation is None:
                checks.raise_first(self._places[sub_env.index], [checks.no_observation(agent, True)])
            self._judge_observation(sub_env.index, agent, observation)
            info = infos.get(sub_env.index, {}).get(agent, {})
            if info.get(self._key) is not None:
                self.info_masks.setdefault(agent, info[self._key])

    def _judge_observation(self, index: int, agent: AgentID, observation: Any) -> None:
        space = self._agent_spaces(agent)[0]
        if observation is not None and space is not None:
            checks.raise_first(self._places[index], checks.observation_violations(agent, space, observation))

    def _reset_some(self, vector_env: BatchedVectorEnv, result: StepResult) -> None:
        """Resets the sub-environments in ``result.late``, which must not change the others."""
        before = copied(as_list(result.observations))
        vector_env.reset_over(result)
        reset = [index in dict(result.late) for index in range(vector_env.num_envs)]
        owners = [sub_env.index for sub_env in vector_env.sub_envs for _ in sub_env.agents]
        for index, old, new in zip(owners, before, as_list(result.observations), strict=True):
            if not reset[index] and not same_data(old, new):
                raise EnvError(
                    f"reset(seeds, mask) with the mask {reset} changed the observations of sub-environments that are "
                    f"not in the mask. It must leave these as they are, and return their newest observations."
                )
            if reset[index]:
                self._places[index] = str(vector_env.sub_envs[index])


def _acting(vector_env: VectorEnv) -> Acting:
    acting = [sub_env for sub_env in vector_env.sub_envs if not sub_env.is_reset_step]
    return [(sub_env, agent) for sub_env in acting for agent in sub_env.agents]


def same_data(one: Any, other: Any) -> bool:
    """Whether two trees of arrays are equal."""
    return all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(other), strict=True))


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
