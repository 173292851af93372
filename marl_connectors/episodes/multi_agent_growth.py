"""How a multi-agent episode grows, env step by env step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from marl_connectors.columns import Columns
from marl_connectors.episodes.growth import number
from marl_connectors.episodes.multi_agent_access import MultiAgentAccess
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import ListStorage
from marl_connectors.errors import EpisodeError, did_you_mean
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, EpisodeID, ModuleID

AgentToModule: TypeAlias = Callable[[AgentID, Any], ModuleID]
PerAgent: TypeAlias = Mapping[Any, Any]
ALL = "__all__"


class GrowingMultiAgentEpisode(MultiAgentAccess):
    """Takes in what the agents see, do and earn at each env step."""

    __slots__ = (
        "_custom_data",
        "_ended_before",
        "_last_step_time",
        "_start_time",
        "_unclaimed",
        "action_space",
        "agent_to_module_mapping_fn",
        "is_terminated",
        "is_truncated",
        "observation_space",
    )

    observation_space: Any
    action_space: Any
    agent_to_module_mapping_fn: AgentToModule | None
    is_terminated: bool
    is_truncated: bool
    _ended_before: dict[AgentID, bool]
    _unclaimed: dict[AgentID, float]
    _custom_data: dict[str, Any] | None
    _start_time: float | None
    _last_step_time: float | None

    @property
    def is_done(self) -> bool:
        """Whether the whole episode has ended."""
        return self.is_terminated or self.is_truncated

    @property
    def is_reset(self) -> bool:
        """Whether any agent has observed anything."""
        return any(episode.is_reset for episode in self.all_agent_episodes())

    @property
    def is_numpy(self) -> bool:
        """Whether all agents' columns are arrays."""
        return bool(self.agent_episodes) and all(episode.is_numpy for episode in self.all_agent_episodes())

    @property
    def custom_data(self) -> dict[str, Any]:
        """The user's own notes. ``cut()`` passes them on."""
        if self._custom_data is None:
            self._custom_data = {}
        return self._custom_data

    @property
    def agent_ids(self) -> set[AgentID]:
        """All agents that have data here."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[AgentID, EpisodeID]:
        """Agent to the id of its newest life's episode."""
        return {agent_id: episode.id_ for agent_id, episode in self.agent_episodes.items()}

    @property
    def uncredited_reward(self) -> float:
        """The sum of all rewards that belong to no action in this chunk; see ``SingleAgentEpisode``."""
        return sum(self._unclaimed.values()) + sum(episode.uncredited_reward for episode in self.all_agent_episodes())

    def module_for(self, agent_id: AgentID) -> ModuleID:
        """Who chooses the agent's actions. Asks the mapping function once for each agent and episode."""
        known = self._module_of.get(agent_id)
        if known is None:
            episode = self.agent_episodes.get(agent_id)
            if episode is not None and episode.module_id is not None:
                known = episode.module_id
            else:
                mapping = self.agent_to_module_mapping_fn
                known = DEFAULT_MODULE_ID if mapping is None else mapping(agent_id, self)
            self._module_of[agent_id] = known
        return known

    def get_terminateds(self) -> dict[AgentID, bool]:
        """Agent to whether it is terminated, and ``"__all__"``."""
        return {agent_id: e.is_terminated for agent_id, e in self.agent_episodes.items()} | {ALL: self.is_terminated}

    def get_truncateds(self) -> dict[AgentID, bool]:
        """Agent to whether it is truncated, and ``"__all__"``."""
        return {agent_id: e.is_truncated for agent_id, e in self.agent_episodes.items()} | {ALL: self.is_truncated}

    def get_agents_to_act(self) -> set[AgentID]:
        """The agents that have seen something that they have not acted upon, and have not ended."""
        return {
            agent_id
            for agent_id, episode in self.agent_episodes.items()
            if not episode.is_done and episode.is_reset and episode.storage.pending() is None
        }

    def get_agents_that_stepped(self) -> set[AgentID]:
        """The agents that observed at the newest env step, those that ended there included."""
        return {
            agent_id
            for agent_id, episode in self.agent_episodes.items()
            if episode.is_reset and episode.storage.column(Columns.T)[-1] == self.env_t
        }

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """The sum of all agents' rewards in this chunk.

        Args:
            include_hanging_rewards: Adds what was paid so far for actions that still wait for an observation.
        """
        episodes = self.all_agent_episodes()
        total = sum(episode.get_return() for episode in episodes)
        if include_hanging_rewards:
            waiting = [episode.storage.pending() for episode in episodes]
            total += sum(float(row[Columns.REWARDS]) for row in waiting if row is not None)
        return float(total)

    def get_duration_s(self) -> float:
        """Seconds between the first and the last time that something was added; 0 before."""
        if self._start_time is None or self._last_step_time is None:
            return 0.0
        return self._last_step_time - self._start_time

    def env_steps(self) -> int:
        """Env steps of this chunk."""
        return len(self)

    def agent_steps(self) -> int:
        """Steps of all agents in this chunk."""
        return sum(len(episode) for episode in self.all_agent_episodes())

    def add_env_reset(self, *, observations: PerAgent, infos: PerAgent | None = None) -> None:
        """Adds what ``env.reset()`` returned, for the agents that observe at the start.

        Raises:
            EpisodeError: If the episode has begun already.
        """
        if self.is_reset or self.is_done or len(self):
            raise EpisodeError(f"{self._who}: add_env_reset() comes first and once, but there are data.")
        for agent_id, observation in observations.items():
            self._observe(agent_id, observation, (infos or {}).get(agent_id), False)
        self._start_time = time.perf_counter()

    def add_env_step(
        self,
        observations: PerAgent,
        actions: PerAgent,
        rewards: PerAgent,
        infos: PerAgent | None = None,
        *,
        terminateds: PerAgent | None = None,
        truncateds: PerAgent | None = None,
        extra_model_outputs: PerAgent | None = None,
    ) -> None:
        """Adds the actions that went into ``env.step()`` and what came out.

        Each reward goes to the agent's last action. An observation closes the agent's step; an agent that ends without
        one has its last observation repeated. A new agent, or one that had ended, begins a life with its observation.
        An info without an observation is left out, and so is what is said again about an agent that has ended: its
        final observation, with its done flag still set. A None among actions or observations stands for nothing.

        Args:
            observations: Agent to next observation, for those that observe.
            actions: Agent to action, for those that acted.
            rewards: Agent to reward, for anyone.
            infos: Agent to info.
            terminateds: Agent (or ``"__all__"``) to whether its state has no future.
            truncateds: Agent (or ``"__all__"``) to whether it was stopped. Its own flags go before ``"__all__"``.
            extra_model_outputs: Agent to a dict of what its module put out along with the action.

        Raises:
            EpisodeError: If the episode is over, an agent acts that is not there, has ended or has nothing to act upon,
                or a reward is not a number. The episode is then as it was.
        """
        if self.is_done:
            raise EpisodeError(f"{self._who}: add_env_step() after the end of the episode. Start a new one.")
        terminateds, truncateds, outputs = terminateds or {}, truncateds or {}, extra_model_outputs or {}
        acting = {agent_id: action for agent_id, action in actions.items() if action is not None}
        earned = {agent_id: number(r, f"{self._who}, agent {agent_id!r}") for agent_id, r in rewards.items()}
        for agent_id in outputs:
            if agent_id not in acting:
                raise EpisodeError(f"{self._who}: agent {agent_id!r} has extra_model_outputs, but no action.")
        for episode, agent_id in [(self._acting(agent_id), agent_id) for agent_id in acting]:
            episode.act(acting[agent_id], outputs.get(agent_id))
        self.env_t += 1
        for agent_id, reward in earned.items():
            self._credit(agent_id, reward)
        for agent_id, observation in observations.items():
            flagged = bool(terminateds.get(agent_id) or truncateds.get(agent_id))
            self._observe(agent_id, observation, (infos or {}).get(agent_id), flagged)
        self._end(terminateds, truncateds, self.env_t)
        self._last_step_time = time.perf_counter()
        self._start_time = self._start_time or self._last_step_time

    def attach(self, agent_id: AgentID, episode: SingleAgentEpisode) -> None:
        """Begins a life of an agent.

        Raises:
            EpisodeError: If the agent's former life has not ended.
        """
        former = self.agent_episodes.get(agent_id)
        if former is not None:
            if not former.is_done:
                raise EpisodeError(f"{self._who}: agent {agent_id!r} begins a life, but has not ended the last.")
            self.past_agent_episodes.append(former)
        self.agent_episodes[agent_id] = episode

    def _join(self, agent_id: AgentID, id_: EpisodeID | None = None) -> SingleAgentEpisode:
        def space_of(whole: Any) -> Any:
            return whole.get(agent_id) if isinstance(whole, Mapping) else whole

        episode = SingleAgentEpisode.from_storage(
            ListStorage(),
            id_=f"{self.id_}/{agent_id}/{self.env_t}" if id_ is None else id_,
            agent_id=agent_id,
            module_id=self.module_for(agent_id),
            multi_agent_episode_id=self.id_,
            observation_space=space_of(self.observation_space),
            action_space=space_of(self.action_space),
        )
        self.attach(agent_id, episode)
        return episode

    def _acting(self, agent_id: AgentID) -> SingleAgentEpisode:
        episode = self.agent_episodes.get(agent_id)
        if episode is None:
            known = did_you_mean(agent_id, self.agent_episodes)
            raise EpisodeError(f"{self._who}: agent {agent_id!r} acts, but has not observed anything. {known}")
        if episode.is_done:
            raise EpisodeError(f"{self._who}: agent {agent_id!r} acts, but has ended. Leave its action out.")
        if episode.storage.pending() is not None:
            raise EpisodeError(
                f"{self._who}: agent {agent_id!r} acts twice without an observation in between. Add the observation it "
                f"acted upon."
            )
        return episode

    def _credit(self, agent_id: AgentID, reward: float) -> None:
        if agent_id in self.agent_episodes:
            self.agent_episodes[agent_id].credit(reward)
        else:
            self._unclaimed[agent_id] = self._unclaimed.get(agent_id, 0.0) + reward

    def _observe(self, agent_id: AgentID, observation: Any, infos: PerAgent | None, flagged: bool) -> None:
        episode = self.agent_episodes.get(agent_id)
        ended = agent_id in self._ended_before if episode is None else episode.is_done
        if observation is None or (ended and flagged):
            return
        if episode is None or episode.is_done:
            episode = self._join(agent_id)
        episode.observe(observation, infos, self.env_t)

    def _end(self, terminateds: PerAgent, truncateds: PerAgent, t: int | None) -> None:
        """Sets the agents' done flags, then the episode's."""
        every = bool(terminateds.get(ALL)), bool(truncateds.get(ALL))
        for agent_id, episode in self.agent_episodes.items():
            terminated, truncated = bool(terminateds.get(agent_id)), bool(truncateds.get(agent_id))
            if not (terminated or truncated):
                terminated, truncated = every
            if (terminated or truncated) and not episode.is_done:
                episode.end(terminated=terminated, truncated=truncated, t=t)
        episodes = self.agent_episodes.values()
        over = bool(episodes) and all(episode.is_done for episode in episodes)
        before = any(cut for agent_id, cut in self._ended_before.items() if agent_id not in self.agent_episodes)
        self.is_terminated = every[0] or (over and not before and all(episode.is_terminated for episode in episodes))
        self.is_truncated = every[1] or (over and (before or any(episode.is_truncated for episode in episodes)))
