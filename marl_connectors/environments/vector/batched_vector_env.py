"""VectorEnvs for natively batched and Gymnasium vector environments."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from marl_connectors.environments.adapters.batched import BatchedCalls, BatchedEnv, BatchedStep
from marl_connectors.environments.adapters.gymnasium_vector import INFOS, GymnasiumBatch
from marl_connectors.environments.rules.checks import ended_alone, raise_first
from marl_connectors.environments.rules.env_failures import Watched, close_env, sentence
from marl_connectors.environments.rules.step_result import EpisodeEnds, Event, StepResult
from marl_connectors.environments.vector.envs_in_use import release
from marl_connectors.environments.vector.garbage_pauses import without_collections
from marl_connectors.environments.vector.sub_environment import SubEnvironment, not_repeatable
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.errors import EnvError
from marl_connectors.seeding import episode_seeds
from marl_connectors.trees import tree_map
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID, Tree


class BatchedVectorEnv(VectorEnv):
    """Sub-environments that are part of one environment and are stepped in one call.

    The result of ``step`` contains arrays instead of lists, unless agents have different spaces.

    Attributes:
        env: The environment.
    """

    is_batched = True

    def __init__(self, env: BatchedEnv, **settings: Any):
        """Creates the sub-environments' records; nothing is reset yet.

        Args:
            env: The natively batched environment.
            **settings: The arguments of VectorEnv but ``restarts`` and ``state_space``.

        Raises:
            EnvError: If the environment has no sub-environments or no agents, or is in use already.
        """
        super().__init__([env] * env.num_envs, **settings)
        self.env = env
        self._calls = BatchedCalls(env)
        self.is_batched = self._calls.alike  # otherwise lists of arrays of different shapes
        self._agents = self._calls.agents
        for sub_env in self.sub_envs:
            sub_env.agents = self._agents
            sub_env.history.is_complete = False  # one sub-environment cannot be replayed alone

    def _uses(self) -> Iterable[tuple[SubEnvironment, Any]]:
        return [(sub_env, sub_env.env) for sub_env in self.sub_envs[:1]]

    def reset_all(self) -> list[tuple[dict[AgentID, Any], dict[AgentID, dict]]]:
        """Starts the next episode of every sub-environment, in one call."""
        observations = self._reset_sub_envs(self.sub_envs, None)
        return [(self._calls.of_sub_env(observations, sub_env.index), {}) for sub_env in self.sub_envs]

    def reset(self, sub_env: SubEnvironment) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts the sub-environment's next episode."""
        mask = np.arange(len(self.sub_envs)) == sub_env.index
        return self._calls.of_sub_env(self._reset_sub_envs([sub_env], mask), sub_env.index), {}

    def _reset_sub_envs(self, sub_envs: Collection[SubEnvironment], mask: np.ndarray | None) -> Tree:
        seeds: list[int | None] = [None] * len(self.sub_envs)
        for sub_env in sub_envs:
            sub_env.episode_number += 1
            sub_env.t = 0
        numbers, episodes = np.array([(sub_env.number, sub_env.episode_number) for sub_env in sub_envs]).T
        for sub_env, seed in zip(sub_envs, episode_seeds(self.seed, numbers, episodes).tolist(), strict=True):
            seeds[sub_env.index] = seed  # the same as reset_seed(sub_env)
        try:
            with Watched(lambda: f"{next(iter(sub_envs))} and others: reset()"):
                return self._calls.reset(seeds, mask)
        except EnvError as error:
            raise self._placed(error, next(iter(sub_envs))) from error.__cause__

    def step(self, actions: Any) -> StepResult:
        """Steps all sub-environments, and resets those whose episode ended.

        Args:
            actions: ``[num_envs * num_agents, ...]``, or a list of ``num_envs * num_agents`` actions where agents have
                different spaces.

        Raises:
            EnvError: If the environment raises, returns arrays of other shapes, or ends agents one by one.
        """
        try:
            given = self._calls.step(actions)
        except EnvError as error:
            raise self._placed(error, self.sub_envs[0]) from error.__cause__
        for sub_env in self.sub_envs:
            sub_env.t += 1
        ended, over = given.ended, given.over
        if not ended.any():
            result = StepResult(given.rewards.reshape(-1), self._calls.flat(given.observations))
        else:  # a reset may use the arrays again
            result = StepResult(given.rewards.flatten(), [], ends=self._ends_of(given, ended, over))
        result.infos = self._infos_of(given, ~over)
        if result.ends is not None:
            self._end_sub_envs(result, given, over)
        return result

    def _infos_of(self, given: BatchedStep, mask: np.ndarray) -> list[tuple[int, dict[AgentID, dict]]]:
        if not given.infos:
            return []
        return [(index, info) for index in np.flatnonzero(mask).tolist() if (info := self._info(given, index))]

    def _info(self, given: BatchedStep, index: int) -> dict[AgentID, dict]:
        """Returns one sub-environment's infos by agent, from ``[num_envs, num_agents, ...]`` arrays by name."""
        own = {name: values[index] for name, values in given.infos.items()}
        return {agent: {name: v[i] for name, v in own.items()} for i, agent in enumerate(self._agents)} if own else {}

    def _placed(self, error: EnvError, sub_env: SubEnvironment) -> EnvError:
        """Returns an error of the whole environment with the episode, step and seed of one sub-environment."""
        where = f"{sub_env}, whose seed is {self.reset_seed(sub_env)}"
        return EnvError(f"{sentence(error)} This happened in {where}. The seed of the run is {self.seed}.")

    def _ends_of(self, given: BatchedStep, ended: np.ndarray, over: np.ndarray) -> EpisodeEnds:
        partly = np.flatnonzero(ended.any(1) & ~over)
        if len(partly):
            sub_env = self.sub_envs[partly[0]]
            gone = [agent for agent, flag in zip(self._agents, ended[sub_env.index].tolist(), strict=True) if flag]
            raise_first(sub_env, [ended_alone(gone)])
        which = np.flatnonzero(over)
        terminated = given.terminations[which].ravel()
        last = tree_map(lambda leaf: leaf[which], given.observations)  # copies, as a reset may use the arrays again
        return EpisodeEnds(
            which.tolist(),
            [self.sub_envs[index].t for index in which.tolist()],
            self._calls.flat(last),
            terminated,
            given.truncations[which].ravel() & ~terminated,
            [self._info(given, index) for index in which.tolist()] if given.infos else [],
        )

    def _end_sub_envs(self, result: StepResult, given: BatchedStep, over: np.ndarray) -> None:
        """Resets the sub-environments that are over: now, or in ``reset_over`` if ``resets_late``."""
        assert result.ends is not None
        if self.resets_late:
            result.late = [(index, 0) for index in result.ends.indices]
            result.observations = self._calls.flat(given.observations)  # until they are reset
        else:
            self._reset_over(result, over)

    def reset_over(self, result: StepResult) -> None:
        """Resets the sub-environments that a step left at the end of their episodes, in one call."""
        over = np.zeros(len(self.sub_envs), bool)
        over[[index for index, _ in result.late]] = True
        self._reset_over(result, over)

    @without_collections()
    def _reset_over(self, result: StepResult, over: np.ndarray) -> None:
        sub_envs = [self.sub_envs[index] for index in np.flatnonzero(over).tolist()]
        result.observations = self._calls.flat(self._reset_sub_envs(sub_envs, over))

    def replay(
        self, sub_env: SubEnvironment, episode_number: int, steps: Iterable[list[Any]], wanted: Collection[int]
    ) -> tuple[dict[AgentID, Any], dict[int, dict[AgentID, dict]]]:
        """Always raises a CheckpointError: a sub-environment cannot be replayed without the others."""
        raise not_repeatable(sub_env)

    def close(self) -> None:
        """Closes the environment."""
        close_env(self.env, f"{type(self.env).__name__} (natively batched)")
        release(self.sub_envs)


