"""Sub-environments that are stepped one after another in this process."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.environments.adapters.env_adapter import user_env
from marl_connectors.environments.rules import checks
from marl_connectors.environments.rules.env_failures import (
    CLOSE_TIMEOUT_S,
    ENV_ERRORS,
    MOMENT_S,
    EnvFailure,
    EnvRestarts,
    Hang,
    Watched,
    alarm,
    close_env,
    sentence,
)
from marl_connectors.environments.rules.step_result import EpisodeEnds, Event, StepResult, joined_ends, joined_states
from marl_connectors.environments.vector.action_history import ActionHistory
from marl_connectors.environments.vector.envs_in_use import claim, release
from marl_connectors.environments.vector.sub_environment import (
    CALL,
    CALLED_ENV,
    EnvCall,
    InvalidDataCheck,
    SubEnvironment,
    copied_infos,
    not_repeatable,
    uncredited_rewards,
)
from marl_connectors.errors import EnvError, MarlConnectorsError, counted, describe_error
from marl_connectors.seeding import episode_seed
from marl_connectors.trees import copied, leaves
from marl_connectors.typing import AgentID, Tree

_NOTHING: Any = object()


class VectorEnv:
    """Sub-environments of one kind.

    Every reset is seeded by (run seed, number of the sub-environment, episode), so it can be replayed.

    Attributes:
        sub_envs: The sub-environments.
        seed: The run's seed.
        current_call: Four numbers, in an array where processes share them: the index of the sub-environment that is
            being called, the index of the one that was reset last, the number of its episode, and the call as an
            ``EnvCall``. The first one is -1 once all sub-environments are closed.
        failures: The failures of sub-environments that continued with another episode, since ``take_failures``.
        turn_based: Whether an agent that has acted may have to wait before it observes again.
        one_at_a_time: Whether at most one agent of a sub-environment acts in a step.
        is_batched: Whether actions, rewards and observations are arrays for all sub-environments.
        has_reset_steps: Whether there are steps in which some sub-environments do not act.
        close_timeout_s: How long closing all sub-environments may take, see ``close_env``.
        look_every: Every so many steps ``env.agents`` is read, even if nothing in a step's dicts says that the agents
            have changed.
        resets_late: Whether sub-environments whose episode ended wait for ``reset_over``, where that is possible.
    """

    turn_based = False
    one_at_a_time = False
    is_batched = False
    has_reset_steps = False
    look_every = 16
    resets_late = False
    close_timeout_s: float | None = CLOSE_TIMEOUT_S

    def __init__(
        self,
        envs: Sequence[Any],
        *,
        seed: int,
        first_index: int = 0,
        first_number: int | None = None,
        restarts: EnvRestarts | None = None,
        state_space: Space | None = None,
        make_env: Callable[[], Any] | None = None,
    ):
        """Creates the sub-environments' records; nothing is reset yet.

        Args:
            envs: One environment for each sub-environment.
            seed: The run's seed.
            first_index: The index of the first of these sub-environments among those of the env runner.
            first_number: The number of the first of these sub-environments among all sub-environments of the run. It
                determines their seeds. None if it is ``first_index``.
            restarts: How to continue after failures; None to raise an error.
            state_space: The space of the environments' ``state()`` if states are used; else None.
            make_env: What made the environments, for messages and for others in their place; None if it is not known.
                Its ``reset_options``, if it has any, are the ``options`` of every reset.

        Raises:
            EnvError: If two sub-environments of this process have the same environment.
        """
        offset = 0 if first_number is None else first_number - first_index
        self.sub_envs = [SubEnvironment(env, index, index + offset) for index, env in enumerate(envs, first_index)]
        self.seed = seed
        self.current_call: Any = [-1, -1, -1, EnvCall.STEP]
        self.failures: list[EnvFailure] = []
        self._restarts = restarts
        self._final: EnvError | None = None  # the failure that exceeded the tolerance
        self._state_space = state_space
        self._data_check = None if restarts is None else InvalidDataCheck(restarts.observation_space)
        self._ends: list[EpisodeEnds] = []  # of the step that is being made
        self._make_env = make_env
        self._reset_options: Mapping[str, Any] | None = getattr(make_env, "reset_options", None)
        claim(self._uses(), self._maker)

    @property
    def _maker(self) -> str:
        """What made the environments, for messages."""
        return getattr(self._make_env, "description", "VectorEnv")

    def __repr__(self) -> str:
        kinds = dict.fromkeys(self._kinds())
        sub_envs = counted(self.num_envs, "sub-environment")
        return f"<{type(self).__name__} of {sub_envs} ({', '.join(kinds)}), seed {self.seed}>"

    def _kinds(self) -> list[str]:
        """Returns the names of the classes of the environments, as the user made them."""
        return [type(env).__name__ for env in self.envs]

    def _uses(self) -> Iterable[tuple[SubEnvironment, Any]]:
        """Returns the sub-environments whose environments are in this process, with them."""
        return [(sub_env, sub_env.env) for sub_env in self.sub_envs]

    @property
    def num_envs(self) -> int:
        """The number of sub-environments."""
        return len(self.sub_envs)

    @property
    def envs(self) -> list[Any]:
        """The sub-environments' environments, as the user made them."""
        return [user_env(sub_env.env) for sub_env in self.sub_envs]

    @property
    def unwrapped(self) -> VectorEnv:
        """This object, because it has no wrappers."""
        return self

    def states(self) -> Tree | None:
        """Returns the states after the newest resets and steps, ``[num_envs, ...]``; None if states are not used."""
        return None if self._state_space is None else joined_states([sub_env.state for sub_env in self.sub_envs])

    def reset_seed(self, sub_env: SubEnvironment) -> int:
        """Returns the seed of the sub-environment's current episode."""
        return episode_seed(self.seed, sub_env.number, sub_env.episode_number)

    def reset_all(self) -> list[tuple[dict[AgentID, Any], dict[AgentID, dict]]]:
        """Starts the next episode of every sub-environment, and returns the observations and infos of each."""
        return [self.reset(sub_env) for sub_env in self.sub_envs]

    def reset(self, sub_env: SubEnvironment) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts the sub-environment's next episode, and returns the observations and the infos by agent.

        Raises:
            EnvError: If the reset fails, and failed environments are not replaced, or not any more.
        """
        try:
            return self._begin(sub_env)
        except ENV_ERRORS as error:
            self._failed(sub_env, error)
            return self._begin_anew(sub_env)

    def _begin(self, sub_env: SubEnvironment) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        observations, infos = self._reset(sub_env)
        self._take_agents(sub_env, observations)
        if self._data_check is not None:
            self._data_check.check(sub_env, sub_env.agents, observations, {})
        if self._state_space is not None:
            sub_env.state = current_state(sub_env, self._state_space)
        return observations, copied_infos(sub_env, sub_env.agents, infos)

    def _take_agents(self, sub_env: SubEnvironment, observations: dict[AgentID, Any]) -> None:
        """Records the agents that act first, after a reset."""
        sub_env.agents = list(sub_env.env.agents)
        self._check_all_observed(sub_env, observations)

    def _reset(self, sub_env: SubEnvironment) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        sub_env.episode_number += 1
        sub_env.task = None if sub_env.settable is None else sub_env.settable.get_task()
        self.current_call[:] = sub_env.index, sub_env.index, sub_env.episode_number, EnvCall.RESET
        sub_env.t = 0
        sub_env.newest_actions, sub_env.history = [], ActionHistory()
        options = {} if self._reset_options is None else {"options": copy.deepcopy(self._reset_options)}
        try:
            with Watched(lambda: f"{sub_env}: reset(seed={self.reset_seed(sub_env)})"):
                given = sub_env.env.reset(seed=self.reset_seed(sub_env), **options)
        except MarlConnectorsError:
            raise
        except ENV_ERRORS as error:
            raise EnvError(
                f"{sub_env}: reset(seed={self.reset_seed(sub_env)}) raised {describe_error(error)}"
            ) from error
        self.current_call[CALL] = EnvCall.STEP
        checks.raise_first(sub_env, [checks.reset_violation(given)])
        if not sub_env.env.agents:
            checks.raise_first(sub_env, [checks.no_live_agents()])
        return given[0], given[1] or {}

    # Failures.

    def take_failures(self) -> list[EnvFailure]:
        """Returns the failures after which an environment was replaced since the last call, and clears them."""
        taken, self.failures = self.failures, []
        return taken

    def _failed(self, sub_env: SubEnvironment, error: BaseException) -> None:
        """Records a failure if the run can continue.

        Raises:
            EnvError: If it cannot.
        """
        if error is self._final:
            raise error
        failure = error
        if not isinstance(error, MarlConnectorsError):
            failure = EnvError(f"{self._who(sub_env)}: {describe_error(error)}")
        elif isinstance(error, EnvError) and sub_env.episode_number >= 0 and "seed" not in str(error):
            failure = EnvError(f"{error} The episode's seed is {self.reset_seed(sub_env)}.")
        sub_env.num_failures += 1
        if self._restarts is None:
            raise failure from (error.__cause__ if failure is error else error)
        if sub_env.num_failures > self._restarts.tolerance:
            self._final = EnvError(
                f"{sentence(failure)} This sub-environment has failed {sub_env.num_failures} times without finishing "
                f"an episode; num_consecutive_env_failures_tolerance is {self._restarts.tolerance}."
            )
            raise self._final from error
        self.failures.append(EnvFailure(sub_env.index, sentence(failure)))

    def _who(self, sub_env: SubEnvironment) -> str:
        if sub_env.episode_number < 0:
            return f"sub-environment {sub_env.number}, before its first episode"
        return f"{sub_env} (seed {self.reset_seed(sub_env)})"

    def _begin_anew(self, sub_env: SubEnvironment) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Replaces the environment and starts the next episode, and returns the observations and infos by agent."""
        assert self._make_env is not None
        while True:
            try:
                self.current_call[CALL] = EnvCall.CLOSE
                with contextlib.suppress(*ENV_ERRORS, Hang), alarm(CLOSE_TIMEOUT_S):  # it is broken already
                    sub_env.env.close()
                self.current_call[CALL] = EnvCall.MAKE
                with Watched(lambda: f"{sub_env}: making its new environment"):
                    sub_env.use(self._make_env())
                claim([(sub_env, sub_env.env)], self._maker)
                return self._begin(sub_env)
            except ENV_ERRORS as error:
                self._failed(sub_env, error)

    # Steps.

    def step(self, actions: list[Any]) -> StepResult:
        """Steps all sub-environments, and resets those whose episode ended.

        Args:
            actions: One action for each agent that acts, in the order of ``sub_envs`` and their ``agents``.
        """
        return self._step(self.sub_envs, actions)

    def _step(self, sub_envs: Sequence[SubEnvironment], actions: list[Any]) -> StepResult:
        # This loop runs for each sub-environment in each env step of a run. Where nothing unusual happened it makes
        # only a few calls, nearly all of functions written in C; everything else is in ``_unusual``.
        rewards: list[Any] = []
        observations: list[Any] = []
        result, self._ends = StepResult(rewards, observations), []
        end, current_call, data_check, state_space = 0, self.current_call, self._data_check, self._state_space
        look_every = self.look_every
        for sub_env in sub_envs:
            agents, t = sub_env.agents, sub_env.t
            begin = end
            end += len(agents)
            chosen = actions[begin:end]
            sub_env.newest_actions.append(chosen)
            current_call[CALLED_ENV], given = sub_env.index, _NOTHING
            try:
                given = sub_env.step(dict(zip(agents, chosen)))  # noqa: B905
                sub_env.t = t + 1
                obs, reward, terminations, truncations, infos = given
                if state_space is not None:
                    sub_env.state = current_state(sub_env, state_space)
                if (
                    any(terminations.values())
                    or any(truncations.values())
                    or list(obs) != agents
                    or list(reward) != agents
                    or (not sub_env.t % look_every and list(sub_env.env.agents) != agents)
                ):
                    self._unusual(sub_env, result, obs, reward, terminations, truncations, infos or {})
                else:
                    if data_check is not None:
                        data_check.check(sub_env, agents, obs, reward)
                    if infos and any(infos.values()):
                        result.infos.append((sub_env.index, copied_infos(sub_env, agents, infos)))
                    rewards += reward.values()
                    observations += obs.values()
            except ENV_ERRORS as error:
                del rewards[begin:]
                rewards.extend([0.0] * len(agents))
                self._replace(sub_env, t, self._explained(sub_env, agents, chosen, given, error), result)
        if self._ends:
            result.ends = joined_ends(self._ends)
        return result

    def _explained(
        self, sub_env: SubEnvironment, agents: list[AgentID], chosen: list[Any], given: Any, error: BaseException
    ) -> BaseException:
        """Returns the error to report for a step that raised, or whose result is malformed."""
        if isinstance(error, MarlConnectorsError):
            return error
        if given is _NOTHING:
            return self._step_failed(sub_env, chosen, error)
        why = checks.result_violation(given) or checks.step_violation(agents, *given[2:])
        return EnvError(f"{sub_env}: {why}") if why else error

    def _replace(self, sub_env: SubEnvironment, t: int, error: BaseException, result: StepResult) -> None:
        """Begins another episode in a sub-environment that failed after ``t`` steps, if the run may continue."""
        self._failed(sub_env, error)
        result.events.append(Event(sub_env.index, t, is_over=True, is_dropped=True))
        add_observed(result, sub_env, *self._begin_anew(sub_env))

    def _unusual(
        self,
        sub_env: SubEnvironment,
        result: StepResult,
        obs: dict,
        reward: dict,
        terminations: dict,
        truncations: dict,
        infos: dict,
    ) -> None:
        """Adds a step to the result in which agents ended or joined, or a dict is not in the order of the agents."""
        before, now = sub_env.agents, sub_env.env.agents
        form = None if type(obs) is dict is type(reward) else checks.result_violation((obs, reward, {}, {}, {}))
        checks.raise_first(sub_env, [form or checks.step_violation(before, terminations, truncations, infos)])
        result.rewards.extend([copied(reward.get(agent, 0.0)) for agent in before])
        ended = {agent for flags in (terminations, truncations) for agent, flag in flags.items() if flag}
        alive = [agent for agent in before if agent not in ended]
        checks.raise_first(sub_env, [checks.left_without_flag(alive, now)])
        sub_env.agents = alive + [agent for agent in now if agent not in before and agent not in ended]
        uncredited = {} if list(reward) == before else uncredited_rewards(sub_env, reward, set(before))
        infos = copied_infos(sub_env, [*before, *sub_env.agents], infos) if infos and any(infos.values()) else {}
        if sub_env.agents:
            self._check_all_observed(sub_env, obs)
        if self._data_check is not None:
            self._data_check.check(
                sub_env, {*before, *sub_env.agents}, obs, {a: reward[a] for a in before if a in reward}
            )
        is_over = not sub_env.agents
        if is_over and not uncredited and all(obs.get(agent) is not None for agent in before):
            # The reset may write to the same arrays that this step returned.
            last = [copied(obs[agent]) for agent in before]
            terminated: Any = [terminations.get(agent) for agent in before]
            truncated: Any = [truncations.get(agent) for agent in before]
            ends = EpisodeEnds([sub_env.index], [sub_env.t], last, terminated, truncated, [infos], sub_env.state)
            self._ends.append(ends)
        elif is_over or sub_env.agents != before or uncredited:
            last = {agent: copied(obs[agent]) for agent in before if agent in ended and agent in obs}
            own = {agent: info for agent, info in infos.items() if agent in ended}
            flags = dict(terminations), dict(truncations)  # a reset may clear the environment's own dicts
            event = Event(sub_env.index, sub_env.t, last, *flags, own, uncredited, is_over)
            event.state = sub_env.state
            result.events.append(event)
        if not is_over:
            add_observed(result, sub_env, obs, infos)
        else:
            self._end(sub_env, result)

    def _end(self, sub_env: SubEnvironment, result: StepResult) -> None:
        """Resets a sub-environment whose episode is over: now, or in ``reset_over`` if ``resets_late``."""
        sub_env.num_failures = 0
        if self.resets_late:
            result.late.append((sub_env.index, len(result.observations)))
        else:
            add_observed(result, sub_env, *self.reset(sub_env))

    def reset_over(self, result: StepResult) -> None:
        """Resets the sub-environments in ``result.late``, and adds their first observations to the result."""
        given, result.observations, begin = result.observations, [], 0
        for index, place in result.late:
            result.observations += given[begin:place]
            begin = place
            sub_env = self.sub_envs[index]
            add_observed(result, sub_env, *self.reset(sub_env))
        result.observations += given[begin:]

    def _check_all_observed(self, sub_env: SubEnvironment, observations: dict) -> None:
        checks.raise_first(sub_env, [checks.not_observed(sub_env.agents, observations)])

    def _step_failed(self, sub_env: SubEnvironment, chosen: list[Any], error: BaseException) -> EnvError:
        acted = dict(zip(sub_env.agents, chosen, strict=False))
        failed = EnvError(f"{self._who(sub_env)}: step({acted}) raised {describe_error(error)}")
        failed.__cause__ = error
        return failed

    def replay(
        self, sub_env: SubEnvironment, episode_number: int, steps: Iterable[list[Any]], wanted: Collection[int]
    ) -> tuple[dict[AgentID, Any], dict[int, dict[AgentID, dict]]]:
        """Replays an unfinished episode: resets the sub-environment with the episode's seed and repeats the actions.

        Args:
            sub_env: The sub-environment.
            episode_number: The number of the episode, from which its seed follows.
            steps: For each env step, the actions of all agents that acted.
            wanted: The env steps whose infos are to be returned; 0 is the reset.

        Returns:
            The newest observations by agent, and the infos by env step and agent.

        Raises:
            CheckpointError: If the episode ends, or if other agents act than before.
        """
        sub_env.episode_number = episode_number - 1
        newest, infos = self._begin(sub_env)
        newest = {agent_id: copied(newest[agent_id]) for agent_id in sub_env.agents}
        infos_at = {0: infos} if 0 in wanted else {}
        for actions in steps:
            result = self._step([sub_env], actions) if len(actions) == len(sub_env.agents) else None
            if result is None or sub_env.episode_number != episode_number:
                raise not_repeatable(sub_env)
            newest = self._newest(sub_env, newest, result)
            if sub_env.t in wanted:
                infos_at[sub_env.t] = dict(result.infos).get(sub_env.index, {})
        return newest, infos_at

    def _newest(self, sub_env: SubEnvironment, newest: dict[AgentID, Any], result: StepResult) -> dict[AgentID, Any]:
        """Returns the newest observations of all agents that have not ended, after a step of one sub-environment."""
        return dict(zip(sub_env.agents, result.observations, strict=True))

    def close(self) -> None:
        """Closes all sub-environments. After ``close_timeout_s``, each of the rest has ``MOMENT_S`` seconds."""
        begin = time.monotonic()
        for sub_env in self.sub_envs:
            self.current_call[CALLED_ENV], self.current_call[CALL] = sub_env.index, EnvCall.CLOSE
            left = self.close_timeout_s
            if left is not None:
                left = max(left - (time.monotonic() - begin), MOMENT_S)
            close_env(sub_env.env, f"sub-environment {sub_env.number}", timeout_s=left)
        self.current_call[CALLED_ENV] = -1
        release(self.sub_envs)


