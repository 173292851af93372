"""Several copies of an environment, stepped one after another in this process."""

from __future__ import annotations

import contextlib
import copy as copying
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors.environments.action_history import ActionHistory
from marl_connectors.environments.env_copy import (
    Doing,
    EnvCopy,
    copied_infos,
    not_repeatable,
    uncredited_rewards,
)
from marl_connectors.environments.env_failures import (
    CLOSE_TIMEOUT_S,
    ENV_ERRORS,
    MOMENT_S,
    EnvFailure,
    EnvRestarts,
    close_env,
    sentence,
)
from marl_connectors.environments.env_states import EnvStates, joined_states
from marl_connectors.environments.single_agent_env import SingleAgentEnv
from marl_connectors.environments.step_result import EndsBuilder, Event, StepResult
from marl_connectors.environments.time_limits import Hang, Watched, alarm
from marl_connectors.environments.turn_based_env import TurnBasedEnv
from marl_connectors.environments.validation.checks import (
    GarbageCheck,
    fault_in_reset,
    fault_in_result,
    fault_in_step,
    left_without_flag,
    nobody_there,
    not_observed,
    raise_first,
)
from marl_connectors.errors import EnvError, MarlConnectorsError, describe_error
from marl_connectors.seeding import derived_seed, derived_seeds
from marl_connectors.typing import AgentID, Tree

_NOTHING: Any = object()
_LOOK_EVERY = 16
"""So often a copy is asked for its agents, even if nothing in a step's dicts says that they have changed."""


