"""Natively batched environments, and Gymnasium's VectorEnvs, as a runner steps them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from marl_connectors.environments.adapters.batched import BatchedCalls, BatchedEnv, BatchedStep
from marl_connectors.environments.adapters.gymnasium_vector import INFOS, NEXT_STEP, GymnasiumCopies
from marl_connectors.environments.validation.checks import ended_alone, raise_first
from marl_connectors.environments.vector.failures import Watched, close_env, sentence
from marl_connectors.environments.vector.garbage_pauses import without_collections
from marl_connectors.environments.vector.step_result import EpisodeEnds, Event, StepResult
from marl_connectors.environments.vector.sub_environment import EnvCopy, not_repeatable
from marl_connectors.environments.vector.sync import VectorEnv
from marl_connectors.errors import EnvError
from marl_connectors.seeding import derived_seeds
from marl_connectors.trees import tree_map
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID, Tree


class BatchedVectorEnv(VectorEnv):
    """Copies that live in one environment and step in one call.

    What ``step`` gives are arrays, not lists, unless agents have unlike spaces.

    Attributes:
        env: The environment.
    """

    is_batched = True

    def __init__(self, env: BatchedEnv, *, seed: int):
        """Takes the environment.

        Raises:
            EnvError: If it has no copies or agents.
        """
        super().__init__([env] * env.num_envs, seed=seed)
        self.env = env
        self._calls = BatchedCalls(env)
        self.is_batched = self._calls.alike  # else lists, of unlike arrays
        self._agents = self._calls.agents
        for copy in self.copies:
            copy.agents = self._agents
            copy.history.is_complete = False  # it cannot be replayed alone

    def reset_all(self) -> list[tuple[dict[AgentID, Any], dict[AgentID, dict]]]:
        """Starts the next episode of every copy, in one call."""
        observations = self._reset_copies(self.copies, None)
        return [(self._calls.of_copy(observations, copy.index), {}) for copy in self.copies]

    def reset(self, copy: EnvCopy) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts the copy's next episode."""
        mask = np.arange(len(self.copies)) == copy.index
        return self._calls.of_copy(self._reset_copies([copy], mask), copy.index), {}

    def _reset_copies(self, copies: Collection[EnvCopy], mask: np.ndarray | None) -> Tree:
        seeds: list[int | None] = [None] * len(self.copies)
        for copy in copies:
            copy.episode_number += 1
            copy.t = 0
        indices, numbers = np.array([(copy.index, copy.episode_number) for copy in copies]).T
        for index, seed in zip(
            indices.tolist(), derived_seeds(self.seed, "env", indices, numbers).tolist(), strict=True
        ):
            seeds[index] = seed  # as reset_seed gives it
        try:
            with Watched(lambda: f"{next(iter(copies))} and others: reset()"):
                return self._calls.reset(seeds, mask)
        except EnvError as error:
            raise self._placed(error, next(iter(copies))) from error.__cause__

    def step(self, actions: Any) -> StepResult:
        """Steps all copies, and resets those whose episode ended. Per copy: one addition, if nothing ends.

        Args:
            actions: ``[num_envs * num_agents, ...]``, or a list of as many where agents have unlike spaces.
        """
        try:
            given = self._calls.step(actions)
        except EnvError as error:
            raise self._placed(error, self.copies[0]) from error.__cause__
        for copy in self.copies:
            copy.t += 1
        ended, over = given.ended, given.over
        if not ended.any():
            result = StepResult(given.rewards.reshape(-1), self._calls.flat(given.observations))
        else:  # a reset may use the arrays again
            result = StepResult(given.rewards.flatten(), [], ends=self._ends_of(given, ended, over))
        result.infos = self._infos_of(given, ~over)
        if result.ends is not None:
            self._end_copies(result, given, over)
        return result

    def _infos_of(self, given: BatchedStep, mask: np.ndarray) -> list[tuple[int, dict[AgentID, dict]]]:
        if not given.infos:
            return []
        return [(index, info) for index in np.flatnonzero(mask).tolist() if (info := self._info(given, index))]

    def _info(self, given: BatchedStep, index: int) -> dict[AgentID, dict]:
        """Agent to info, of one copy in ``[num_envs, num_agents, ...]`` arrays by name."""
        own = {name: values[index] for name, values in given.infos.items()}
        return {agent: {name: v[i] for name, v in own.items()} for i, agent in enumerate(self._agents)} if own else {}

    def _placed(self, error: EnvError, copy: EnvCopy) -> EnvError:
        """An error of all copies that also says where one of them was."""
        where = f"{copy}, whose seed is {self.reset_seed(copy)}"
        return EnvError(f"{sentence(error)} That was at {where}; the run's seed is {self.seed}.")

    def _ends_of(self, given: BatchedStep, ended: np.ndarray, over: np.ndarray) -> EpisodeEnds:
        partly = np.flatnonzero(ended.any(1) & ~over)
        if len(partly):
            copy = self.copies[partly[0]]
            gone = [agent for agent, flag in zip(self._agents, ended[copy.index].tolist(), strict=True) if flag]
            raise_first(copy, [ended_alone(gone)])
        which = np.flatnonzero(over)
        terminated = given.terminations[which].ravel()
        last = tree_map(lambda leaf: leaf[which], given.observations)  # copies, as a reset may use the arrays again
        return EpisodeEnds(
            which.tolist(),
            [self.copies[index].t for index in which.tolist()],
            self._calls.flat(last),
            terminated,
            given.truncations[which].ravel() & ~terminated,
            [self._info(given, index) for index in which.tolist()] if given.infos else [],
        )

    def _end_copies(self, result: StepResult, given: BatchedStep, over: np.ndarray) -> None:
        """Resets the copies that are over, now or when somebody has looked at them."""
        assert result.ends is not None
        if self.resets_late:
            result.late = [(index, 0) for index in result.ends.indices]
            result.observations = self._calls.flat(given.observations)  # until they are reset
        else:
            self._reset_over(result, over)

    def reset_over(self, result: StepResult) -> None:
        """Resets the copies that a step left at the end of their episodes, in one call."""
        over = np.zeros(len(self.copies), bool)
        over[[index for index, _ in result.late]] = True
        self._reset_over(result, over)

    @without_collections
    def _reset_over(self, result: StepResult, over: np.ndarray) -> None:
        copies = [self.copies[index] for index in np.flatnonzero(over).tolist()]
        result.observations = self._calls.flat(self._reset_copies(copies, over))

    def replay(
        self, copy: EnvCopy, episode_number: int, steps: Iterable[list[Any]], wanted: Collection[int]
    ) -> tuple[dict[AgentID, Any], dict[int, dict[AgentID, dict]]]:
        """A copy cannot be replayed without the others."""
        raise not_repeatable(copy)

    def close(self) -> None:
        """Closes the environment."""
        close_env(self.env, f"{type(self.env).__name__} (natively batched)")


