"""Several copies of a turn-based environment, each of which goes on by one turn in a step."""

from __future__ import annotations

import copy as copying
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_connectors.environments.env_copy import (
    EnvCopy,
    Transition,
    another_episode,
    copied_infos,
    finite_reward,
    not_repeatable,
)
from marl_connectors.environments.env_failures import ENV_ERRORS
from marl_connectors.environments.turn_based_env import TurnBasedEnv
from marl_connectors.environments.vector_env import VectorEnv
from marl_connectors.errors import EnvError, MarlConnectorsError
from marl_connectors.typing import AgentID


@dataclass(slots=True)
class Turn(Transition):
    """What one turn in one copy led to: told are the agent that acts next, and those that have ended.

    Attributes:
        rewards: By agent that is told anything, what it was paid since it acted, or since the reset.
    """

    rewards: dict[AgentID, float] = field(default_factory=dict)


class TurnBasedVectorEnv(VectorEnv):
    """Copies of one TurnBasedEnv. A copy's ``agents`` are those that act next: one of them, or nobody."""

    turn_based = True

    def __init__(self, envs: Sequence[TurnBasedEnv], **settings: Any):
        """Takes the copies; see VectorEnv."""
        super().__init__(envs, **settings)
        self._paid_by_reset: dict[int, dict[AgentID, float]] = {}

    def _begin(self, copy: EnvCopy) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts the copy's next episode: observation and info of the agent that acts first."""
        try:
            observations, infos = self._reset(copy)
        except EnvError as error:
            if str(error).startswith(str(copy)):
                raise
            raise self._named(copy, error) from error
        copy.agents = list(observations)
        paid = copy.env.take_untold().items()
        self._paid_by_reset[copy.index] = {agent: finite_reward(copy, agent, reward) for agent, reward in paid}
        if self._garbage is not None:
            self._garbage.check(copy, observations, observations, {})
        if self._states is not None:
            self._states.note(copy)
        return observations, copied_infos(copy, copy.agents, infos)

    def take_turns(self, actions: list[Any]) -> list[Turn]:
        """Lets all copies go on, and resets those whose episode ended.

        Args:
            actions: One for each agent, in the order of ``copies`` and their ``agents``.
        """
        turns, end = [], 0
        for copy in self.copies:
            begin, end = end, end + len(copy.agents)
            t, self.at[0] = copy.t, copy.index
            try:
                turns.append(self._take_turn(copy, actions[begin:end]))
            except ENV_ERRORS as error:
                self._failed(copy, error)
                turns.append(another_episode(Turn, copy, t, *self._begin_anew(copy)))
        return turns

    def _take_turn(self, copy: EnvCopy, chosen: list[Any]) -> Turn:
        copy.newest_actions.append(chosen)
        try:
            told = copy.step(dict(zip(copy.agents, chosen, strict=True)))
        except MarlConnectorsError as error:
            raise self._named(copy, error) from error
        except ENV_ERRORS as error:
            raise self._step_failed(copy, chosen, error) from error
        copy.t += 1
        observations, rewards, terminations, truncations, infos = told
        terminations.pop("__all__", None)
        truncations.pop("__all__", None)
        numbers = {agent: finite_reward(copy, agent, reward) for agent, reward in rewards.items()}
        early = self._paid_by_reset.pop(copy.index, {})
        infos = copied_infos(copy, terminations, infos)
        turn = Turn(copy.index, copy.t, observations, terminations, truncations, infos, early, rewards=numbers)
        copy.agents = [a for a in observations if not (terminations.get(a) or truncations.get(a))]
        if self._garbage is not None:
            self._garbage.check(copy, observations, observations, {})
        if self._states is not None:
            self._states.note(copy)
            turn.state = copy.state
        if not copy.env.agents:
            turn.is_over = True
            copy.num_failures = 0
            if self.resets_late:
                turn.awaits_reset = True
            else:
                turn.first_observations, turn.first_infos = self.reset(copy)
        return turn

    def _named(self, copy: EnvCopy, error: Exception) -> EnvError:
        return EnvError(f"{self._who(copy)}: {str(error).removeprefix(f'{copy.env.where}: ')}")

    def replay(
        self, copy: EnvCopy, episode_number: int, steps: Iterable[list[Any]], wanted: Collection[int]
    ) -> tuple[dict[AgentID, Any], dict[int, dict[AgentID, dict]]]:
        """As ``VectorEnv.replay``; the newest observation of every agent that has had a turn and has not ended."""
        copy.episode_number = episode_number - 1
        observations, infos = self._begin(copy)
        newest = _copied(observations)
        infos_at = {0: infos} if 0 in wanted else {}
        for actions in steps:
            turn = self._take_turn(copy, actions) if len(actions) == len(copy.agents) else None
            if turn is None or turn.is_over:
                raise not_repeatable(copy)
            for agent in [a for a in newest if turn.terminations.get(a) or turn.truncations.get(a)]:
                del newest[agent]
            newest.update(_copied({agent: turn.observations[agent] for agent in copy.agents}))
            if copy.t in wanted:
                infos_at[copy.t] = turn.infos
        return newest, infos_at


def _copied(observations: dict[AgentID, Any]) -> dict[AgentID, Any]:
    """Observations that the environment's next step cannot change."""
    return {agent: copying.deepcopy(observation) for agent, observation in observations.items()}
