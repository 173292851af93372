"""The episodes that a runner's environment copies are in the middle of: how they begin, end and are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.env_runners.agent_modules import AgentModules
from marl_connectors.env_runners.copy_lanes import CopyLanes
from marl_connectors.env_runners.data_checks import bad_observation
from marl_connectors.env_runners.done_episodes import DoneEpisode, Episode
from marl_connectors.env_runners.episode_metrics import EpisodeTally
from marl_connectors.env_runners.joint_episodes import JointEpisodes, Modules
from marl_connectors.env_runners.lanes import Lane, LaneGroup
from marl_connectors.env_runners.lives import LiveViews
from marl_connectors.environments.env_failures import FailureCounts
from marl_connectors.environments.env_states import joined_states
from marl_connectors.environments.garbage_pauses import without_collections
from marl_connectors.environments.vector_env import EnvCopy, Transition, VectorEnv
from marl_connectors.episodes.agent_views import EndedViews, agent_episode_id
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.rollout import take
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, EpisodeID, ModuleID, Tree

if TYPE_CHECKING:
    from marl_connectors.env_runners.episode_callbacks import EpisodeCallbacks

_PACK_AFTER = 1000
"""Env steps after which an episode's actions are packed: few episodes are that long, and those that are not are spared
the work."""


class OngoingEpisodes(JointEpisodes):
    """Begins, ends and cuts episodes as the environments go on.

    Attributes:
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
        super().__init__(vector_env, CopyLanes(len(vector_env.copies), agent_spaces, rl_module, lookback))
        self.lost = FailureCounts()
        self._modules = AgentModules(policy_mapping_fn, rl_module, action_spaces)
        self._rl_module = rl_module
        self._single_agent = single_agent
        self._lookback = lookback

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
        self._modules.set_mapping(policy_mapping_fn)

    # Beginnings.

    @without_collections
    def reset(self) -> list[Any]:
        """Starts a new episode in every copy, dropping what goes on; all agents' first observations, by copy."""
        copies = self._vector_env.copies
        self.done = []
        self._modules.forget()
        if self.told is not None:
            self.told.create(copies)
        first = self._vector_env.reset_all()
        self.lanes.clear()
        begun = [self._mapped(copy) for copy in copies]
        self.lanes.make_room([modules for _, modules in begun])
        self.ongoing[:] = [self._begin_episode(copy, *own) for copy, own in zip(copies, begun, strict=True)]
        for copy, (_, infos) in zip(copies, first, strict=True):
            self.lanes.write_infos(copy.index, infos)
        return [
            observations[agent_id]
            for copy, (observations, _) in zip(copies, first, strict=True)
            for agent_id in copy.agents
        ]

    def _mapped(self, copy: EnvCopy) -> tuple[MultiAgentEpisode | None, Modules]:
        if self._single_agent:
            return None, dict.fromkeys(copy.agents, DEFAULT_MODULE_ID)
        episode: Any = (
            self.empty_episode(f"{copy.index}-{copy.episode_number}")
            if self.told is None
            else self.told.take_created(copy)
        )
        return episode, self._modules.of_agents(episode, copy.agents)

    def empty_episode(self, id_: EpisodeID) -> Episode:
        """An episode that has not begun."""
        if self._single_agent:
            return SingleAgentEpisode(id_)
        return MultiAgentEpisode.from_agent_episodes(
            id_, {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=self._modules.mapping
        )

    def _begin_episode(self, copy: EnvCopy, episode: MultiAgentEpisode | None, modules: Modules) -> Episode:
        """Lets the agents begin, in new lanes, or in those that they have."""
        index = copy.index
        lanes = self.lanes.by_copy[index]
        self._tallies[index] = EpisodeTally()
        self._begun[index] = modules
        for agent_id, module_id in modules.items():
            lane = lanes.get(agent_id) or self.lanes.open(index, agent_id, module_id)
            if episode is not None:
                self._modules.check_fit(lane, module_id)
            lane.module_id = module_id
            lane.begin()
        return self._of_lanes(index, episode)

    def _of_lanes(self, index: int, episode: MultiAgentEpisode | None) -> Episode:
        lanes = self.lanes.by_copy[index]
        if episode is None:
            (lane,) = lanes.values()
            copy = self._vector_env.copies[index]
            view = lane.view(f"{index}-{copy.episode_number}")
            if self.told is not None:
                lane.episode = self.told.take_created(copy)
                lane.episode.go_on_in(view)
            return lane.episode
        episode.let_be_views(LiveViews.of(lanes))
        return episode

    def _begin_agent(self, episode: MultiAgentEpisode, env_index: int, agent_id: AgentID) -> None:
        """An agent joins an episode that goes on."""
        _ = episode.agent_episodes  # views of the others are made now at the latest, while they are alone
        module_id = self._modules.of_agent(episode, agent_id)
        lane = self.lanes.open(env_index, agent_id, module_id)
        self._modules.check_fit(lane, module_id)
        lane.module_id = module_id
        lane.begin()
        id_ = agent_episode_id(episode.id_, agent_id, episode.env_t)
        episode.attach(agent_id, lane.view(id_, agent_id, module_id, episode.id_))

    def _welcome(self, copy: EnvCopy, transition: Transition) -> None:
        """Agents that were not there before the step begin a life."""
        episode, lanes = self.ongoing[copy.index], self.lanes.by_copy[copy.index]
        assert isinstance(episode, MultiAgentEpisode)
        episode.env_t = copy.t
        for agent_id in copy.agents:
            if agent_id not in lanes:
                self._begin_agent(episode, copy.index, agent_id)
        self.lanes.write_infos(copy.index, transition.infos)

    # Ends.

    @without_collections
    def follow(self, transitions: Sequence[Transition], reset: Callable[[], None]) -> bool:
        """Ends and begins episodes as copies report.

        Args:
            transitions: What they report.
            reset: Resets those that await it, before their next episodes begin.

        Returns:
            True if lanes were opened or closed, or changed their module.
        """
        self._ended, num_done, over = {}, len(self.done), []
        joint, others = self._sorted(transitions) if self.told is None else (None, transitions)
        rearranged = joint is not None and self._follow_jointly(joint)
        observed = self._observe_last(others)
        for transition in others:
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
        if joint is not None and others:
            self.done[num_done:] = sorted(self.done[num_done:], key=attrgetter("env_index"))
        if self._vector_env.has_rests:
            for transition in transitions:
                rearranged |= self.lanes.set_rest(self._vector_env.copies[transition.index])
        return rearranged

    def _observe_last(self, transitions: Sequence[Transition]) -> set[Lane]:
        """Writes the last observations of all agents of copies that are over, if they fit; whose. A hot path."""
        ends: dict[LaneGroup, list[tuple[Lane, Any, int, Tree | None]]] = {}
        for transition in transitions:
            if transition.is_over and not transition.is_dropped:
                for agent_id, lane in self.lanes.by_copy[transition.index].items():
                    observation = transition.observations.get(agent_id)
                    if observation is not None:
                        ends.setdefault(lane.group, []).append((lane, observation, transition.t, transition.state))
        observed: set[Lane] = set()
        for group, own in ends.items():
            lanes, observations, times, states = zip(*own, strict=True)
            positions = group.rollout.cursor[[lane.number for lane in lanes]]
            try:
                values = spaces.stack(observations, group.rollout.observation_space)
                group.rollout.observe(positions, values, np.array(times), joined_states(states))
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
            rollout.infos[position] = info
        self._ended.setdefault(lane.env_index, (self.ongoing[lane.env_index], []))[1].append(lane.episode)  # type: ignore[union-attr]
        terminated = bool(transition.terminations.get(agent_id))
        truncated = bool(transition.truncations.get(agent_id)) and not terminated
        paid, steps = lane.end_episode(position, terminated, truncated)
        self._tallies[lane.env_index].end_life(agent_id, lane.module_id, paid, truncated, steps)

    def _observe_end(self, transition: Transition, lane: Lane, position: int) -> None:
        rollout, observation = lane.group.rollout, transition.observations.get(lane.agent_id)
        here = slice(position, position + 1)
        if observation is None:
            before = position - rollout.num_lanes
            newest = take(rollout.source(Columns.OBS), slice(before, before + 1))
            rollout.observe(here, newest, transition.t, transition.state)
            return
        try:
            values = spaces.stack([observation], rollout.observation_space)
            rollout.observe(here, values, transition.t, transition.state)
        except (TypeError, ValueError) as error:
            raise bad_observation(lane, self._vector_env, observation, [transition]) from error

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

    def _begin_after(self, copy: EnvCopy, begun: tuple[MultiAgentEpisode | None, Modules] | None = None) -> bool:
        lanes = self.lanes.by_copy[copy.index]
        before = {agent_id: lane.module_id for agent_id, lane in lanes.items()}
        episode, modules = begun or self._mapped(copy)
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
        lanes, agent_ids = self.lanes.of_copies(range(len(self.ongoing))), self.lanes.in_arrays().agent_ids
        none = np.zeros(len(lanes.number), bool)
        ended = lanes.ended(none, none)
        own = [(group, numbers, ended.stop_row[at], group.returns(numbers)) for group, at, numbers in lanes.by_group()]
        for group in self.lanes.groups:
            group.restart(num_rows)
        for group, numbers, last_rows, returns in own:
            group.lives.go_on(numbers, last_rows, returns, self._lookback)
        for copy, begin in zip(self._vector_env.copies, lanes.begins.tolist(), strict=True):
            copy.pack_history(at_least=_PACK_AFTER)
            former = self.ongoing[copy.index]
            was_asked_for = not isinstance(former, MultiAgentEpisode) or former.agent_views is None
            self._freeze(copy.index, EndedViews(ended, begin, agent_ids[copy.index]))
            if was_asked_for:
                for lane in self.lanes.by_copy[copy.index].values():
                    lane.continue_episode()
            successor = self._continued_episode(copy, former.id_, was_asked_for)
            if isinstance(successor, MultiAgentEpisode):
                successor.remember_from(former)  # type: ignore[arg-type]
            self.ongoing[copy.index] = successor
        return chunks

    def _continued_episode(self, copy: EnvCopy, id_: str, with_views: bool) -> Episode:
        """A chunk that goes on where the lanes stand, which have views of their own, or not yet."""
        lanes = self.lanes.by_copy[copy.index]
        if self._single_agent:
            return next(iter(lanes.values())).episode
        episode = MultiAgentEpisode.from_agent_episodes(
            id_,
            {agent_id: lane.episode for agent_id, lane in lanes.items()} if with_views else {},
            env_t_started=copy.t,
            env_t=copy.t,
            agent_to_module_mapping_fn=self._modules.mapping,
        )
        if not with_views:
            episode.let_be_views(LiveViews.of(lanes))
        return episode
