"""How a multi-agent episode grows, env step by env step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gymnasium.spaces import Dict

from marl_connectors.episodes.agent_views import agent_episode_id
from marl_connectors.episodes.batching import number, owned, owned_infos
from marl_connectors.episodes.growth import check_item
from marl_connectors.episodes.list_storage import ListStorage
from marl_connectors.episodes.multi_agent_access import MultiAgentAccess
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.storage import ACTIONS, OBS, REWARDS
from marl_connectors.errors import EpisodeError, did_you_mean
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, EpisodeID, ModuleID

AgentToModule: TypeAlias = Callable[[AgentID, Any], ModuleID]
PerAgent: TypeAlias = Mapping[Any, Any]
ALL = "__all__"
REMEMBERED_AGENTS = 1_000
"""So many of the agents that ended last are remembered by later chunks. Others leave nothing behind."""


class GrowingMultiAgentEpisode(MultiAgentAccess):
    """Takes in what the agents see, do and earn at each env step."""

    __slots__ = (
        "_ended_before",
        "_spaces_by_agent",
        "_truncated_before",
        "_unclaimed",
        "action_space",
        "agent_to_module_mapping_fn",
        "observation_space",
    )

    observation_space: Any
    action_space: Any
    agent_to_module_mapping_fn: AgentToModule | None
    _ended_before: dict[AgentID, bool]
    _truncated_before: bool
    _unclaimed: dict[AgentID, float]
    _spaces_by_agent: bool | None

    @property
    def is_reset(self) -> bool:
        """Whether any agent has observed anything."""
        return any(episode.is_reset for episode in self.all_agent_episodes())

    @property
    def is_numpy(self) -> bool:
        """Whether all agents' columns are arrays."""
        return bool(self.agent_episodes) and all(episode.is_numpy for episode in self.all_agent_episodes())

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
        unclaimed = sum(self._unclaimed.values()) if self._unclaimed else 0.0
        if self.agent_views is not None:  # of which nobody has credited any
            return unclaimed
        return unclaimed + sum(episode.uncredited_reward for episode in self.all_agent_episodes())

    def module_for(self, agent_id: AgentID) -> ModuleID:
        """Who chooses the agent's actions. Asks the mapping function once for each agent and episode."""
        known = self._module_of.get(agent_id)
        if known is None:
            episode = None if self.agent_views is not None else self.agent_episodes.get(agent_id)
            if episode is not None and episode.module_id is not None:
                known = episode.module_id
            else:
                mapping = self.agent_to_module_mapping_fn
                known = DEFAULT_MODULE_ID if mapping is None else mapping(agent_id, self)
            self._module_of[agent_id] = known
        return known

    def know_modules(self, module_of: Mapping[AgentID, ModuleID]) -> None:
        """Takes who chooses the actions of agents that the mapping function is not to be asked about."""
        self._module_of.update(module_of)

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
        now = self.env_t
        return {agent_id for agent_id, episode in self.agent_episodes.items() if episode.storage.newest_t == now}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """The sum of all agents' rewards in this chunk.

        Args:
            include_hanging_rewards: Adds what was paid so far for actions that still wait for an observation.
        """
        episodes = self.all_agent_episodes()
        total = sum(episode.get_return() for episode in episodes)
        if include_hanging_rewards:
            waiting = [episode.storage.pending() for episode in episodes]
            total += sum(float(row[REWARDS]) for row in waiting if row is not None)
        return float(total)

    def env_steps(self) -> int:
        """Env steps of this chunk."""
        return len(self)

    def agent_steps(self) -> int:
        """Steps of all agents in this chunk."""
        if self.agent_views is not None:
            return self.agent_views.agent_steps()
        newest = sum([len(episode.storage) for episode in self.agent_episodes.values()])
        return newest + sum([len(episode.storage) for episode in self.past_agent_episodes])

    def add_env_reset(self, *, observations: PerAgent, infos: PerAgent | None = None) -> None:
        """Adds what ``env.reset()`` returned, for the agents that observe at the start.

        Raises:
            EpisodeError: If the episode has begun already.
        """
        if self.is_reset or self.is_done or len(self):
            raise EpisodeError(f"{self.who}: add_env_reset() comes first and once, but there are data.")
        for agent_id, item, info in self._seen(observations, infos):
            self._observe(agent_id, item, info, False)
        self._tick()

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
            truncateds: Agent (or ``"__all__"``) to whether it was stopped. Its own flags go before ``"__all__"``. The
                episode is over when all agents have ended, unless ``"__all__"`` is False.
            extra_model_outputs: Agent to a dict of what its module put out along with the action.

        Raises:
            EpisodeError: If the episode is over, an agent acts that is not there, has ended or has nothing to act upon,
                or a reward is not a number. The episode is then as it was.
        """
        if self.is_terminated or self.is_truncated:
            raise EpisodeError(f"{self.who}: add_env_step() after the end of the episode. Start a new one.")
        self._check_mappings(actions, rewards, terminateds, truncateds, extra_model_outputs)
        outputs = extra_model_outputs or {}
        acting = self._acting(actions, outputs)
        earned = {
            agent_id: reward
            if type(reward) is float and reward - reward == 0.0
            else number(reward, f"{self.who}, agent {agent_id!r}")
            for agent_id, reward in rewards.items()
        }
        if self.check_spaces:
            self._check_spaces(actions, self.action_space, ACTIONS)
        seen = self._seen(observations, infos)
        self.env_t = t = self.env_t + 1
        closing = {agent_id for agent_id, _, _ in seen} & acting.keys() if len(acting) else ()
        for agent_id, item, info in seen:
            if agent_id in closing:
                storage, action, extras = acting.pop(agent_id)
                storage.append(item, action, earned.pop(agent_id, 0.0), info, extras, t)
        for storage, action, extras in acting.values():
            storage.act(action, extras)
        for agent_id, reward in earned.items():
            self._credit(agent_id, reward)
        if len(seen) > len(closing):
            for agent_id, item, info in seen:
                if agent_id not in closing:
                    flagged = bool((terminateds or {}).get(agent_id) or (truncateds or {}).get(agent_id))
                    self._observe(agent_id, item, info, flagged)
        if terminateds or truncateds:
            self._end(terminateds or {}, truncateds or {}, t)
        self._tick()

    def _check_mappings(self, *given: Any) -> None:
        """Checks that what came has agents for keys.

        Raises:
            EpisodeError: If not.
        """
        for items in given:
            if items is not None and not isinstance(items, (dict, Mapping)):
                raise EpisodeError(
                    f"{self.who}: dicts with an item for each agent are needed, but {items!r} ({type(items).__name__}) "
                    f"came."
                )

    def _seen(self, observations: PerAgent, infos: PerAgent | None) -> list[tuple[AgentID, Any, dict[str, Any]]]:
        """Who observes what, copied and checked: nothing can fail when it is written.

        Raises:
            EpisodeError: If there is something wrong with it.
        """
        if observations is None:
            raise EpisodeError(f"{self.who}: observations must be a dict, but None came. Give {{}} if nobody observes.")
        self._check_mappings(observations, infos)
        if ALL in observations:
            raise EpisodeError(f"{self.who}: {ALL!r} is no agent, but observes. It belongs among the done flags.")
        if self.check_spaces:
            self._check_spaces(observations, self.observation_space, OBS)
        seen = []
        for agent_id, observation in observations.items():
            if observation is None:
                continue
            item = owned(observation, self._space_of(self.observation_space, agent_id))
            info = infos.get(agent_id) if infos else None
            seen.append((agent_id, item, owned_infos(info, f"{self.who}, agent {agent_id!r}") if info else {}))
            if agent_id not in self.agent_episodes:
                self.module_for(agent_id)
        return seen

    def _acting(self, actions: PerAgent, outputs: PerAgent) -> dict[AgentID, tuple[ListStorage, Any, PerAgent]]:
        """Where the agents that act do so, and what they do, checked.

        Raises:
            EpisodeError: If an agent acts that is not there, has ended or has nothing to act upon.
        """
        acting: dict[AgentID, tuple[ListStorage, Any, PerAgent]] = {}
        for agent_id, action in actions.items():
            if action is None:
                continue
            episode = self.agent_episodes.get(agent_id)
            if episode is None:
                known = did_you_mean(agent_id, self.agent_episodes)
                raise EpisodeError(f"{self.who}: agent {agent_id!r} acts, but has not observed anything. {known}")
            if episode.is_terminated or episode.is_truncated:
                raise EpisodeError(f"{self.who}: agent {agent_id!r} acts, but has ended. Leave its action out.")
            storage = episode.acting_storage()
            extras = outputs.get(agent_id) or {}
            if tuple(extras) != storage.extras:
                storage.expect(extras, episode)
            item = action if type(action) is int else owned(action, episode.action_space)
            acting[agent_id] = (storage, item, extras)
        for agent_id in outputs:
            if agent_id not in acting:
                raise EpisodeError(f"{self.who}: agent {agent_id!r} has extra_model_outputs, but no action.")
        return acting

    def _check_spaces(self, items: PerAgent, whole: Any, name: str) -> None:
        for agent_id, item in items.items():
            space = self._space_of(whole, agent_id)
            if item is not None and space is not None:
                check_item(space, item, name, f"{self.who}, agent {agent_id!r}, env step {self.env_t}")

    def attach(self, agent_id: AgentID, episode: SingleAgentEpisode) -> None:
        """Begins a life of an agent.

        Raises:
            EpisodeError: If the agent's former life has not ended.
        """
        former = self.agent_episodes.get(agent_id)
        if former is not None:
            if not former.is_done:
                raise EpisodeError(f"{self.who}: agent {agent_id!r} begins a life, but has not ended the last.")
            self.past_agent_episodes.append(former)
        self.agent_episodes[agent_id] = episode

    def detach(self, agent_id: AgentID) -> None:
        """Undoes ``attach``: the agent's former life is its newest one again, if it had one."""
        del self.agent_episodes[agent_id]
        former = self.past_agent_episodes[-1:]
        if former and former[0].agent_id == agent_id:
            self.agent_episodes[agent_id] = self.past_agent_episodes.pop()

    def _join(self, agent_id: AgentID, id_: EpisodeID | None = None) -> SingleAgentEpisode:
        episode = SingleAgentEpisode.from_storage(
            ListStorage(),
            id_=agent_episode_id(self.id_, agent_id, self.env_t) if id_ is None else id_,
            agent_id=agent_id,
            module_id=self.module_for(agent_id),
            multi_agent_episode_id=self.id_,
            observation_space=self._space_of(self.observation_space, agent_id),
            action_space=self._space_of(self.action_space, agent_id),
        )
        self.attach(agent_id, episode)
        return episode

    def _space_of(self, whole: Any, agent_id: AgentID) -> Any:
        """One agent's space. A Dict space is for all agents, unless the first to observe is among its keys."""
        if isinstance(whole, Dict):
            if self._spaces_by_agent is None:
                self._spaces_by_agent = agent_id in whole.spaces
            return whole.spaces.get(agent_id) if self._spaces_by_agent else whole  # type: ignore[arg-type]
        return whole.get(agent_id) if isinstance(whole, Mapping) else whole

    def _credit(self, agent_id: AgentID, reward: float) -> None:
        if agent_id in self.agent_episodes:
            self.agent_episodes[agent_id].credit(reward)
        else:
            self._unclaimed[agent_id] = self._unclaimed.get(agent_id, 0.0) + reward

    def _observe(self, agent_id: AgentID, item: Any, info: dict[str, Any], flagged: bool) -> None:
        episode = self.agent_episodes.get(agent_id)
        ended = agent_id in self._ended_before if episode is None else episode.is_done
        if ended and flagged:
            return
        if episode is None or episode.is_done:
            episode = self._join(agent_id)
        episode.lists().observe(item, info, self.env_t)

    def _end(self, terminateds: PerAgent, truncateds: PerAgent, t: int | None) -> None:
        """Sets the agents' done flags, then the episode's."""
        if not (any(terminateds.values()) or any(truncateds.values())):
            return
        every = bool(terminateds.get(ALL)), bool(truncateds.get(ALL))
        for agent_id, episode in self.agent_episodes.items():
            terminated, truncated = bool(terminateds.get(agent_id)), bool(truncateds.get(agent_id))
            if not (terminated or truncated):
                terminated, truncated = every
            if (terminated or truncated) and not episode.is_done:
                episode.end(terminated=terminated, truncated=truncated, t=t)
        self.is_terminated, self.is_truncated = every
        if self._all_ended() and self._may_go_by_agents(terminateds, truncateds):
            lives = self.agent_episodes.values()
            cut_before = self._truncated_before or any(
                cut for agent_id, cut in self._ended_before.items() if agent_id not in self.agent_episodes
            )
            self.is_terminated |= not cut_before and all(episode.is_terminated for episode in lives)
            self.is_truncated |= cut_before or any(episode.is_truncated for episode in lives)

    def _all_ended(self) -> bool:
        """Whether there were agents, and none is left."""
        lives = self.agent_episodes.values()
        return bool(lives or self._ended_before) and all(episode.is_done for episode in lives)

    @staticmethod
    def _may_go_by_agents(terminateds: PerAgent, truncateds: PerAgent) -> bool:
        """Whether the end of all agents is the end of the episode: yes, unless the environment says otherwise."""
        said = [bool(flags[ALL]) for flags in (terminateds, truncateds) if ALL in flags]
        return not said or any(said)

    def remember_from(self, former: GrowingMultiAgentEpisode) -> None:
        """Takes over what outlives a chunk: the user's notes (copied), who maps to which module, and who has ended."""
        if former.agent_views is not None:  # all agents go on
            self._truncated_before = former._truncated_before
            self._module_of = dict(former._module_of)
            self._copy_notes(former)
            return
        live = {agent_id for agent_id, episode in former.agent_episodes.items() if not episode.is_done}
        ended = {agent_id: cut for agent_id, cut in former._ended_before.items() if agent_id not in live}
        for agent_id, episode in former.agent_episodes.items():
            if episode.is_done:
                ended.pop(agent_id, None)  # so that the newest come last
                ended[agent_id] = episode.is_truncated
        forgotten = list(ended)[: max(0, len(ended) - REMEMBERED_AGENTS)]
        self._truncated_before = former._truncated_before or any(ended[agent_id] for agent_id in forgotten)
        self._module_of = dict(former._module_of)
        for agent_id in forgotten:
            del ended[agent_id]
            self._module_of.pop(agent_id, None)
        self._ended_before = ended
        self._copy_notes(former)
