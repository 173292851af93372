"""Several copies of a turn-based environment, each of which goes on by one turn in a step."""

from __future__ import annotations

import copy as copying
from collections.abc import Sequence
from typing import Any

from marl_connectors.environments.env_copy import EnvCopy, copied_infos, finite_reward
from marl_connectors.environments.env_failures import ENV_ERRORS
from marl_connectors.environments.step_result import Event, StepResult
from marl_connectors.environments.turn_based_env import TurnBasedEnv
from marl_connectors.environments.vector_env import VectorEnv, add_observed
from marl_connectors.errors import EnvError, MarlConnectorsError
from marl_connectors.typing import AgentID


class TurnBasedVectorEnv(VectorEnv):
    """Copies of one TurnBasedEnv. A copy's ``agents`` are those that act next: one of them, or nobody."""

    turn_based = True

    def __init__(self, envs: Sequence[TurnBasedEnv], **settings: Any):
        """Takes the copies; see VectorEnv."""
        super().__init__(envs, **settings)
        self._paid_by_reset: dict[int, dict[AgentID, float]] = {}
        self._known: dict[int, set[AgentID]] = {}  # by copy, who has had a turn and has not ended

    def _begin(self, copy: EnvCopy) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts the copy's next episode: observation and info of the agent that acts first."""
        try:
            observations, infos = self._reset(copy)
        except EnvError as error:
            if str(error).startswith(str(copy)):
                raise
            raise self._named(copy, error) from error
        copy.agents = list(observations)
        self._known[copy.index] = set(observations)
        paid = copy.env.take_untold().items()
        self._paid_by_reset[copy.index] = {agent: finite_reward(copy, agent, reward) for agent, reward in paid}
        if self._garbage is not None:
            self._garbage.check(copy, observations, observations, {})
        if self._states is not None:
            self._states.note(copy)
        return observations, copied_infos(copy, copy.agents, infos)

    def _step(self, copies: Sequence[EnvCopy], actions: list[Any]) -> StepResult:
        result, end = StepResult([], [], told=[]), 0
        for copy in copies:
            begin, end = end, end + len(copy.agents)
            t, self.at[0] = copy.t, copy.index
            try:
                self._take_turn(copy, actions[begin:end], result)
            except ENV_ERRORS as error:
                self._replace(copy, t, error, result)
        return result

    def _take_turn(self, copy: EnvCopy, chosen: list[Any], result: StepResult) -> None:
        """A hot path. Nothing is added to the result before all is checked."""
        copy.newest_actions.append(chosen)
        try:
            given = copy.step(dict(zip(copy.agents, chosen, strict=True)))
        except MarlConnectorsError as error:
            raise self._named(copy, error) from error
        except ENV_ERRORS as error:
            raise self._step_failed(copy, chosen, error) from error
        copy.t += 1
        observations, rewards, terminations, truncations, infos = given
        terminations.pop("__all__", None)
        truncations.pop("__all__", None)
        paid = [finite_reward(copy, agent, reward) for agent, reward in rewards.items()]
        infos = copied_infos(copy, terminations, infos)
        copy.agents = [a for a in observations if not (terminations.get(a) or truncations.get(a))]
        if self._garbage is not None:
            self._garbage.check(copy, observations, observations, {})
        if self._states is not None:
            self._states.note(copy)
        result.told += [(copy.index, agent) for agent in rewards]  # type: ignore[operator]
        result.rewards += paid
        known, is_over = self._known[copy.index], not copy.env.agents
        uncredited = self._paid_by_reset.pop(copy.index, None) or {}
        if is_over or uncredited or len(terminations) > len(copy.agents) or not known.issuperset(copy.agents):
            ended = [agent for agent in terminations if agent not in copy.agents]
            known.difference_update(ended)
            known.update(copy.agents)
            last = {agent: observations[agent] for agent in ended if agent in observations}
            own = {agent: infos[agent] for agent in ended if agent in infos}
            event = Event(copy.index, copy.t, last, terminations, truncations, own, uncredited, is_over)
            event.state = copy.state
            result.events.append(event)
        if is_over:
            self._end(copy, result)
        else:
            add_observed(result, copy, observations, infos)

    def _named(self, copy: EnvCopy, error: Exception) -> EnvError:
        return EnvError(f"{self._who(copy)}: {str(error).removeprefix(f'{copy.env.where}: ')}")

    def _newest(self, copy: EnvCopy, newest: dict[AgentID, Any], result: StepResult) -> dict[AgentID, Any]:
        """Of every agent that has had a turn and has not ended, as the environment's next step cannot change it."""
        known = self._known[copy.index]
        kept = {agent: observation for agent, observation in newest.items() if agent in known}
        acting = zip(copy.agents, result.observations, strict=True)
        return kept | {agent: copying.deepcopy(observation) for agent, observation in acting}