def add_observed(
    result: StepResult, sub_env: SubEnvironment, observations: dict[AgentID, Any], infos: dict[AgentID, dict]
) -> None:
    """Adds the observations and infos of a sub-environment's agents that act next to a result."""
    result.observations += [observations[agent] for agent in sub_env.agents]
    own = {agent: infos[agent] for agent in sub_env.agents if agent in infos}
    if own:
        result.infos.append((sub_env.index, own))


def current_state(sub_env: SubEnvironment, space: Space) -> Tree:
    """Returns the ``state()`` of a sub-environment, copied to arrays with a leading axis of 1.

    Args:
        sub_env: The sub-environment.
        space: The environment's ``state_space``. Its bounds are not checked.

    Raises:
        EnvError: If ``state()`` raises, or if the state does not have the shapes of the space or is not finite.
    """
    try:
        given = sub_env.env.state()
    except Exception as error:
        raise EnvError(
            f"{sub_env}: state() raised {describe_error(error)}. A critic needs the state after every reset and "
            f"step, also after the last one."
        ) from error
    with contextlib.suppress(TypeError, ValueError):
        state = spaces.stack([given], space)
        if all(map(_is_finite, leaves(state))):
            return state
    why = checks.state_violation(space, given) or f"the state is not like state_space: {given!r}"
    raise EnvError(f"{sub_env}: {why}")


def _is_finite(values: np.ndarray) -> bool:
    return values.dtype.kind in "biu" or (values.dtype.kind == "f" and bool(np.isfinite(values).all()))