class GymnasiumVectorEnv(BatchedVectorEnv):
    """The sub-environments of a Gymnasium VectorEnv, each of which is reset when its episode is over.

    Infos are dicts, and resets have infos too.

    Attributes:
        env: The VectorEnv, as a natively batched environment.
    """

    env: GymnasiumBatch

    def _uses(self) -> Iterable[tuple[SubEnvironment, Any]]:
        single = getattr(self.sub_envs[0].env.unwrapped, "envs", ())
        return [*super()._uses(), *zip(self.sub_envs, single, strict=False)]

    @property
    def envs(self) -> list[Any]:
        """The single environments if the VectorEnv has them, as a SyncVectorEnv does; else the VectorEnv for each."""
        own = getattr(self.env.env.unwrapped, "envs", None)
        return [self.env.env] * self.num_envs if own is None else list(own)

    def reset_all(self) -> list[tuple[dict[AgentID, Any], dict[AgentID, dict]]]:
        """Starts the next episode of every sub-environment, in one call."""
        first = super().reset_all()
        return [(own, self._first_infos(index)) for index, (own, _) in enumerate(first)]

    def _end_sub_envs(self, result: StepResult, given: BatchedStep, over: np.ndarray) -> None:
        assert result.ends is not None
        self._reset_over(result, over)
        for index in result.ends.indices:
            self._add_info(result, index, self._first_infos(index))

    def _add_info(self, result: StepResult, index: int, info: dict[AgentID, dict]) -> None:
        if info:
            result.infos.append((index, info))

    def _info(self, given: BatchedStep, index: int) -> dict[AgentID, dict]:
        info = given.infos[INFOS][index, 0] if given.infos else {}
        return {DEFAULT_AGENT_ID: info} if info else {}

    def _first_infos(self, index: int) -> dict[AgentID, dict]:
        info = self.env.reset_infos[index]
        return {DEFAULT_AGENT_ID: info} if info else {}


