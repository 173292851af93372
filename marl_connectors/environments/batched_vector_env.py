"""The copies of a natively batched environment."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from marl_connectors.environments.batched_calls import BatchedCalls, BatchedStep
from marl_connectors.environments.batched_env import BatchedEnv
from marl_connectors.environments.env_copy import EnvCopy, not_repeatable
from marl_connectors.environments.env_failures import close_env, sentence
from marl_connectors.environments.garbage_pauses import without_collections
from marl_connectors.environments.step_result import EpisodeEnds, StepResult
from marl_connectors.environments.time_limits import Watched
from marl_connectors.environments.vector_env import VectorEnv
from marl_connectors.errors import EnvError
from marl_connectors.seeding import derived_seeds
from marl_connectors.trees import tree_map
from marl_connectors.typing import AgentID, Tree


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
        if given.infos:
            which = np.flatnonzero(~over).tolist()
            result.infos = [(index, info) for index in which if (info := self._info(given, index))]
        if result.ends is not None:
            self._end_copies(result, given, over)
        return result

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
            raise EnvError(
                f"{copy}: agents {gone} ended before the others. In a natively batched environment all agents of a "
                f"copy end in one step; make it a PettingZoo environment if they do not."
            )
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