def gymnasium_vector_env(env: GymnasiumCopies, *, seed: int) -> GymnasiumVectorEnv:
    """The copies, with rests where the VectorEnv resets copies in steps of their own."""
    rests = env.autoreset_mode == NEXT_STEP and not env.resets_alone
    return (NextStepVectorEnv if rests else GymnasiumVectorEnv)(env, seed=seed)


class GymnasiumVectorEnv(BatchedVectorEnv):
    """Copies whose infos are dicts, of resets too, and that are reset when their episode is over.

    Attributes:
        env: The VectorEnv, as a natively batched environment.
    """

    env: GymnasiumCopies

    @property
    def envs(self) -> list[Any]:
        """The copies, where the VectorEnv has them at hand (as a SyncVectorEnv); else the VectorEnv for each."""
        own = getattr(self.env.env.unwrapped, "envs", None)
        return [self.env.env] * self.num_envs if own is None else list(own)

    def reset_all(self) -> list[tuple[dict[AgentID, Any], dict[AgentID, dict]]]:
        """Starts the next episode of every copy, in one call."""
        first = super().reset_all()
        return [(own, self._first_infos(index)) for index, (own, _) in enumerate(first)]

    def _end_copies(self, result: StepResult, given: BatchedStep, over: np.ndarray) -> None:
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
    """Copies that begin anew in the step after the one that ended their episode, and rest meanwhile.

    That step is none of their episodes': whoever rests gets no action, gives nothing, and acts again once its first
    observation is there. Where all would rest, that step is taken at once.
    """

    has_rests = True

    def step(self, actions: Any) -> StepResult:
        """Steps all copies; those whose episode ended rest in the next step.

        Args:
            actions: ``[B, ...]`` of the copies that do not rest.
        """
        actions = np.asarray(actions)
        rested = np.array([copy.rests for copy in self.copies])
        given = self._calls.step(_for_all(actions, rested))
        for copy in self.copies:
            copy.t += not copy.rests
        ended, observations = given.over, given.observations
        self._check_rested(rested, ended)
        rewards, infos = given.rewards[~rested, 0], self._infos_of(given, ~(ended | rested))
        result = StepResult(rewards, [], infos)
        for index in np.flatnonzero(rested).tolist():
            self.copies[index].rests = False
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
                f"{self.copies[wrong[0]]}: it is terminated or truncated again by the step that was to reset it. The "
                f"VectorEnv says AutoresetMode.NEXT_STEP: such a step begins an episode, whatever the action, and "
                f"both flags are False."
            )

    def _next_episodes(self, which: Collection[int]) -> None:
        for index in which:
            copy = self.copies[index]
            copy.episode_number += 1
            copy.t = 0
            copy.rests = True

    def _begin_all(self, result: StepResult, actions: np.ndarray) -> Tree:
        """Resets all copies, which have all ended; their first observations."""
        rested = np.ones(len(self.copies), bool)
        given = self._calls.step(_for_all(actions, rested))
        self._check_rested(rested, given.over)
        for copy in self.copies:
            copy.rests = False
            self._add_info(result, copy.index, self._info(given, copy.index))
        return given.observations

    def _reset_copies(self, copies: Collection[EnvCopy], mask: np.ndarray | None) -> Tree:
        for copy in copies:
            copy.rests = False
        return super()._reset_copies(copies, mask)


def _for_all(actions: np.ndarray, rested: np.ndarray) -> np.ndarray:
    """``[num_envs, ...]``: those who rest get any action that is allowed, as it has no effect."""
    if not rested.any():
        return actions
    everyone = np.repeat(actions[:1], len(rested), axis=0)
    if not rested.all():
        everyone[~rested] = actions
    return everyone