class NextStepVectorEnv(GymnasiumVectorEnv):
    """Sub-environments that are reset by the step after the one that ended their episode, and rest in that step.

    The step that resets a sub-environment belongs to none of its episodes: the runner sends it no action, and the
    result has nothing of it but the first observation of the new episode. If all sub-environments would rest, that
    step is made at once.
    """

    has_reset_steps = True

    def step(self, actions: Any) -> StepResult:
        """Steps all sub-environments; those whose episode ended rest in the next step.

        Args:
            actions: ``[B, ...]`` of the sub-environments that do not rest.
        """
        actions = np.asarray(actions)
        rested = np.array([sub_env.is_reset_step for sub_env in self.sub_envs])
        given = self._calls.step(_for_all(actions, rested))
        for sub_env in self.sub_envs:
            sub_env.t += not sub_env.is_reset_step
        ended, observations = given.over, given.observations
        self._check_rested(rested, ended)
        rewards, infos = given.rewards[~rested, 0], self._infos_of(given, ~(ended | rested))
        result = StepResult(rewards, [], infos)
        for index in np.flatnonzero(rested).tolist():
            self.sub_envs[index].is_reset_step = False
            result.events.append(Event(index, 0, begins=True))
            self._add_info(result, index, self._info(given, index))
        if ended.any():
            result.ends = self._ends_of(given, ended[:, None], ended)
            self._next_episodes(result.ends.indices)
            if ended.all():
                observations = self._begin_all(result, actions)
                ended = np.zeros_like(ended)
        result.observations = tree_map(lambda leaf: leaf[~ended, 0], observations)
        return result

    def _check_rested(self, rested: np.ndarray, ended: np.ndarray) -> None:
        wrong = np.flatnonzero(rested & ended)
        if len(wrong):
            raise EnvError(
                f"{self.sub_envs[wrong[0]]}: it is terminated or truncated again by the step that should only reset "
                f"it. The VectorEnv has AutoresetMode.NEXT_STEP, so this step must begin an episode whatever the "
                f"action is, and return False for both flags."
            )

    def _next_episodes(self, which: Collection[int]) -> None:
        for index in which:
            sub_env = self.sub_envs[index]
            sub_env.episode_number += 1
            sub_env.t = 0
            sub_env.is_reset_step = True

    def _begin_all(self, result: StepResult, actions: np.ndarray) -> Tree:
        """Resets all sub-environments, which have all ended, by a step, and returns their first observations."""
        rested = np.ones(len(self.sub_envs), bool)
        given = self._calls.step(_for_all(actions, rested))
        self._check_rested(rested, given.over)
        for sub_env in self.sub_envs:
            sub_env.is_reset_step = False
            self._add_info(result, sub_env.index, self._info(given, sub_env.index))
        return given.observations

    def _reset_sub_envs(self, sub_envs: Collection[SubEnvironment], mask: np.ndarray | None) -> Tree:
        for sub_env in sub_envs:
            sub_env.is_reset_step = False
        return super()._reset_sub_envs(sub_envs, mask)


def _for_all(actions: np.ndarray, rested: np.ndarray) -> np.ndarray:
    """Returns ``[num_envs, ...]`` actions: sub-environments that rest get some valid action, which has no effect."""
    if not rested.any():
        return actions
    everyone = np.repeat(actions[:1], len(rested), axis=0)
    if not rested.all():
        everyone[~rested] = actions
    return everyone