class VectorEnv:
    """Copies of one environment. Every reset is seeded by (run seed, copy, episode), so any episode can be replayed.

    Attributes:
        copies: The copies.
        seed: The run's seed.
        at: Four numbers, in an array where processes share them: the index of the copy that is at work, that of the one
            reset last, its episode's number, and what the copy at work does, see ``Doing``. The first one is -1 once
            all copies are closed.
        failures: Of copies that went on with another episode; whoever reads them clears them.
        turn_based: Whether agents act one after another: whoever has acted waits for its next turn.
        is_batched: Whether actions, rewards and observations are arrays for all copies.
        has_rests: Whether there are steps in which some copies do not act.
        close_timeout_s: How long closing all copies may take, see ``close_env``.
        resets_late: Whether copies whose episode ended wait for ``reset_over``, where that is possible.
    """

    turn_based = False
    is_batched = False
    has_rests = False
    resets_late = False
    close_timeout_s: float | None = CLOSE_TIMEOUT_S

    def __init__(
        self,
        envs: Sequence[Any],
        *,
        seed: int,
        first_index: int = 0,
        restarts: EnvRestarts | None = None,
        state_space: Space | None = None,
    ):
        """Takes the copies.

        Args:
            envs: One environment for each copy.
            seed: The run's seed.
            first_index: The place of the first of these copies among all copies of the run.
            restarts: How to go on after failures; None to raise an error.
            state_space: That of the environments' ``state()``, if they are to be asked for it; else None.
        """
        self.copies = [EnvCopy(env, index) for index, env in enumerate(envs, first_index)]
        self.seed = seed
        self.at: Any = [-1, -1, -1, Doing.STEP]
        self.failures: list[EnvFailure] = []
        self._restarts = restarts
        self._final: EnvError | None = None  # the failure that was one too many
        self._states = None if state_space is None else EnvStates(state_space)
        self._garbage = None if restarts is None else GarbageCheck(restarts.observation_space)
        self._ends = EndsBuilder()
        self._seeds: dict[tuple[int, int], int] = {}  # of the episodes that begin together, by copy and number

    @property
    def num_envs(self) -> int:
        """How many copies."""
        return len(self.copies)

    @property
    def envs(self) -> list[Any]:
        """The copies' environments, as the user made them."""
        ours = (SingleAgentEnv, TurnBasedEnv)
        return [copy.env.env if isinstance(copy.env, ours) else copy.env for copy in self.copies]

    @property
    def unwrapped(self) -> VectorEnv:
        """This object, as nothing is wrapped around it."""
        return self

    def states(self) -> Tree | None:
        """``[num_envs, ...]`` the copies' states, as after their newest resets and steps; None if nobody wants them."""
        return None if self._states is None else joined_states([copy.state for copy in self.copies])

    def reset_seed(self, copy: EnvCopy) -> int:
        """The seed of the copy's current episode."""
        episode = copy.index, copy.episode_number
        known = self._seeds.get(episode)
        return derived_seed(self.seed, "env", *episode) if known is None else known

    def reset_all(self) -> list[tuple[dict[AgentID, Any], dict[AgentID, dict]]]:
        """Starts the next episode of every copy."""
        self._ends.clear()
        episodes = [(copy.index, copy.episode_number + 1) for copy in self.copies]
        seeds = derived_seeds(self.seed, "env", *np.array(episodes).T).tolist()
        self._seeds = dict(zip(episodes, seeds, strict=True))
        given = [self.reset(copy) for copy in self.copies]
        self._seeds = {}
        return given

    def reset(self, copy: EnvCopy) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts the copy's next episode: observations and infos by agent."""
        try:
            return self._begin(copy)
        except ENV_ERRORS as error:
            self._failed(copy, error)
            return self._begin_anew(copy)

    def _begin(self, copy: EnvCopy) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        observations, infos = self._reset(copy)
        copy.agents = list(copy.env.agents)
        self._check_all_observed(copy, observations)
        if self._garbage is not None:
            self._garbage.check(copy, copy.agents, observations, {})
        if self._states is not None:
            self._states.note(copy)
        return observations, copied_infos(copy, copy.agents, infos)

    def _reset(self, copy: EnvCopy) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        copy.episode_number += 1
        copy.task = None if copy.settable is None else copy.settable.get_task()
        self.at[:] = copy.index, copy.index, copy.episode_number, Doing.RESET
        copy.t = 0
        copy.newest_actions, copy.history = [], ActionHistory()
        try:
            with Watched(lambda: f"{copy}: reset(seed={self.reset_seed(copy)})"):
                given = copy.env.reset(seed=self.reset_seed(copy))
        except MarlConnectorsError:
            raise
        except ENV_ERRORS as error:
            raise EnvError(f"{copy}: reset(seed={self.reset_seed(copy)}) raised {describe_error(error)}") from error
        self.at[3] = Doing.STEP
        raise_first(copy, [fault_in_reset(given)])
        if not copy.env.agents:
            raise_first(copy, [nobody_there()])
        return given[0], given[1] or {}

    # Failures.

    def take_failures(self) -> list[EnvFailure]:
        """What failed, and was replaced, since the last call."""
        taken, self.failures = self.failures, []
        return taken

    def _failed(self, copy: EnvCopy, error: BaseException) -> None:
        """Takes note of a failure if the run can go on.

        Raises:
            EnvError: If it cannot.
        """
        if error is self._final:
            raise error
        failure = error
        if not isinstance(error, MarlConnectorsError):
            failure = EnvError(f"{self._who(copy)}: {describe_error(error)}")
        elif isinstance(error, EnvError) and copy.episode_number >= 0 and "seed" not in str(error):
            failure = EnvError(f"{error} The episode's seed is {self.reset_seed(copy)}.")
        copy.num_failures += 1
        if self._restarts is None:
            raise failure from (error.__cause__ if failure is error else error)
        if copy.num_failures > self._restarts.tolerance:
            self._final = EnvError(
                f"{sentence(failure)} This copy has failed {copy.num_failures} times without finishing an episode; "
                f"num_consecutive_env_failures_tolerance is {self._restarts.tolerance}."
            )
            raise self._final from error
        self.failures.append(EnvFailure(copy.index, sentence(failure)))

    def _who(self, copy: EnvCopy) -> str:
        if copy.episode_number < 0:
            return f"environment copy {copy.index}, before its first episode"
        return f"{copy} (seed {self.reset_seed(copy)})"

    def _begin_anew(self, copy: EnvCopy) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts the next episode in a new environment."""
        assert self._restarts is not None
        while True:
            try:
                self.at[3] = Doing.CLOSE
                with contextlib.suppress(*ENV_ERRORS, Hang), alarm(CLOSE_TIMEOUT_S):  # it is broken already
                    copy.env.close()
                self.at[3] = Doing.MAKE
                with Watched(lambda: f"{copy}: making its new environment"):
                    copy.use(self._restarts.make_env())
                return self._begin(copy)
            except ENV_ERRORS as error:
                self._failed(copy, error)

    # Steps.

    def step(self, actions: list[Any]) -> StepResult:
        """Steps all copies, and resets those whose episode ended.

        Args:
            actions: One for each agent, in the order of ``copies`` and their ``agents``.
        """
        return self._step(self.copies, actions)

    def _step(self, copies: Sequence[EnvCopy], actions: list[Any]) -> StepResult:
        """A hot path: a copy in which nothing out of the ordinary happened costs a handful of C calls."""
        rewards: list[Any] = []
        observations: list[Any] = []
        result = StepResult(rewards, observations)
        end, at, garbage, states = 0, self.at, self._garbage, self._states
        for copy in copies:
            agents, t = copy.agents, copy.t
            begin = end
            end += len(agents)
            chosen = actions[begin:end]
            copy.newest_actions.append(chosen)
            at[0], given = copy.index, _NOTHING
            try:
                given = copy.step(dict(zip(agents, chosen)))  # noqa: B905
                copy.t = t + 1
                obs, reward, terminations, truncations, infos = given
                if states is not None:
                    states.note(copy)
                if (
                    any(terminations.values())
                    or any(truncations.values())
                    or list(obs) != agents
                    or list(reward) != agents
                    or (not copy.t % _LOOK_EVERY and list(copy.env.agents) != agents)
                ):
                    self._unusual(copy, result, obs, reward, terminations, truncations, infos or {})
                else:
                    if garbage is not None:
                        garbage.check(copy, agents, obs, reward)
                    if infos and any(infos.values()):
                        result.infos.append((copy.index, copied_infos(copy, agents, infos)))
                    rewards += reward.values()
                    observations += obs.values()
            except ENV_ERRORS as error:
                del rewards[begin:]
                rewards.extend([0.0] * len(agents))
                self._replace(copy, t, self._explained(copy, agents, chosen, given, error), result)
        result.ends = self._ends.take()
        return result

    def _explained(
        self, copy: EnvCopy, agents: list[AgentID], chosen: list[Any], given: Any, error: BaseException
    ) -> BaseException:
        """What to say of a step that raised, or that gave what cannot be read."""
        if isinstance(error, MarlConnectorsError):
            return error
        if given is _NOTHING:
            return self._step_failed(copy, chosen, error)
        why = fault_in_result(given) or fault_in_step(agents, *given[2:])
        return EnvError(f"{copy}: {why}") if why else error

    def _replace(self, copy: EnvCopy, t: int, error: BaseException, result: StepResult) -> None:
        """Begins another episode in a copy that failed after ``t`` steps, if the run may go on."""
        self._failed(copy, error)
        result.events.append(Event(copy.index, t, is_over=True, is_dropped=True))
        add_observed(result, copy, *self._begin_anew(copy))

    def _unusual(
        self,
        copy: EnvCopy,
        result: StepResult,
        obs: dict,
        reward: dict,
        terminations: dict,
        truncations: dict,
        infos: dict,
    ) -> None:
        """Takes in a step in which agents ended or joined, or of which a dict is not in the order of the agents."""
        before, now = copy.agents, copy.env.agents
        form = None if type(obs) is dict is type(reward) else fault_in_result((obs, reward, {}, {}, {}))
        raise_first(copy, [form or fault_in_step(before, terminations, truncations, infos)])
        result.rewards.extend([reward.get(agent, 0.0) for agent in before])
        ended = {agent for flags in (terminations, truncations) for agent, flag in flags.items() if flag}
        alive = [agent for agent in before if agent not in ended]
        raise_first(copy, [left_without_flag(alive, now)])
        copy.agents = alive + [agent for agent in now if agent not in before and agent not in ended]
        uncredited = {} if list(reward) == before else uncredited_rewards(copy, reward, set(before))
        infos = copied_infos(copy, [*before, *copy.agents], infos) if infos and any(infos.values()) else {}
        if copy.agents:
            self._check_all_observed(copy, obs)
        if self._garbage is not None:
            self._garbage.check(copy, {*before, *copy.agents}, obs, {a: reward[a] for a in before if a in reward})
        is_over = not copy.agents
        if is_over and not uncredited and all(obs.get(agent) is not None for agent in before):
            # The reset may write to the very arrays that this step gave.
            last = [_copied(obs[agent]) for agent in before]
            flags = map(terminations.get, before), map(truncations.get, before)
            self._ends.add(copy.index, copy.t, last, *flags, infos, copy.state)
        elif is_over or copy.agents != before or uncredited:
            last = {agent: _copied(obs[agent]) for agent in before if agent in ended and agent in obs}
            own = {agent: info for agent, info in infos.items() if agent in ended}
            event = Event(copy.index, copy.t, last, terminations, truncations, own, uncredited, is_over)
            event.state = copy.state
            result.events.append(event)
        if not is_over:
            add_observed(result, copy, obs, infos)
        else:
            self._end(copy, result)

    def _end(self, copy: EnvCopy, result: StepResult) -> None:
        """Resets a copy whose episode is over, now or when somebody has looked at it."""
        copy.num_failures = 0
        if self.resets_late:
            result.late.append((copy.index, len(result.observations)))
        else:
            add_observed(result, copy, *self.reset(copy))

    def reset_over(self, result: StepResult) -> None:
        """Resets the copies that a step left as they were at the end of their episodes, and completes the step."""
        given, result.observations, begin = result.observations, [], 0
        for index, place in result.late:
            result.observations += given[begin:place]
            begin = place
            copy = self.copies[index]
            add_observed(result, copy, *self.reset(copy))
        result.observations += given[begin:]

    def _check_all_observed(self, copy: EnvCopy, observations: dict) -> None:
        raise_first(copy, [not_observed(copy.agents, observations)])

    def _step_failed(self, copy: EnvCopy, chosen: list[Any], error: BaseException) -> EnvError:
        acted = dict(zip(copy.agents, chosen, strict=False))
        failed = EnvError(f"{self._who(copy)}: step({acted}) raised {describe_error(error)}")
        failed.__cause__ = error
        return failed

    def replay(
        self, copy: EnvCopy, episode_number: int, steps: Iterable[list[Any]], wanted: Collection[int]
    ) -> tuple[dict[AgentID, Any], dict[int, dict[AgentID, dict]]]:
        """Brings a copy to where an episode stood: resets it with that episode's seed and repeats the actions.

        Args:
            copy: Which.
            episode_number: Of the episode.
            steps: The actions of all agents, step by step.
            wanted: Env steps whose infos are wanted.

        Returns:
            The newest observations by agent, and the infos by env step and agent.

        Raises:
            CheckpointError: If the episode ends, or other agents act, than before.
        """
        copy.episode_number = episode_number - 1
        newest, infos = self._begin(copy)
        newest = {agent_id: _copied(newest[agent_id]) for agent_id in copy.agents}
        infos_at = {0: infos} if 0 in wanted else {}
        for actions in steps:
            result = self._step([copy], actions) if len(actions) == len(copy.agents) else None
            if result is None or copy.episode_number != episode_number:
                raise not_repeatable(copy)
            newest = self._newest(copy, newest, result)
            if copy.t in wanted:
                infos_at[copy.t] = dict(result.infos).get(copy.index, {})
        return newest, infos_at

    def _newest(self, copy: EnvCopy, newest: dict[AgentID, Any], result: StepResult) -> dict[AgentID, Any]:
        """The newest observations of all agents that have not ended, after a step of one copy."""
        return dict(zip(copy.agents, result.observations, strict=True))

    def close(self) -> None:
        """Closes all copies. Those whose turn comes after the time is used up have a moment only."""
        begin = time.monotonic()
        for copy in self.copies:
            self.at[0], self.at[3] = copy.index, Doing.CLOSE
            left = self.close_timeout_s
            if left is not None:
                left = max(left - (time.monotonic() - begin), MOMENT_S)
            close_env(copy.env, f"environment copy {copy.index}", timeout_s=left)
        self.at[0] = -1


def add_observed(
    result: StepResult, copy: EnvCopy, observations: dict[AgentID, Any], infos: dict[AgentID, dict]
) -> None:
    """Adds to a result what those observe that act next in a copy."""
    result.observations += [observations[agent] for agent in copy.agents]
    own = {agent: infos[agent] for agent in copy.agents if agent in infos}
    if own:
        result.infos.append((copy.index, own))


def _copied(observation: Any) -> Any:
    return observation.copy() if type(observation) is np.ndarray else copying.deepcopy(observation)
