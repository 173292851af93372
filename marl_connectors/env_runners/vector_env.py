"""Several copies of an environment, stepped one after another in this process."""

from __future__ import annotations

import copy as copying
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marl_connectors.env_runners.action_history import ActionHistory
from marl_connectors.errors import CheckpointError, EnvError, MarlConnectorsError
from marl_connectors.seeding import derived_seed
from marl_connectors.typing import AgentID


@dataclass(slots=True)
class Transition:
    """What one agent's, or all agents', step in one copy led to, where that was out of the ordinary.

    Attributes:
        index: The copy's place.
        t: Env steps since the episode began, this one included.
        observations: By agent, of the step itself.
        terminations: By agent.
        truncations: By agent.
        infos: By agent.
        stray_rewards: By agent, of agents that did not act.
        is_over: Whether the episode ended, so that the copy was reset.
        first_observations: By agent, of the new episode, if ``is_over``.
        first_infos: By agent, of the new episode, if ``is_over``.
    """

    index: int
    t: int
    observations: dict[AgentID, Any]
    terminations: dict[AgentID, bool]
    truncations: dict[AgentID, bool]
    infos: dict[AgentID, dict]
    stray_rewards: dict[AgentID, float]
    is_over: bool = False
    first_observations: dict[AgentID, Any] = field(default_factory=dict)
    first_infos: dict[AgentID, dict] = field(default_factory=dict)


@dataclass(slots=True)
class VectorStep:
    """What a step of all copies gave, in lists that run through all agents of copy 0, then of copy 1, and so on.

    Attributes:
        rewards: One for each agent that acted.
        observations: One for each agent that acts next: of a new episode where the old one ended.
        transitions: Of copies in which agents ended, appeared, or an episode ended.
        infos: ``(copy index, infos by agent)`` of all other copies that gave any.
    """

    rewards: list[Any]
    observations: list[Any]
    transitions: list[Transition]
    infos: list[tuple[int, dict[AgentID, dict]]]


class EnvCopy:
    """One copy of an environment, and where it is.

    Attributes:
        env: A PettingZoo parallel environment, or one that behaves like it.
        index: The copy's place among the copies.
        agents: Who acts next, in the order of all lists.
        episode_number: How many episodes were started, less one.
        t: Env steps since the reset.
        newest_actions: Those of the newest steps of the episode, which are not in ``history`` yet.
    """

    __slots__ = ("agents", "env", "episode_number", "history", "index", "newest_actions", "step", "t")

    def __init__(self, env: Any, index: int):
        self.env = env
        self.step = env.step
        self.index = index
        self.agents: list[AgentID] = []
        self.episode_number = -1
        self.t = 0
        self.newest_actions: list[list[Any]] = []
        self.history = ActionHistory()

    def pack_history(self, at_least: int = 0) -> ActionHistory:
        """All actions of the episode so far; the newest are only packed if there are ``at_least`` so many steps."""
        if len(self.newest_actions) >= at_least:
            self.history.extend(self.newest_actions)
            self.newest_actions.clear()
        return self.history

    def __str__(self) -> str:
        return f"environment copy {self.index}, episode {self.episode_number}, step {self.t}"


