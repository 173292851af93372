"""The episodes that a runner's environment copies are in the middle of: how they begin, end and are cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Dict as DictSpace

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.common.agent_to_module_mapping import unknown_module
from marl_connectors.env_runners.copy_lanes import CopyLanes
from marl_connectors.env_runners.data_checks import bad_observation
from marl_connectors.env_runners.done_episodes import DoneEpisode, Episode
from marl_connectors.env_runners.episode_metrics import EpisodeTally
from marl_connectors.env_runners.lanes import Lane, LaneGroup
from marl_connectors.environments.env_copy import copied_info
from marl_connectors.environments.env_failures import FailureCounts
from marl_connectors.environments.garbage_pauses import without_collections
from marl_connectors.environments.vector_env import EnvCopy, Transition, VectorEnv
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.multi_agent_growth import agent_episode_id
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.rollout import take
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import MappingError
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, EpisodeID, ModuleID

if TYPE_CHECKING:
    from marl_connectors.env_runners.episode_callbacks import EpisodeCallbacks

_PACK_AFTER = 1000
"""Env steps after which an episode's actions are packed: few episodes are that long, and those that are not are spared
the work."""


class OngoingEpisodes:
    """Begins, ends and cuts episodes as the environments go on.

    Attributes:
        lanes: Who is in which lane.
        ongoing: Each copy's episode.
        done: The episodes that ended and were not taken yet.
        ended: Episodes in which agents ended in the newest step.
        ended_agents: The agent episodes that did.
        lost: What failures of copies have cost.
        told: Who is told of episodes' beginnings and ends, if anybody is.
    """

    told: EpisodeCallbacks | None = None

    def __init__(
        self,
        vector_env: VectorEnv,
        agent_spaces: Callable[[AgentID], tuple[Space, Space]],
        policy_mapping_fn: Callable[..., ModuleID],
        rl_module: MultiRLModule,
        *,
        single_agent: bool,
        lookback: int,
        action_spaces: Space | None = None,
    ):
        self._action_spaces = action_spaces  # by agent, as the env-to-module pipeline has changed them
        self.lanes = CopyLanes(len(vector_env.copies), agent_spaces, rl_module, lookback)
        self.ongoing: list[Episode] = []
        self.done: list[DoneEpisode] = []
        self.ended: list[Episode] = []
        self.ended_agents: list[SingleAgentEpisode] = []
        self.lost = FailureCounts()
        self._vector_env = vector_env
        self._mapping = policy_mapping_fn
        self._rl_module = rl_module
        self._single_agent = single_agent
        self._lookback = lookback
        self._tallies = [EpisodeTally() for _ in vector_env.copies]
        self._fitting: set[tuple[int, ModuleID]] = set()

    def take_done(self) -> list[DoneEpisode]:
        """The episodes that ended since the last call."""
        done, self.done = self.done, []
        return done

    def sync(self) -> None:
        """Tells the multi-agent episodes what env step they are at."""
        if not self._single_agent:
            for episode, copy in zip(self.ongoing, self._vector_env.copies, strict=True):
                episode.env_t = copy.t  # type: ignore[union-attr]

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., ModuleID]) -> None:
        """For episodes that begin from now on."""
        self._mapping = policy_mapping_fn

    # Beginnings.

    @without_collections
    def reset(self) -> list[Any]:
        """Starts a new episode in every copy, dropping what goes on; all agents' first observations, by copy."""
        copies = self._vector_env.copies
        self.done = []
        self._fitting = set()
        if self.told is not None:
            self.told.create(copies)
        first = self._vector_env.reset_all()
        self.lanes.restart()
        begun = [self._mapped(copy) for copy in copies]
        self.lanes.make_room([modules for _, modules in begun])
        self.ongoing = [self._begin_episode(copy, *own) for copy, own in zip(copies, begun, strict=True)]
        for copy, (_, infos) in zip(copies, first, strict=True):
            self.lanes.write_infos(copy.index, infos)
        return [
            observations[agent_id]
            for copy, (observations, _) in zip(copies, first, strict=True)
            for agent_id in copy.agents
        ]

    def _mapped(self, copy: EnvCopy) -> tuple[MultiAgentEpisode | None, dict[AgentID, ModuleID]]:
        """The copy's next episode, still without agents (None for a single one), and the modules of its agents."""
        if self._single_agent:
            return None, dict.fromkeys(copy.agents, DEFAULT_MODULE_ID)
        episode: Any = (
            self.empty_episode(f"{copy.index}-{copy.episode_number}")
            if self.told is None
            else self.told.take_created(copy)
        )
        return episode, {agent_id: self._module_for(episode, agent_id) for agent_id in copy.agents}

    def empty_episode(self, id_: EpisodeID) -> Episode:
        """An episode that has not begun."""
        if self._single_agent:
            return SingleAgentEpisode(id_)
        return MultiAgentEpisode.from_agent_episodes(
            id_, {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=self._mapping
        )

    def _begin_episode(
        self, copy: EnvCopy, episode: MultiAgentEpisode | None, modules: dict[AgentID, ModuleID]
    ) -> Episode:
        """Lets the agents begin, in new lanes, or in those that they have."""
        index = copy.index
        lanes = self.lanes.by_copy[index]
        self._tallies[index] = EpisodeTally()
        for agent_id, module_id in modules.items():
            lane = lanes.get(agent_id) or self.lanes.open(index, agent_id, module_id)
            if episode is None:
                lane.module_id = module_id
                own = lane.begin_episode(f"{index}-{copy.episode_number}")
                if self.told is not None:
                    lane.episode = self.told.take_created(copy)
                    lane.episode.go_on_in(own)
                return lane.episode
            self._begin_agent(episode, lane, module_id)
        assert episode is not None
        return episode

    def _begin_agent(self, episode: MultiAgentEpisode, lane: Lane, module_id: ModuleID) -> None:
        agent_id = lane.agent_id
        if (lane.group.index, module_id) not in self._fitting:
            self._check_fit(lane, module_id)
            self._fitting.add((lane.group.index, module_id))
        lane.module_id = module_id
        id_ = agent_episode_id(episode.id_, agent_id, episode.env_t)
        episode.attach(agent_id, lane.begin_episode(id_, agent_id, module_id, episode.id_))

    def _module_for(self, episode: MultiAgentEpisode, agent_id: AgentID) -> ModuleID:
        module_id = ask_mapping(episode, agent_id)
        if module_id not in self._rl_module:
            raise unknown_module(agent_id, module_id, self._rl_module)
        return module_id

    def _check_fit(self, lane: Lane, module_id: ModuleID) -> None:
        action_space, own = self._rl_module[module_id].action_space, lane.group.env_action_space
        if isinstance(self._action_spaces, DictSpace) and lane.agent_id in self._action_spaces.spaces:
            own = self._action_spaces[lane.agent_id]  # type: ignore[index]
        if action_space is not None and spaces.describe(action_space) != spaces.describe(own):
            raise MappingError(
                f"policy_mapping_fn: agent {lane.agent_id!r} maps to module {module_id!r}, whose actions are "
                f"{spaces.describe(action_space)}, but the agent's are {spaces.describe(own)}. Map agents with "
                f"different spaces to different modules."
            )

    def _welcome(self, copy: EnvCopy, transition: Transition) -> None:
        """Agents that were not there before the step begin a life."""
        episode, lanes = self.ongoing[copy.index], self.lanes.by_copy[copy.index]
        assert isinstance(episode, MultiAgentEpisode)
        episode.env_t = copy.t
        for agent_id in copy.agents:
            if agent_id not in lanes:
                module_id = self._module_for(episode, agent_id)
                self._begin_agent(episode, self.lanes.open(copy.index, agent_id, module_id), module_id)
        self.lanes.write_infos(copy.index, transition.infos)

    # Ends.

    @without_collections
    def follow(self, transitions: list[Transition], reset: Callable[[], None]) -> bool:
        """Ends and begins episodes as copies report.

        Args:
            transitions: What they report.
            reset: Resets those that await it, before their next episodes begin.

        Returns:
            True if lanes were opened or closed, or changed their module.
        """
        self.ended, self.ended_agents = [], []
        rearranged = False
        over = []
        observed = self._observe_last(transitions)
        for transition in transitions:
            copy = self._vector_env.copies[transition.index]
            lanes = self.lanes.by_copy[transition.index]
            if transition.begins:
                self.lanes.write_infos(copy.index, transition.first_infos)
                continue
            if transition.is_dropped:
                self._drop_episode(transition)
                over.append(transition)
                continue
            leaving = [a for a in lanes if transition.terminations.get(a) or transition.truncations.get(a)]
            if leaving:
                self.ended.append(self.ongoing[transition.index])
            for agent_id in leaving:
                self._end_agent(transition, lanes[agent_id], is_observed=lanes[agent_id] in observed)
            self._credit_strangers(transition)
            if transition.is_over:
                self._end_episode(transition)
                over.append(transition)
            else:
                self.lanes.close(copy.index, leaving)
                self._welcome(copy, transition)
                rearranged = True
        if self.told is not None:
            self.told.ended(over, self.ongoing)
            reset()
        for transition in over:
            copy = self._vector_env.copies[transition.index]
            rearranged |= self._begin_after(copy)
            self.lanes.write_infos(copy.index, transition.first_infos)
        if self._vector_env.has_rests:
            for transition in transitions:
                rearranged |= self.lanes.set_rest(self._vector_env.copies[transition.index])
        return rearranged

    def _observe_last(self, transitions: list[Transition]) -> set[Lane]:
        """Writes the last observations of all agents of copies that are over, if they fit; whose. A hot path."""
        ends: dict[LaneGroup, list[tuple[Lane, Any, int]]] = {}
        for transition in transitions:
            if transition.is_over and not transition.is_dropped:
                for agent_id, lane in self.lanes.by_copy[transition.index].items():
                    observation = transition.observations.get(agent_id)
                    if observation is not None:
                        ends.setdefault(lane.group, []).append((lane, observation, transition.t))
        observed: set[Lane] = set()
        for group, own in ends.items():
            lanes, observations, times = zip(*own, strict=True)
            positions = group.rollout.cursor[[lane.number for lane in lanes]]
            try:
                values = spaces.stack(observations, group.rollout.observation_space)
                group.rollout.observe(positions, values, np.array(times))
            except (TypeError, ValueError):
                continue  # whoever writes them one by one will find out which it is
            observed.update(lanes)
        return observed

    def _end_agent(self, transition: Transition, lane: Lane, is_observed: bool = False) -> None:
        rollout, agent_id = lane.group.rollout, lane.agent_id
        position = int(rollout.cursor[lane.number])
        if not is_observed:
            self._observe_end(transition, lane, position)
        info = transition.infos.get(agent_id)
        if info:
            rollout.infos[position] = copied_info(lane.env_index, agent_id, info)
        self.ended_agents.append(lane.episode)
        terminated = bool(transition.terminations.get(agent_id))
        truncated = bool(transition.truncations.get(agent_id)) and not terminated
        paid = lane.end_episode(position, terminated, truncated)
        self._tallies[lane.env_index].end_life(agent_id, lane.module_id, paid, truncated)

    def _observe_end(self, transition: Transition, lane: Lane, position: int) -> None:
        rollout, observation = lane.group.rollout, transition.observations.get(lane.agent_id)
        here = slice(position, position + 1)
        if observation is None:
            before = position - rollout.num_lanes
            rollout.observe(here, take(rollout.source(Columns.OBS), slice(before, before + 1)), transition.t)
            return
        try:
            rollout.observe(here, spaces.stack([observation], rollout.observation_space), transition.t)
        except (TypeError, ValueError) as error:
            raise bad_observation(lane, self._vector_env, observation) from error

    def _credit_strangers(self, transition: Transition) -> None:
        """Rewards of agents that did not act in this step: to their last action, or kept as not creditable."""
        episode = self.ongoing[transition.index]
        assert isinstance(episode, MultiAgentEpisode) or not transition.stray_rewards
        for agent_id, reward in transition.stray_rewards.items():
            agent_episode = episode.agent_episodes.get(agent_id)  # type: ignore[union-attr]
            if agent_episode is None:  # it never acted, or ended in an earlier chunk
                episode._credit(agent_id, reward)  # type: ignore[union-attr]
            elif len(agent_episode):
                agent_episode.set_rewards(new_data=agent_episode.get_rewards(-1) + reward, at_indices=-1)
            else:
                agent_episode.uncredited_reward += reward
            self._tallies[transition.index].pay(agent_id, reward)

    def _end_episode(self, transition: Transition) -> None:
        episode, tally = self.ongoing[transition.index], self._tallies[transition.index]
        tally.length = transition.t
        if isinstance(episode, MultiAgentEpisode):
            episode.env_t = transition.t
            episode.is_truncated = tally.is_truncated
            episode.is_terminated = not episode.is_truncated
        self.done.append(DoneEpisode(episode, transition.index, tally))

    def _drop_episode(self, transition: Transition) -> None:
        """Forgets the copy's episode, but for the chunks of it that were handed out, after a failed step."""
        episode = self.ongoing[transition.index]
        started = episode.env_t_started if isinstance(episode, MultiAgentEpisode) else episode.t_started
        self.lost.num_dropped_episodes += 1
        self.lost.num_dropped_env_steps += transition.t + 1 - started

    def _begin_after(self, copy: EnvCopy) -> bool:
        """The copy's next episode, after one that has ended; True if lanes were opened or closed, or changed module."""
        lanes = self.lanes.by_copy[copy.index]
        before = {agent_id: lane.module_id for agent_id, lane in lanes.items()}
        episode, modules = self._mapped(copy)
        fit = self.lanes.fit(copy.index, modules)
        if fit:
            for lane in lanes.values():
                lane.group.skip_row(lane)
        else:
            self.lanes.close(copy.index, list(lanes))
        self.ongoing[copy.index] = self._begin_episode(copy, episode, modules)
        return not fit or modules != before

    def ended_rows(self) -> list[ColumnGroup]:
        """The last observations of the agents that ended in the newest step, for pieces that write to episodes."""
        groups = []
        for group in self.lanes.groups:
            own = [e for e in self.ended_agents if e.storage.rollout is group.rollout]  # type: ignore[attr-defined]
            if own:
                rows = rows_of_episodes(own, list(self._rl_module.keys()), last_only=True)
                groups.append(ColumnGroup(rows))
        return groups

    # Cuts.

    @without_collections
    def cut(self, num_rows: int) -> list[Episode]:
        """Ends the fragment: all groups go on in fresh rollouts with room for ``num_rows`` more rows.

        Returns:
            The chunks of ongoing episodes that have at least one step.
        """
        self.sync()
        chunks = [episode for episode in self.ongoing if episode.env_steps() > 0]
        for group in self.lanes.groups:
            ends, returns = group.chunk_ends()
            group.restart(num_rows)
            for lane, last_row, chunk_return in zip(group.lanes, ends, returns, strict=True):
                lane.continue_episode(last_row)
                lane.earlier_return += chunk_return
        for copy in self._vector_env.copies:
            copy.pack_history(at_least=_PACK_AFTER)
            former = self.ongoing[copy.index]
            successor = self._continued_episode(copy, former.id_)
            if isinstance(successor, MultiAgentEpisode):
                successor.remember_from(former)  # type: ignore[arg-type]
            self.ongoing[copy.index] = successor
        return chunks

    def _continued_episode(self, copy: EnvCopy, id_: str) -> Episode:
        """A chunk that goes on where the lanes stand."""
        lanes = self.lanes.by_copy[copy.index]
        if self._single_agent:
            return next(iter(lanes.values())).episode
        return MultiAgentEpisode.from_agent_episodes(
            id_,
            {agent_id: lane.episode for agent_id, lane in lanes.items()},
            env_t_started=copy.t,
            env_t=copy.t,
            agent_to_module_mapping_fn=self._mapping,
        )


def ask_mapping(episode: MultiAgentEpisode, agent_id: AgentID) -> ModuleID:
    """The module that the policy mapping function names for an agent.

    Raises:
        MappingError: If the function raises, or gives anything but a string.
    """
    try:
        module_id = episode.module_for(agent_id)
    except MappingError:
        raise
    except Exception as error:
        raise MappingError(
            f"policy_mapping_fn raised {type(error).__name__} for agent {agent_id!r}: {error}. It is called as "
            f"policy_mapping_fn(agent_id, episode) and must return a module id."
        ) from error
    if not isinstance(module_id, str):
        raise MappingError(
            f"policy_mapping_fn: returned {module_id!r} for agent {agent_id!r}. It must return a module id, a string."
        )
    return module_id
