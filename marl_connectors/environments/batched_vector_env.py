"""The copies of a natively batched environment."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from marl_connectors.environments.batched_calls import BatchedCalls, BatchedStep
from marl_connectors.environments.batched_env import BatchedEnv
from marl_connectors.environments.env_copy import EnvCopy, Transition, VectorStep
from marl_connectors.environments.garbage_pauses import without_collections
from marl_connectors.environments.vector_env import VectorEnv, not_repeatable
from marl_connectors.errors import EnvError
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
            seeds[copy.index] = self.reset_seed(copy)
        return self._calls.reset(seeds, mask)

    def step(self, actions: Any) -> VectorStep:
        """Steps all copies, and resets those whose episode ended. Per copy: one addition, if nothing ends.

        Args:
            actions: ``[num_envs * num_agents, ...]``, or a list of as many where agents have unlike spaces.
        """
        given = self._calls.step(actions)
        for copy in self.copies:
            copy.t += 1
        ended, over = given.ended, given.over
        is_any_over = bool(ended.any())
        # A reset may use the arrays again.
        result = VectorStep(given.rewards.flatten() if is_any_over else given.rewards.reshape(-1), [], [], [])  # type: ignore[arg-type]
        if given.infos:
            result.infos.extend((index, self._infos(given, index)) for index in np.flatnonzero(~over).tolist())
        observations = self._end(result, given, ended, over) if is_any_over else given.observations
        result.observations = self._calls.flat(observations)
        return result

    @without_collections
    def _end(self, result: VectorStep, given: BatchedStep, ended: np.ndarray, over: np.ndarray) -> Tree:
        """Notes which copies are over, and resets those; the observations from which all copies go on."""
        partly = np.flatnonzero(ended.any(1) & ~over)
        if len(partly):
            copy = self.copies[partly[0]]
            gone = [agent for agent, flag in zip(self._agents, ended[copy.index].tolist(), strict=True) if flag]
            raise EnvError(
                f"{copy}: agents {gone} ended before the others. In a natively batched environment all agents of a "
                f"copy end in one step; make it a PettingZoo environment if they do not."
            )
        which = np.flatnonzero(over)
        last = tree_map(lambda leaf: leaf[which], given.observations)  # a copy
        terminations, truncations = given.terminations[which].tolist(), given.truncations[which].tolist()
        for place, index in enumerate(which.tolist()):
            transition = Transition(
                index,
                self.copies[index].t,
                self._calls.of_copy(last, place),
                dict(zip(self._agents, terminations[place], strict=True)),
                dict(zip(self._agents, truncations[place], strict=True)),
                self._infos(given, index),
                {},
                is_over=True,
            )
            result.transitions.append(transition)
        if self.resets_late:
            for transition in result.transitions:
                transition.awaits_reset = True
                result.late.append((0, transition))
            return last  # until they are reset
        return self._reset_copies([self.copies[transition.index] for transition in result.transitions], over)

    def reset_over(self, step: VectorStep) -> None:
        """Resets the copies that a step left at the end of their episodes, in one call."""
        copies = [self.copies[transition.index] for _, transition in step.late]
        mask = np.zeros(len(self.copies), bool)
        for _, transition in step.late:
            mask[transition.index] = True
            transition.awaits_reset = False
        step.observations = self._calls.flat(self._reset_copies(copies, mask))

    def _infos(self, given: BatchedStep, index: int) -> dict[AgentID, dict]:
        if not given.infos:
            return {}
        own = {name: values[index] for name, values in given.infos.items()}
        return {agent: {name: v[i] for name, v in own.items()} for i, agent in enumerate(self._agents)}

    def replay(
        self, copy: EnvCopy, episode_number: int, steps: Iterable[list[Any]], wanted: Collection[int]
    ) -> tuple[dict[AgentID, Any], dict[int, dict[AgentID, dict]]]:
        """A copy cannot be replayed without the others."""
        raise not_repeatable(copy)

    def close(self) -> None:
        """Closes the environment."""
        self.env.close()
