"""The copies of a Gymnasium VectorEnv, as a runner steps them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from marl_connectors.environments.batched_calls import BatchedStep
from marl_connectors.environments.batched_vector_env import BatchedVectorEnv
from marl_connectors.environments.env_copy import EnvCopy, Transition, VectorStep
from marl_connectors.environments.gymnasium_copies import INFOS, NEXT_STEP, GymnasiumCopies
from marl_connectors.errors import EnvError
from marl_connectors.trees import tree_map
from marl_connectors.typing import DEFAULT_AGENT_ID, AgentID, Tree


def gymnasium_vector_env(env: GymnasiumCopies, *, seed: int) -> GymnasiumVectorEnv:
    """The copies, with rests where the VectorEnv resets copies in steps of their own."""
    rests = env.autoreset_mode == NEXT_STEP and not env.resets_alone
    return (NextStepVectorEnv if rests else GymnasiumVectorEnv)(env, seed=seed)


class GymnasiumVectorEnv(BatchedVectorEnv):
    """A BatchedVectorEnv whose resets have infos.

    Attributes:
        env: The VectorEnv, as a natively batched environment.
    """

    env: GymnasiumCopies

    def reset_all(self) -> list[tuple[dict[AgentID, Any], dict[AgentID, dict]]]:
        """Starts the next episode of every copy, in one call."""
        first = super().reset_all()
        return [(own, self._first_infos(index)) for index, (own, _) in enumerate(first)]

    def step(self, actions: Any) -> VectorStep:
        """Steps all copies, and resets those whose episode ended; see BatchedVectorEnv."""
        step = super().step(actions)
        for transition in step.transitions:
            transition.first_infos = self._first_infos(transition.index)
        step.infos = [(index, infos) for index, infos in step.infos if infos]
        return step

    def _first_infos(self, index: int) -> dict[AgentID, dict]:
        info = self.env.reset_infos[index]
        return {DEFAULT_AGENT_ID: info} if info else {}

    def _infos(self, given: BatchedStep, index: int) -> dict[AgentID, dict]:
        info = given.infos[INFOS][index, 0] if given.infos else {}
        return {DEFAULT_AGENT_ID: info} if info else {}


class NextStepVectorEnv(GymnasiumVectorEnv):
    """Copies that begin anew in the step after the one that ended their episode, and rest meanwhile.

    That step is none of their episodes': whoever rests gets no action, gives nothing, and acts again once its first
    observation is there. Where all would rest, that step is taken at once.
    """

    has_rests = True

    def step(self, actions: Any) -> VectorStep:
        """Steps all copies; those whose episode ended rest in the next step.

        Args:
            actions: ``[B, ...]`` of the copies that do not rest.
        """
        copies = self.copies
        rested = np.array([copy.rests for copy in copies])
        given = self._calls.step(_for_all(np.asarray(actions), rested))
        for copy in copies:
            copy.t += not copy.rests
        ended = given.over
        self._check_rested(rested, ended)
        result = VectorStep(given.rewards[~rested, 0], [], [], [])  # type: ignore[arg-type]
        result.transitions = [self._begins(index, given) for index in np.flatnonzero(rested).tolist()]
        if given.infos:
            going_on = np.flatnonzero(~(ended | rested)).tolist()
            result.infos = [(index, infos) for index in going_on if (infos := self._infos(given, index))]
        observations = given.observations
        if ended.any():
            result.transitions += self._end_episodes(given, ended)
            if ended.all():
                observations = self._begin_all(result, np.asarray(actions))
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

    def _begins(self, index: int, given: BatchedStep) -> Transition:
        self.copies[index].rests = False
        return Transition(index, 0, {}, {}, {}, {}, {}, begins=True, first_infos=self._infos(given, index))

    def _end_episodes(self, given: BatchedStep, ended: np.ndarray) -> list[Transition]:
        which = np.flatnonzero(ended).tolist()
        last = tree_map(lambda leaf: leaf[which], given.observations)  # a copy
        transitions = [
            Transition(
                index,
                self.copies[index].t,
                self._calls.of_copy(last, place),
                {DEFAULT_AGENT_ID: bool(given.terminations[index, 0])},
                {DEFAULT_AGENT_ID: bool(given.truncations[index, 0])},
                self._infos(given, index),
                {},
                is_over=True,
            )
            for place, index in enumerate(which)
        ]
        self._next_episodes(which)
        return transitions

    def _next_episodes(self, which: Collection[int]) -> None:
        for index in which:
            copy = self.copies[index]
            copy.episode_number += 1
            copy.t = 0
            copy.rests = True

    def _begin_all(self, result: VectorStep, actions: np.ndarray) -> Tree:
        """Resets all copies, which have all ended; their first observations."""
        rested = np.ones(len(self.copies), bool)
        given = self._calls.step(_for_all(actions, rested))
        self._check_rested(rested, given.over)
        for transition in result.transitions:
            self.copies[transition.index].rests = False
            transition.first_infos = self._infos(given, transition.index)
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
