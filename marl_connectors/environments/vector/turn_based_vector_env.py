"""Turn-based sub-environments: each turn becomes a ``StepResult`` in which few agents get rewards and act next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors.environments.adapters.multi_agent_env import AgentsWait
from marl_connectors.environments.adapters.turn_based import TurnBasedEnv
from marl_connectors.environments.rules.env_failures import ENV_ERRORS
from marl_connectors.environments.rules.step_result import Event, StepResult
from marl_connectors.environments.vector.sub_environment import CALLED_ENV, SubEnvironment, copied_infos, finite_reward
from marl_connectors.environments.vector.vector_env import VectorEnv, add_observed, current_state
from marl_connectors.errors import EnvError, MarlConnectorsError
from marl_connectors.trees import copied
from marl_connectors.typing import AgentID


class TurnBasedVectorEnv(VectorEnv):
    """Sub-environments in which agents wait. Their ``agents`` are those that act next, which may be none."""

    turn_based = True
    max_idle_steps = 10_000
    """The number of successive steps of a sub-environment in which no agent can act, after which it is an error."""

    def __init__(self, envs: Sequence[AgentsWait], **settings: Any):
        """Creates the sub-environments' records; see VectorEnv."""
        super().__init__(envs, **settings)
        self.one_at_a_time = isinstance(envs[0], TurnBasedEnv)
        self._reset_rewards: dict[int, dict[AgentID, float]] = {}
        self._idle_steps: dict[int, int] = {}
        self._known: dict[int, set[AgentID]] = {}  # the agents that have had a turn and have not ended

    def _reset(self, sub_env: SubEnvironment) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        try:
            return super()._reset(sub_env)
        except EnvError as error:
            if str(error).startswith(str(sub_env)):
                raise
            raise self._named(sub_env, error) from error

    def _take_agents(self, sub_env: SubEnvironment, observations: dict[AgentID, Any]) -> None:
        sub_env.agents = list(observations)
        self._known[sub_env.index], self._idle_steps[sub_env.index] = set(observations), 0
        given = sub_env.env.take_reset_rewards().items()
        self._reset_rewards[sub_env.index] = {agent: finite_reward(sub_env, agent, reward) for agent, reward in given}

    def _step(self, sub_envs: Sequence[SubEnvironment], actions: list[Any]) -> StepResult:
        result, end = StepResult([], [], rewarded=[]), 0
        for sub_env in sub_envs:
            begin, end = end, end + len(sub_env.agents)
            t, self.current_call[CALLED_ENV] = sub_env.t, sub_env.index
            try:
                self._take_turn(sub_env, actions[begin:end], result)
            except ENV_ERRORS as error:
                self._replace(sub_env, t, error, result)
        return result

    def _take_turn(self, sub_env: SubEnvironment, chosen: list[Any], result: StepResult) -> None:
        """Steps one sub-environment. Nothing is added to the result before everything is checked."""
        sub_env.newest_actions.append(chosen)
        try:
            given = sub_env.step(dict(zip(sub_env.agents, chosen, strict=True)))
        except MarlConnectorsError as error:
            raise self._named(sub_env, error) from error
        except ENV_ERRORS as error:
            raise self._step_failed(sub_env, chosen, error) from error
        sub_env.t += 1
        observations, rewards, terminations, truncations, infos = given
        terminations.pop("__all__", None)
        truncations.pop("__all__", None)
        finite_rewards = [finite_reward(sub_env, agent, reward) for agent, reward in rewards.items()]
        infos = copied_infos(sub_env, terminations, infos) if any(infos.values()) else {}
        sub_env.agents = [a for a in observations if not (terminations.get(a) or truncations.get(a))]
        is_over = not sub_env.env.agents
        self._check_idle(sub_env, is_idle=not (sub_env.agents or is_over))
        if self._data_check is not None:
            self._data_check.check(sub_env, observations, observations, {})
        if self._state_space is not None:
            sub_env.state = current_state(sub_env, self._state_space)
        result.rewarded += [(sub_env.index, agent) for agent in rewards]  # type: ignore[operator]
        result.rewards += finite_rewards
        known = self._known[sub_env.index]
        uncredited = self._reset_rewards.pop(sub_env.index, None) or {}
        if is_over or uncredited or len(terminations) > len(sub_env.agents) or not known.issuperset(sub_env.agents):
            ended = [agent for agent in terminations if agent not in sub_env.agents]
            known.difference_update(ended)
            known.update(sub_env.agents)
            # The reset may write to the same arrays that this step returned.
            last = {agent: copied(observations[agent]) for agent in ended if agent in observations}
            own = {agent: infos[agent] for agent in ended if agent in infos}
            event = Event(sub_env.index, sub_env.t, last, terminations, truncations, own, uncredited, is_over)
            event.state = sub_env.state
            result.events.append(event)
        if is_over:
            self._end(sub_env, result)
        else:
            add_observed(result, sub_env, observations, infos)

    def _check_idle(self, sub_env: SubEnvironment, is_idle: bool) -> None:
        """Raises an EnvError if no agent can act in this step, nor could in many before it."""
        idle = self._idle_steps[sub_env.index] = is_idle * (self._idle_steps[sub_env.index] + 1)
        if idle >= self.max_idle_steps:
            env = type(sub_env.env.env).__name__
            raise EnvError(
                f"{self._who(sub_env)}: no agent of {env} could act in the last {idle:,} steps, although the episode "
                f"continues. Return the observation of an agent that acts next, or end the episode, in RLlib's API "
                f'with terminateds["__all__"] = True.'
            )

    def _named(self, sub_env: SubEnvironment, error: Exception) -> EnvError:
        return EnvError(f"{self._who(sub_env)}: {str(error).removeprefix(f'{sub_env.env.where}: ')}")

    def _newest(self, sub_env: SubEnvironment, newest: dict[AgentID, Any], result: StepResult) -> dict[AgentID, Any]:
        """Returns copies of the newest observations of every agent that has had a turn and has not ended."""
        known = self._known[sub_env.index]
        kept = {agent: observation for agent, observation in newest.items() if agent in known}
        acting = zip(sub_env.agents, result.observations, strict=True)
        return kept | {agent: copied(observation) for agent, observation in acting}