class VectorEnv:
    """Copies of one environment. Every reset is seeded by (run seed, copy, episode), so any episode can be replayed."""

    def __init__(self, envs: Sequence[Any], *, seed: int):
        """Takes the copies.

        Args:
            envs: One environment for each copy.
            seed: The run's seed.
        """
        self.copies = [EnvCopy(env, index) for index, env in enumerate(envs)]
        self.seed = seed

    def reset_seed(self, copy: EnvCopy) -> int:
        """The seed of the copy's current episode."""
        return derived_seed(self.seed, "env", copy.index, copy.episode_number)

    def reset(self, copy: EnvCopy) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        """Starts the copy's next episode: observations and infos by agent."""
        observations, infos = self._reset(copy)
        copy.agents = list(copy.env.agents)
        self._check_all_observed(copy, observations)
        return observations, infos

    def _reset(self, copy: EnvCopy) -> tuple[dict[AgentID, Any], dict[AgentID, dict]]:
        copy.episode_number += 1
        copy.t = 0
        copy.newest_actions, copy.history = [], ActionHistory()
        try:
            observations, infos = copy.env.reset(seed=self.reset_seed(copy))
        except MarlConnectorsError:
            raise
        except Exception as error:
            raise EnvError(
                f"{copy}: reset(seed={self.reset_seed(copy)}) raised {type(error).__name__}: {error}"
            ) from error
        if not copy.env.agents:
            raise EnvError(
                f"{copy}: reset() left no live agents in env.agents, so nobody can act. Fix the environment."
            )
        return observations, infos or {}

    def step(self, actions: list[Any]) -> VectorStep:
        """Steps all copies, and resets those whose episode ended.

        A hot path: a copy in which nothing out of the ordinary happened costs a handful of C calls.

        Args:
            actions: One for each agent, in the order of ``copies`` and their ``agents``.
        """
        return self._step(self.copies, actions)

    def _step(self, copies: Sequence[EnvCopy], actions: list[Any]) -> VectorStep:
        rewards: list[Any] = []
        observations: list[Any] = []
        result = VectorStep(rewards, observations, [], [])
        end = 0
        for copy in copies:
            agents = copy.agents
            begin = end
            end += len(agents)
            chosen = actions[begin:end]
            copy.newest_actions.append(chosen)
            try:
                obs, reward, terminations, truncations, infos = copy.step(dict(zip(agents, chosen)))  # noqa: B905
            except MarlConnectorsError:
                raise
            except Exception as error:
                raise self._step_failed(copy, chosen, error) from error
            copy.t += 1
            if (
                True in terminations.values()
                or True in truncations.values()
                or list(obs) != agents
                or list(reward) != agents
            ):
                self._unusual(copy, result, obs, reward, terminations, truncations, infos or {})
            else:
                rewards += reward.values()
                observations += obs.values()
                if infos and any(infos.values()):
                    result.infos.append((copy.index, infos))
        return result

    def _unusual(
        self,
        copy: EnvCopy,
        result: VectorStep,
        obs: dict,
        reward: dict,
        terminations: dict,
        truncations: dict,
        infos: dict,
    ) -> None:
        before = copy.agents
        result.rewards.extend([reward.get(agent, 0.0) for agent in before])
        alive = [agent for agent in before if not (terminations.get(agent) or truncations.get(agent))]
        lost = [agent for agent in alive if agent not in copy.env.agents]
        if lost:
            raise EnvError(
                f"{copy}: agents {lost} left env.agents without being terminated or truncated. An agent must be "
                f"flagged in the step in which it leaves."
            )
        ended = {agent for flags in (terminations, truncations) for agent, flag in flags.items() if flag}
        copy.agents = alive + [agent for agent in copy.env.agents if agent not in before and agent not in ended]
        stray = self._stray_rewards(copy, reward, set(before))
        transition = Transition(copy.index, copy.t, obs, terminations, truncations, infos, stray)
        if copy.agents:
            self._check_all_observed(copy, obs)
        else:
            transition.is_over = True
            # The reset may write to the very arrays and dicts that this step gave.
            transition.observations = {agent: _copied(obs[agent]) for agent in before if agent in obs}
            transition.infos = copied_infos({agent: infos.get(agent) for agent in before})
            transition.first_observations, transition.first_infos = self.reset(copy)
            obs = transition.first_observations
        result.observations.extend([obs[agent] for agent in copy.agents])
        if transition.is_over or copy.agents != before or stray:
            result.transitions.append(transition)
        elif any(infos.values()):
            result.infos.append((copy.index, infos))

    def _stray_rewards(self, copy: EnvCopy, rewards: dict, acted: Collection[AgentID]) -> dict[AgentID, float]:
        """The rewards of agents that did not act in this step, but for zeros."""
        stray: dict[AgentID, float] = {}
        for agent, reward in rewards.items():
            number = 0.0 if agent in acted else self._number(copy, agent, reward)
            if number:
                stray[agent] = number
        return stray

    def _number(self, copy: EnvCopy, agent: AgentID, reward: Any) -> float:
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            raise EnvError(f"{copy}, agent {agent!r}: the reward is {reward!r}. Rewards must be finite numbers.")
        return number

    def _check_all_observed(self, copy: EnvCopy, observations: dict) -> None:
        missing = [agent for agent in copy.agents if agent not in observations]
        if missing:
            raise EnvError(
                f"{copy}: no observation for the live agents {missing}. A parallel environment must give one to every "
                f"agent in env.agents."
            )

    def _step_failed(self, copy: EnvCopy, chosen: list[Any], error: Exception) -> EnvError:
        acted = dict(zip(copy.agents, chosen, strict=False))
        return EnvError(f"{copy} (seed {self.reset_seed(copy)}): step({acted}) raised {type(error).__name__}: {error}")

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
        observations, infos = self.reset(copy)
        newest = [observations[agent_id] for agent_id in copy.agents]
        infos_at = {0: copied_infos(infos)} if 0 in wanted else {}
        for actions in steps:
            step = self._step([copy], actions) if len(actions) == len(copy.agents) else None
            if step is None or copy.episode_number != episode_number:
                raise not_repeatable(copy)
            newest = step.observations
            if copy.t in wanted:
                given = [transition.infos for transition in step.transitions] or [infos for _, infos in step.infos]
                infos_at[copy.t] = copied_infos(given[0]) if given else {}
        return dict(zip(copy.agents, newest, strict=True)), infos_at

    def close(self) -> None:
        """Closes all copies."""
        for copy in self.copies:
            copy.env.close()


def not_repeatable(copy: EnvCopy, agent_id: AgentID | None = None) -> CheckpointError:
    """The error for an episode that does not lead to where it led before."""
    whom = "" if agent_id is None else f"agent {agent_id!r} "
    return CheckpointError(
        f"{copy}: replaying the episode from its seed leads {whom}elsewhere than before the checkpoint, so the "
        f"environment does not follow from reset(seed=...) and the run cannot be continued exactly. Start a new run "
        f"with its modules: algo.rl_module.set_state(load_state(path)['learner']['module'])."
    )


def copied_infos(infos: dict[AgentID, Any]) -> dict[AgentID, dict]:
    """Infos that the environment's next step cannot change, without empty ones."""
    return {agent: dict(info) for agent, info in infos.items() if info}


def _copied(observation: Any) -> Any:
    return observation.copy() if type(observation) is np.ndarray else copying.deepcopy(observation)
