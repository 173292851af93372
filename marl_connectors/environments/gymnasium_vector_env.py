"""The copies of a Gymnasium VectorEnv, as a runner steps them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from marl_connectors.environments.batched_calls import BatchedStep
from marl_connectors.environments.batched_vector_env import BatchedVectorEnv
from marl_connectors.environments.env_copy import EnvCopy
from marl_connectors.environments.gymnasium_copies import INFOS, NEXT_STEP, GymnasiumCopies
from marl_connectors.environments.step_result import Event, StepResult
from marl_connectors.errors import EnvError
from marl_connectors.trees import tree_map
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID, Tree


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

    def step(self, actions: Any) -> StepResult:
        """Steps all copies, and resets those whose episode ended.

        Args:
            actions: ``[num_envs, ...]``.
        """
        given = self._calls.step(np.asarray(actions))
        for copy in self.copies:
            copy.t += 1
        over = given.over
        result = StepResult(given.rewards.flatten(), [], self._infos_of(given, ~over))
        if not over.any():
            result.observations = self._calls.flat(given.observations)
            return result
        result.ends = self._ends_of(given, over[:, None], over)
        self._reset_over(result, over)
        for index in result.ends.indices:
            self._add_info(result, index, self._first_infos(index))
        return result

    def _add_info(self, result: StepResult, index: int, info: dict[AgentID, dict]) -> None:
        if info:
            result.infos.append((index, info))

    def _infos_of(self, given: BatchedStep, mask: np.ndarray) -> list[tuple[int, dict[AgentID, dict]]]:
        if not given.infos:
            return []
        return [(index, info) for index in np.flatnonzero(mask).tolist() if (info := self._info(given, index))]

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
