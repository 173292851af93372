"""The episode tracker: it records the steps of a runner's ongoing episodes, and begins, ends and cuts episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.callbacks import CallbackCalls
from marl_connectors.columns import Columns
from marl_connectors.env_runners.agent_modules import AgentModules
from marl_connectors.env_runners.data_checks import bad_observation, bad_observations, bad_rewards
from marl_connectors.env_runners.done_episodes import DoneEpisode, Episode
from marl_connectors.env_runners.episode_callbacks import EPISODE_CALLBACKS, EpisodeCallbacks
from marl_connectors.env_runners.lane_group import Lane, LaneGroup, LanesState, LaneState, LiveViews, RestoredLanes
from marl_connectors.env_runners.lane_table import EnvLanes, LaneTable
from marl_connectors.env_runners.run_metrics import EpisodeSummary, end_together
from marl_connectors.environments.rules.env_failures import FailureCounts
from marl_connectors.environments.rules.step_result import EpisodeEnds, Event, StepResult, joined_states
from marl_connectors.environments.vector.action_history import ActionHistory, ActionHistoryState
from marl_connectors.environments.vector.garbage_pauses import without_collections
from marl_connectors.environments.vector.sub_environment import SubEnvironment, not_repeatable
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.episodes.action_units import MODULE
from marl_connectors.episodes.agent_views import AgentChunk, EndedViews
from marl_connectors.episodes.batch import ColumnGroup
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode, agent_episode_id
from marl_connectors.episodes.packing import chunks_of, rows_of_episodes
from marl_connectors.episodes.rollout import Positions, take
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.episodes.state import decode, encode
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.state import ID, State
from marl_connectors.trees import leaves, tree_map
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, EpisodeID, ModuleID, Tree

_PACK_AFTER = 1000
"""The number of env steps after which an episode's actions are packed. Packing is work, and few episodes are longer."""
_Modules = Mapping[AgentID, ModuleID]


class OngoingEpisodeState(State):
    """The state of the ongoing episode of a sub-environment.

    Attributes:
        actions: All actions so far, from which the episode is replayed.
        summary: The returns of the agents that have ended.
        tasks: The task of an environment with a curriculum at the newest reset and now; None for other environments.
        groups: The agents that take part now and their rows, group by group.
        custom_data: What callbacks and pieces have left in the episode, if it is of several agents.
        modules: The module of each agent that the episode remembers.
        ended: The agents that ended in earlier chunks, and whether each was truncated.
        any_truncated: Whether an agent that the episode does not remember was truncated.
    """

    actions: ActionHistoryState
    summary: EpisodeSummary
    tasks: tuple[Any, Any]
    groups: list[LanesState]
    custom_data: dict[str, Any] = {}
    modules: dict[ID, ModuleID] = {}
    ended: dict[ID, bool] = {}
    any_truncated: bool = False


class EpisodeTracker:
    """Records the rewards and observations of sub-environments, and begins and ends episodes.

    An agent that acts gets a reward and the next observation for its action. If all agents of a sub-environment act in
    each step, both come with the same step. In turn-based sub-environments, an agent waits until a later step returns
    them. In both cases a ``StepResult`` contains the rewards and observations. Its events and ends contain beginnings
    and ends of episodes and agents, failures, and rewards of absent agents.

    Attributes:
        lanes: The lane of each agent.
        lookback: The number of earlier steps that a chunk of an episode keeps.
        done: The episodes that have ended and were not taken yet.
        vector_step: The number of steps of all sub-environments in the current sample. The runner sets it.
        lost: The counts of failures, dropped episodes and dropped env steps.
        callbacks: Calls the callbacks for beginnings, steps and ends of episodes. None if there are none.
    """

    callbacks: EpisodeCallbacks | None = None

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
        observation_spaces: Space | None = None,
        action_units: str = MODULE,
    ):
        """Creates a tracker without episodes.

        Args:
            vector_env: The sub-environments. None of them has been reset.
            agent_spaces: Returns an agent's observation space and action space.
            policy_mapping_fn: The function ``fn(agent_id, episode)`` that returns a module id.
            rl_module: The modules.
            single_agent: Whether the episodes are SingleAgentEpisodes.
            lookback: The number of earlier steps that a chunk of an episode keeps.
            action_spaces: The action space of each agent, as the env-to-module pipeline has changed them.
            observation_spaces: The observation space of each agent, as the env-to-module pipeline has changed them. It
                is needed if agents may be mapped to modules that were built for other agents.
            action_units: What the actions of the modules are, of ``action_units.ALL``.
        """
        num_envs = len(vector_env.sub_envs)
        self.lanes = LaneTable(num_envs, agent_spaces, rl_module, lookback, action_units)
        self.done: list[DoneEpisode] = []
        self.vector_step = 0
        self.lost = FailureCounts()
        self._vector_env = vector_env
        self._modules = AgentModules(policy_mapping_fn, rl_module, action_spaces, observation_spaces)
        self._rl_module = rl_module
        self._single_agent = single_agent
        self.lookback = lookback
        self._summaries = [EpisodeSummary() for _ in range(num_envs)]
        self._begun: list[_Modules] = [{} for _ in range(num_envs)]  # the modules at the beginning of the episode
        # By env_index, if agents ended in the newest step: the episode, and these agents' episodes (None for all).
        self._ended: dict[int, tuple[Episode, list[SingleAgentEpisode] | None]] = {}
        self._observed: list[Tree] | None = None  # by group, in the order of its lanes; used if pieces change them

    def set_callbacks(self, calls: CallbackCalls, arguments: Callable[[], Mapping[str, Any]]) -> None:
        """Sets the callbacks. If none of them concerns episodes, steps cost nothing more.

        Args:
            calls: The callbacks.
            arguments: Returns the arguments of every callback in addition to the episode and the ``env_index``.
        """
        if calls.wants(*EPISODE_CALLBACKS):
            self._vector_env.resets_late = True
            self.callbacks = EpisodeCallbacks(
                calls,
                arguments,
                sub_envs=self._vector_env.sub_envs,
                ongoing=self.ongoing,
                make_episode=self.empty_episode,
                sync=self.sync,
            )

    # Episodes.

    @property
    def ongoing(self) -> list[Episode]:
        """The ongoing episode of each sub-environment."""
        return self.lanes.ongoing

    def acting(self) -> list[Episode]:
        """Returns the episodes whose agents act next."""
        if not (self._vector_env.turn_based or self._vector_env.has_reset_steps):
            return self.ongoing
        sub_envs = self._vector_env.sub_envs
        return [
            e for e, sub_env in zip(self.ongoing, sub_envs, strict=True) if sub_env.agents and not sub_env.is_reset_step
        ]

    def in_rollouts(self) -> list[tuple[int, Episode]]:
        """Returns all episodes with rows in the rollouts, each with its ``env_index``. Ended episodes come first."""
        return [(entry.env_index, entry.episode) for entry in self.done] + list(enumerate(self.ongoing))

    @property
    def ended(self) -> list[Episode]:
        """The episodes in which agents ended in the newest step, in the order of the sub-environments."""
        return [episode for _, (episode, _) in sorted(self._ended.items(), key=itemgetter(0))]

    @property
    def _ended_agents(self) -> list[SingleAgentEpisode | AgentChunk]:
        """The episodes of the agents that ended in the newest step. No views are created for this."""
        found: list[SingleAgentEpisode | AgentChunk] = []
        for _, (episode, agent_episodes) in sorted(self._ended.items(), key=itemgetter(0)):
            found += chunks_of([episode]) if agent_episodes is None else agent_episodes
        return found

    def ended_rows(self) -> list[ColumnGroup]:
        """Returns the rows of the last observations of the agents that ended in the newest step, group by group.

        The groups are sorted, so that their order does not depend on the order in which agents joined.
        """
        by_rollout: dict[int, list[SingleAgentEpisode | AgentChunk]] = {}
        for own in self._ended_agents:
            storage: Any = own if isinstance(own, AgentChunk) else own.storage
            by_rollout.setdefault(id(storage.rollout), []).append(own)
        groups = sorted(self.lanes.groups, key=attrgetter("sort_key"))
        found = [by_rollout[id(group.rollout)] for group in groups if id(group.rollout) in by_rollout]
        module_ids = list(self._rl_module.keys())
        return [ColumnGroup(rows_of_episodes(own, module_ids, last_only=True)) for own in found]

    def take_done(self) -> list[DoneEpisode]:
        """Returns the episodes that ended since the last call."""
        done, self.done = self.done, []
        return done

    def sync(self) -> None:
        """Sets the env step of the ongoing multi-agent episodes."""
        if not self._single_agent:
            for episode, sub_env in zip(self.ongoing, self._vector_env.sub_envs, strict=True):
                episode.env_t = sub_env.t  # type: ignore[union-attr]

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., ModuleID]) -> None:
        """Sets the policy mapping function for episodes that begin from now on."""
        self._modules.set_mapping(policy_mapping_fn)

    # Beginnings of episodes.

    @without_collections()
    def reset(self) -> None:
        """Resets all sub-environments and begins an episode in each. Ongoing episodes are dropped."""
        sub_envs = self._vector_env.sub_envs
        if self.callbacks is not None:
            self.callbacks.create(sub_envs)
        first = self._vector_env.reset_all()
        self.begin_all()
        given = list(zip(sub_envs, first, strict=True))
        observations = [own[agent] for sub_env, (own, _) in given for agent in sub_env.agents]
        self.observe(StepResult([], observations, [(sub_env.index, infos) for sub_env, (_, infos) in given]))

    def begin_all(self) -> None:
        """Begins an episode in every sub-environment, after all have been reset, without the first observations."""
        sub_envs = self._vector_env.sub_envs
        self.done = []
        self._modules.forget()
        self.lanes.clear()
        begun = [self._mapped(sub_env) for sub_env in sub_envs]
        self.lanes.open_all([modules for _, modules in begun])
        self.ongoing[:] = [self._begin_episode(sub_env, *own) for sub_env, own in zip(sub_envs, begun, strict=True)]
        self.arrange()

    def _mapped(self, sub_env: SubEnvironment) -> tuple[MultiAgentEpisode | None, _Modules]:
        """Returns the next episode of a sub-environment, without agents, and the modules of its agents.

        The episode is None for single-agent runners.
        """
        if self._single_agent:
            return None, dict.fromkeys(sub_env.agents, DEFAULT_MODULE_ID)
        episode: Any = (
            self.empty_episode(sub_env.episode_id()) if self.callbacks is None else self.callbacks.take_created(sub_env)
        )
        return episode, self._modules.of_agents(episode, sub_env.agents)

    def empty_episode(self, id_: EpisodeID) -> Episode:
        """Returns an empty episode."""
        if self._single_agent:
            return SingleAgentEpisode(id_)
        return MultiAgentEpisode.from_agent_episodes(
            id_, {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=self._modules.mapping
        )

    def _begin_episode(self, sub_env: SubEnvironment, episode: MultiAgentEpisode | None, modules: _Modules) -> Episode:
        """Begins an episode in the lanes of its agents, and returns it."""
        index = sub_env.index
        lanes = self.lanes.by_env[index]
        self._summaries[index] = EpisodeSummary()
        self._begun[index] = modules
        if episode is not None:
            for agent_id, module_id in modules.items():
                self._modules.check_fit(lanes[agent_id], module_id)
        return self._of_lanes(index, episode)

    def _of_lanes(self, index: int, episode: MultiAgentEpisode | None) -> Episode:
        """Returns an episode that begins in the lanes of a sub-environment's agents."""
        lanes = self.lanes.by_env[index]
        if episode is None:
            (lane,) = lanes.values()
            sub_env = self._vector_env.sub_envs[index]
            view = lane.view(sub_env.episode_id())
            if self.callbacks is not None:
                lane.episode = self.callbacks.take_created(sub_env)
                lane.episode.continue_in(view)
            return lane.episode
        episode.let_be_views(LiveViews(lanes))
        return episode

    def _begin_agents(self, events: Sequence[Event]) -> bool:
        """Lets agents join ongoing episodes, and returns whether there are any."""
        joining: list[tuple[int, AgentID, ModuleID]] = []
        for event in events:
            sub_env, lanes = self._vector_env.sub_envs[event.index], self.lanes.by_env[event.index]
            episode: Any = self.ongoing[event.index]
            episode.env_t = sub_env.t
            for agent_id in sub_env.agents:
                if agent_id not in lanes:
                    _ = episode.agent_episodes  # creates the other agents' views before this agent joins
                    joining.append((event.index, agent_id, self._modules.of_agent(episode, agent_id)))
        self.lanes.open(joining)
        for env_index, agent_id, module_id in joining:
            lane, episode = self.lanes.by_env[env_index][agent_id], self.ongoing[env_index]
            self._modules.check_fit(lane, module_id)
            id_ = agent_episode_id(episode.id_, agent_id, episode.env_t)
            episode.attach(agent_id, lane.view(id_, agent_id, module_id, episode.id_))
        return bool(joining)

    # Steps.

    def acted(self) -> None:
        """Marks the agents that have just acted in turn-based sub-environments as waiting for their result."""
        for group, _ in self.lanes.live:
            group.wait()

    def apply(self, result: StepResult, reset_over: Callable[[StepResult], None]) -> bool:
        """Records the result of a step, except for the observations of the agents that act next.

        Args:
            result: The result of the step.
            reset_over: Resets the sub-environments whose reset is late, before their next episodes begin.

        Returns:
            True if the lane layout changes, because other lanes act next or lanes got other modules. Then the layout
            must be computed again.
        """
        self._ended = {}
        if result.rewarded is None:
            for i, (group, pick) in enumerate(self.lanes.live):
                own = result.rewards if pick is None or result.in_rows else pick(result.rewards)
                self._credit(group, own[i] if result.in_rows else own, result)
                group.advance()
        else:
            for event in result.events:
                self._credit_uncredited(event)
            self._credit_waiting(result)
        if result.ends is None and not result.events:
            return result.rewarded is not None
        if self._follow(result, reset_over) or result.rewarded is not None:
            return True
        for group in self.lanes.groups:
            group.locate()
        return False

    def observe(self, result: StepResult) -> None:
        """Records the observations and infos of the agents that act next."""
        states = self._vector_env.states()
        items = result.observations
        for i, (group, pick) in enumerate(self.lanes.live):
            if result.in_rows:  # a tuple is a tree of arrays here
                own = items[i]
            else:
                own = items if pick is None else pick(items)
                own = list(own) if type(own) is tuple else own
            of_rows = None if states is None else take(states, group.env_indices)
            try:
                group.rollout.observe(group.positions, own, group.t, of_rows)
            except (TypeError, ValueError) as error:
                raise bad_observations(group, self._vector_env, own) from error
        for env_index, infos in result.infos:
            self.lanes.write_infos(env_index, infos)

    def _credit(self, group: LaneGroup, rewards: Any, result: StepResult) -> None:
        try:
            values = np.array(rewards)
            if values.dtype.kind not in "fiub":
                raise TypeError("not numbers")
            group.rollout.columns[Columns.REWARDS][group.positions] = values
        except (TypeError, ValueError) as error:
            raise bad_rewards(group, self._vector_env, rewards, result) from error

    def _credit_waiting(self, result: StepResult) -> None:
        """Records the rewards of waiting agents for their last actions, and those of absent agents."""
        waiting: dict[LaneGroup, tuple[list[int], list[float]]] = {}
        assert result.rewarded is not None
        by_env = self.lanes.by_env
        for (env_index, agent_id), reward in zip(result.rewarded, result.rewards, strict=True):
            lane = by_env[env_index].get(agent_id)
            if lane is not None:  # the agent waits, as all agents of a turn-based sub-environment do
                numbers, rewards = waiting.setdefault(lane.group, ([], []))
                numbers.append(lane.number)
                rewards.append(reward)
            elif reward:
                self._credit_absent(env_index, agent_id, reward)
        for group, (numbers, rewards) in waiting.items():
            group.credit_and_advance(numbers, rewards)

    def undo_step(
        self,
        moved: Iterable[tuple[LaneGroup, np.ndarray | None, Positions]],
        joined: Iterable[tuple[int, AgentID]],
    ) -> None:
        """Undoes a step that failed before any agent acted. Then all lanes wait in the rows that they last acted on.

        Args:
            moved: For each group, the numbers of the lanes that ``apply`` moves, and their newest rows before the step;
                or None for all lanes that act, and the positions of these rows.
            joined: The ``env_index`` and the agent id of agents that may have joined in the step.
        """
        for group, numbers, places in moved:
            if numbers is None:
                group.rewind(group.acting_numbers, places)
            else:  # for agents that joined, the rollout may have been widened, which changes all positions
                assert not isinstance(places, slice)
                group.rewind(numbers, places * group.rollout.num_lanes + numbers)
        for env_index, agent_id in joined:
            lane, episode = self.lanes.by_env[env_index].get(agent_id), self.ongoing[env_index]
            if lane is None or not isinstance(episode, MultiAgentEpisode):
                continue
            if lane.has_episode and lane.episode is episode.agent_episodes.get(agent_id):
                episode.detach(agent_id)
            self.lanes.close([lane])
        self.lanes.arrange()

    def arrange(self) -> None:
        """Computes which lanes act next, and in what order."""
        self.lanes.arrange()
        self.set_clocks()

    def set_clocks(self) -> None:
        """Sets the env steps of the lanes, after episodes have begun."""
        self.lanes.set_clocks(np.array([sub_env.t for sub_env in self._vector_env.sub_envs]))

    # Ends of episodes.

    @without_collections()
    def _follow(self, result: StepResult, reset_over: Callable[[StepResult], None]) -> bool:
        """Ends and begins episodes.

        Returns:
            True if lanes were opened or closed, got another module, or began or stopped to rest.
        """
        num_done, ends = len(self.done), result.ends
        if ends is not None:
            self._end_together(ends, result)
        rearranged = self._follow_events(result)
        if self.callbacks is not None:
            self.callbacks.ended(result, self.ongoing)
            reset_over(result)
        if ends is not None:
            rearranged |= self._begin_together(ends.indices)
            if result.events:
                self.done[num_done:] = sorted(self.done[num_done:], key=attrgetter("env_index"))
        for event in result.events:
            if event.is_over:
                rearranged |= self._begin_after(self._vector_env.sub_envs[event.index])
        if self._vector_env.has_reset_steps:
            for index in {*result.over, *(event.index for event in result.events)}:
                rearranged |= self.lanes.set_reset_step(index, self._vector_env.sub_envs[index].is_reset_step)
        return rearranged

    def _end_together(self, ends: EpisodeEnds, result: StepResult) -> None:
        """Ends episodes for all of their agents."""
        # Many short episodes may end in each step, so only little more than a summary is created for each episode.
        lanes = self.lanes.of_envs(ends.indices)
        self._observe_ends(ends, lanes, result)
        ended = lanes.ended(ends.terminated, ends.truncated)
        returns = lanes.gathered(lambda group, numbers: group.total_returns(numbers))
        steps = ended.t_started + ended.stop_row - ended.start_row
        for index, infos in zip(ends.indices, ends.infos, strict=False):
            self.lanes.write_infos(index, infos)
        agent_ids, module_ids = zip(*map(self.lanes.members, ends.indices), strict=True)
        summaries = [self._summaries[index] for index in ends.indices]
        are_first = [summary.is_empty for summary in summaries]
        end_together(summaries, ends.t, agent_ids, module_ids, returns, ends.truncated, steps, lanes.begins)
        for index, begin, own, is_first in zip(ends.indices, lanes.begins.tolist(), agent_ids, are_first, strict=True):
            self._freeze(index, EndedViews(ended, begin, own))
            agent_episodes = None if is_first else [lane.episode for lane in self.lanes.by_env[index].values()]
            self._ended[index] = self.ongoing[index], agent_episodes
            self._end_episode(index, self._summaries[index])

    def _observe_ends(self, ends: EpisodeEnds, lanes: EnvLanes, result: StepResult) -> None:
        """Records the last observations in the newest rows of the agents' lanes."""
        env_of = np.repeat(np.arange(len(ends.t)), lanes.counts)
        t, given = np.array(ends.t)[env_of], ends.observations
        for group, places, numbers in lanes.by_group:
            rollout = group.rollout
            states = None if ends.states is None else take(ends.states, env_of[places])
            own = tree_map(lambda leaf, at=places: leaf[at], given) if not isinstance(given, list) else given
            if isinstance(given, list) and not isinstance(places, slice):
                own = [given[i] for i in places.tolist()]
            try:
                rollout.observe(rollout.cursor[numbers], own, t[places], states)
            except (TypeError, ValueError) as error:
                for lane, observation in zip(group.at(numbers), own, strict=False):
                    if not spaces.fits(rollout.observation_space, observation):
                        raise bad_observation(lane, self._vector_env, observation, result) from error
                raise

    def _freeze(self, index: int, views: EndedViews) -> None:
        """Fixes the ends of the agents' episodes, whether their views have been created or not."""
        episode = self.ongoing[index]
        if isinstance(episode, MultiAgentEpisode) and episode.agent_views is not None:
            episode.let_be_views(views)
            return
        for lane, end in zip(self.lanes.by_env[index].values(), views.ends(), strict=True):
            lane.storage.stop_row, lane.episode.is_terminated, lane.episode.is_truncated = end

    def _begin_together(self, indices: Sequence[int]) -> bool:
        """Begins the next episodes. Where agents and modules are the same as before, they keep their lanes.

        Returns:
            True if lanes were opened or closed, or got another module.
        """
        rearranged, again, known = False, [], None
        for index in indices:
            sub_env, lanes = self._vector_env.sub_envs[index], self.lanes
            episode, modules = self._mapped(sub_env)
            if modules is not known and lanes.modules_unchanged(modules.values()):
                known = modules
            begun = self._begun[index]
            is_same = modules is begun or modules == begun
            if is_same and modules is known and tuple(modules) == lanes.members(index)[0]:
                again.append((index, episode))
                self._begun[index] = modules
            else:
                rearranged |= self._begin_after(sub_env, (episode, modules))
        if again:
            for group, _, numbers in self.lanes.of_envs([index for index, _ in again]).by_group:
                group.begin_again(numbers)
        for index, episode in again:
            self._forget_views(index)
            self._summaries[index] = EpisodeSummary()
            self.ongoing[index] = self._of_lanes(index, episode)
        return rearranged

    def _forget_views(self, index: int) -> None:
        """Detaches the views of an episode that has ended from the lanes, if they have been created."""
        episode = self.ongoing[index]
        if not isinstance(episode, MultiAgentEpisode) or episode.agent_views is None:
            for lane in self.lanes.by_env[index].values():
                lane.forget_episode()

    def _begin_after(
        self, sub_env: SubEnvironment, begun: tuple[MultiAgentEpisode | None, _Modules] | None = None
    ) -> bool:
        """Begins the next episode after one that has ended.

        Args:
            sub_env: The sub-environment.
            begun: The result of ``_mapped``, if it was called already.

        Returns:
            True if lanes were opened or closed, or got another module.
        """
        index = sub_env.index
        agent_ids, module_ids = self.lanes.members(index)
        episode, modules = begun or self._mapped(sub_env)
        fit = self.lanes.fit(index, modules)
        if fit:
            self._forget_views(index)
            for group, _, numbers in self.lanes.of_envs([index]).by_group:
                group.begin_again(numbers)
            for lane, module_id in zip(self.lanes.by_env[index].values(), modules.values(), strict=True):
                self.lanes.set_module(lane, module_id)
        else:
            self.lanes.close(list(self.lanes.by_env[index].values()))
            self.lanes.open([(index, agent_id, module_id) for agent_id, module_id in modules.items()])
        self.ongoing[index] = self._begin_episode(sub_env, episode, modules)
        return not fit or modules != dict(zip(agent_ids, module_ids, strict=True))

    def _follow_events(self, result: StepResult) -> bool:
        """Ends the episodes and agents that events report, and lets agents join.

        Returns:
            True if lanes were opened or closed.
        """
        followed, leaving = [], []
        for event in result.events:
            if event.is_dropped:
                self._drop_episode(event)
            elif not event.begins:
                lanes = self.lanes.by_env[event.index]
                followed.append(event)
                leaving += [(event, lanes[agent_id]) for agent_id in _leaving(event, lanes)]
        if leaving:
            self._end_agents(leaving, result)
        for event in followed:
            if result.rewarded is None:
                self._credit_uncredited(event)
            else:
                self._end_without_turn(event)
            if event.is_over:
                self._summaries[event.index].length = event.t
                self._end_episode(event.index, self._summaries[event.index])
        left = [lane for event, lane in leaving if not event.is_over]
        self.lanes.close(left)
        return self._begin_agents([event for event in followed if not event.is_over]) or bool(left)

    def _end_agents(self, leaving: list[tuple[Event, Lane]], result: StepResult) -> None:
        """Ends agents' episodes at their newest rows.

        Args:
            leaving: Each agent's event and lane.
            result: The result of the step.
        """
        by_group: dict[LaneGroup, list[int]] = {}
        for place, (_, lane) in enumerate(leaving):
            by_group.setdefault(lane.group, []).append(place)
        found: list[Any] = [None] * len(leaving)
        for group, places in by_group.items():
            own = [leaving[place] for place in places]
            self._observe_last(group, own, result)
            numbers = np.array([lane.number for _, lane in own])
            returns, rows, start_rows = group.total_returns(numbers), group.rows_of(numbers), group.start_row[numbers]
            steps = group.t_started[numbers] + rows - start_rows
            for place, *of_agent in zip(places, rows.tolist(), returns.tolist(), steps.tolist(), strict=True):
                found[place] = of_agent
        for (event, lane), (row, returns, steps) in zip(leaving, found, strict=True):
            agent_id, rollout, agent_episode = lane.agent_id, lane.group.rollout, lane.episode
            info = event.infos.get(agent_id)
            if info:
                rollout.infos[row * rollout.num_lanes + lane.number] = info
            terminated = bool(event.terminations.get(agent_id))
            truncated = not terminated and bool(event.truncations.get(agent_id))
            agent_episode.is_terminated, agent_episode.is_truncated = terminated, truncated
            lane.storage.stop_row = row
            ended = self._ended.setdefault(event.index, (self.ongoing[event.index], []))
            ended[1].append(agent_episode)  # type: ignore[union-attr]
            self._summaries[event.index].end_life(agent_id, lane.module_id, returns, truncated, steps)

    def _end_without_turn(self, event: Event) -> None:
        """Records the returns of agents that have ended without ever having had a turn in the episode."""
        summary, lanes = self._summaries[event.index], self.lanes.by_env[event.index]
        for agent_id, terminated in event.terminations.items():
            is_new = agent_id not in lanes and agent_id not in summary.agents
            if is_new and (terminated or event.truncations.get(agent_id)):
                module_id = self._modules.of_agent(self.ongoing[event.index], agent_id)  # type: ignore[arg-type]
                summary.end_life(agent_id, module_id, 0.0, not terminated, 0)

    def _observe_last(self, group: LaneGroup, leaving: list[tuple[Event, Lane]], result: StepResult) -> None:
        """Records the last observations of agents that leave. If there is none, the previous one is repeated."""
        rollout = group.rollout
        cursor = rollout.cursor
        known = [(event, lane) for event, lane in leaving if event.observations.get(lane.agent_id) is not None]
        others = leaving if not known else [own for own in leaving if own[0].observations.get(own[1].agent_id) is None]
        if known:
            try:
                values = [e.observations[lane.agent_id] for e, lane in known]
                times, states = np.array([e.t for e, _ in known]), joined_states([e.state for e, _ in known])
                rollout.observe(cursor[[lane.number for _, lane in known]], values, times, states)
            except (TypeError, ValueError):
                others = leaving  # written one by one, to find the one that does not fit
        for event, lane in others:
            self._observe_end(event, lane, int(cursor[lane.number]), result)

    def _observe_end(self, event: Event, lane: Lane, position: int, result: StepResult) -> None:
        rollout, observation = lane.group.rollout, event.observations.get(lane.agent_id)
        here = slice(position, position + 1)
        if observation is None:
            before = position - rollout.num_lanes
            newest = take(rollout.source(Columns.OBS), slice(before, before + 1))
            rollout.observe(here, newest, event.t, event.state)
            return
        try:
            rollout.observe(here, [observation], event.t, event.state)
        except (TypeError, ValueError) as error:
            raise bad_observation(lane, self._vector_env, observation, result) from error

    def _credit_uncredited(self, event: Event) -> None:
        for agent_id, reward in event.uncredited.items():
            self._credit_absent(event.index, agent_id, reward)

    def _credit_absent(self, env_index: int, agent_id: AgentID, reward: float) -> None:
        """Credits a reward of an absent agent to its last action, or records it as an uncredited reward."""
        episode = self.ongoing[env_index]
        assert isinstance(episode, MultiAgentEpisode)
        agent_episode = episode.agent_episodes.get(agent_id)
        if agent_episode is None:  # the agent never acted, or ended in an earlier chunk
            episode._credit(agent_id, reward)
        elif len(agent_episode):
            agent_episode.set_rewards(new_data=agent_episode.get_rewards(-1) + reward, at_indices=-1)
        else:
            agent_episode.uncredited_reward += reward
        self._summaries[env_index].credit_absent_agent(agent_id, reward)

    def _end_episode(self, index: int, summary: EpisodeSummary) -> None:
        episode = self.ongoing[index]
        if isinstance(episode, MultiAgentEpisode):
            episode.env_t = summary.length
            episode.is_truncated = summary.is_truncated
            episode.is_terminated = not summary.is_truncated
        self.done.append(DoneEpisode(episode, index, summary, self.vector_step))

    def _drop_episode(self, event: Event) -> None:
        """Counts an episode as dropped after a failed step. The chunks of it that were returned stay valid."""
        episode = self.ongoing[event.index]
        started = episode.env_t_started if isinstance(episode, MultiAgentEpisode) else episode.t_started
        self.lost.num_dropped_episodes += 1
        self.lost.num_dropped_env_steps += event.t + 1 - started

    # Cuts.

    @without_collections()
    def cut(self, num_rows: int) -> list[tuple[int, Episode]]:
        """Ends the fragment. All groups continue in fresh rollouts.

        Args:
            num_rows: The number of steps that the fresh rollouts have rows for.

        Returns:
            The ``env_index`` and the chunk of each ongoing episode that has at least one step in the fragment.
        """
        self.sync()
        if self._vector_env.turn_based:  # a lane has rows for its agent's turns only, about as many as in this fragment
            num_rows = min(num_rows, max((g.last_row - g.lookback + 1 for g in self.lanes.groups), default=1))
        chunks = [own for own in enumerate(self.ongoing) if own[1].env_steps() > 0]
        lanes = self.lanes.of_envs(range(len(self.ongoing)))
        none = np.zeros(len(lanes.number), bool)
        ended = lanes.ended(none, none)
        own = [(group, numbers, ended.stop_row[at], group.returns(numbers)) for group, at, numbers in lanes.by_group]
        for group in self.lanes.groups:
            group.restart(num_rows)
        for group, numbers, last_rows, returns in own:
            group.continue_episodes(numbers, last_rows, returns)
        for sub_env, begin in zip(self._vector_env.sub_envs, lanes.begins.tolist(), strict=True):
            sub_env.pack_history(at_least=_PACK_AFTER)
            former = self.ongoing[sub_env.index]
            was_asked_for = not isinstance(former, MultiAgentEpisode) or former.agent_views is None
            self._freeze(sub_env.index, EndedViews(ended, begin, tuple(self.lanes.by_env[sub_env.index])))
            if was_asked_for:
                for lane in self.lanes.by_env[sub_env.index].values():
                    lane.continue_episode()
            successor = self._continued_episode(sub_env, former.id_, was_asked_for)
            if isinstance(successor, MultiAgentEpisode):
                successor.remember_from(former)  # type: ignore[arg-type]
            self.ongoing[sub_env.index] = successor
        return chunks

    def _continued_episode(self, sub_env: SubEnvironment, id_: str, with_views: bool) -> Episode:
        """Returns the next chunk of an episode, which begins at the newest rows of the lanes.

        Args:
            sub_env: The sub-environment.
            id_: The id of the episode.
            with_views: Whether the lanes have views already.
        """
        lanes = self.lanes.by_env[sub_env.index]
        if self._single_agent:
            return next(iter(lanes.values())).episode
        episode = MultiAgentEpisode.from_agent_episodes(
            id_,
            {agent_id: lane.episode for agent_id, lane in lanes.items()} if with_views else {},
            env_t_started=sub_env.t,
            env_t=sub_env.t,
            agent_to_module_mapping_fn=self._modules.mapping,
        )
        if not with_views:
            episode.let_be_views(LiveViews(lanes))
        return episode

    # Newest observations that pieces may change.

    def note_observations(self) -> None:
        """Copies the newest observations of the environments, before pieces may overwrite them."""
        self._observed = [
            tree_map(np.copy, take(group.rollout.source(Columns.OBS), group.newest())) for group in self.lanes.groups
        ]

    def forget_observations(self) -> None:
        """Forgets the copies of ``note_observations``, because no piece may overwrite the newest observations."""
        self._observed = None

    def restore_observations(self) -> None:
        """Restores the environments' newest observations of the agents that act next, which pieces may have changed."""
        for group, observed in zip(self.lanes.groups, self._observed or [], strict=True):
            numbers = group.order if group.numbers is None else group.numbers
            acting = np.flatnonzero(np.isin(group.order, numbers))
            group.rollout.observe(
                group.positions, take(observed, acting), group.rollout.columns[Columns.T][group.positions]
            )

    # For checkpoints: each sub-environment is reset with the episode's seed and gets the same actions again. All other
    # data is saved: the rows that the episodes keep, as connector pieces left them, their infos, the custom data, and
    # the sums of the rewards so far.

    @property
    def can_be_replayed(self) -> bool:
        """Whether the actions of all ongoing episodes are known."""
        return all(sub_env.pack_history().is_complete for sub_env in self._vector_env.sub_envs)

    def keep_states(
        self, batches: Mapping[LaneGroup, Mapping[str, Any]]
    ) -> Callable[[], list[OngoingEpisodeState] | None]:
        """Returns a function that returns the present state of the ongoing episode of each sub-environment.

        To be called right after a cut. The function returns None if one of the episodes is too long to be replayed.

        Args:
            batches: The columns of the prepared forward batch for each group of lanes.

        Raises:
            EpisodeError: If custom data contain anything that cannot be stored in a file.
        """
        sub_envs = self._vector_env.sub_envs
        if not all(sub_env.history.is_complete for sub_env in sub_envs):
            return lambda: None
        histories, lanes = (
            [sub_env.keep_history() for sub_env in sub_envs],
            self.lanes.keep_states(self._observed, batches),
        )
        kept: list[dict[str, Any]] = []
        for sub_env, episode, summary in zip(sub_envs, self.ongoing, self._summaries, strict=True):
            own = {"summary": summary.copy(), "tasks": _tasks_of(sub_env)}
            if isinstance(episode, MultiAgentEpisode):
                own["custom_data"] = encode(episode.custom_data, f"custom_data of episode {episode.id_!r}")
                own["modules"], own["ended"] = dict(episode._module_of), dict(episode._ended_before)
                own["any_truncated"] = episode._truncated_before
            kept.append(own)

        def states() -> list[OngoingEpisodeState] | None:
            actions = [history() for history in histories]
            if not all(own.is_complete for own in actions):
                return None
            every = zip(actions, lanes(), kept, strict=True)
            return [OngoingEpisodeState(own.get_state(), groups=groups, **others) for own, groups, others in every]

        return states

    def set_states(self, states: Sequence[OngoingEpisodeState]) -> dict[LaneGroup, RestoredLanes]:
        """Restores the states of ``keep_states``. It must be called right after construction, or instead of a reset.

        Args:
            states: The state for each sub-environment, whose episode has the sub-environment's episode number.

        Returns:
            What was restored of each group of lanes.

        Raises:
            CheckpointError: If a state is damaged, or a replayed episode differs from the saved one.
        """
        self.take_done()
        self._modules.forget()
        groups = self.lanes.set_states([state.groups for state in states])
        observed = [groups[group].observed for group in self.lanes.groups]
        self._observed = None if any(own is None for own in observed) else observed  # type: ignore[assignment]
        restored = [pair for own in groups.values() for pair in own.lanes]
        for lane, own in restored:
            if self._single_agent:
                lane.view(own.episode_id)
            else:
                whole = self._vector_env.sub_envs[lane.env_index].episode_id()
                lane.view(own.episode_id, own.agent_id, own.module_id, whole)
            lane.episode.custom_data.update(decode(own.custom_data))
        self.ongoing.clear()
        saved = dict(restored)
        for sub_env, state in zip(self._vector_env.sub_envs, states, strict=True):
            lanes = self.lanes.by_env[sub_env.index]
            at_reset, now = state.tasks
            _set_task(sub_env, at_reset)
            self._replay(sub_env, state.actions, [(lane, saved[lane]) for lane in lanes.values()])
            _set_task(sub_env, now)
            self._summaries[sub_env.index] = state.summary.copy()
            self._begun[sub_env.index] = {agent_id: lane.module_id for agent_id, lane in lanes.items()}
            episode = self._continued_episode(sub_env, sub_env.episode_id(), with_views=True)
            if isinstance(episode, MultiAgentEpisode):
                episode.custom_data.update(decode(state.custom_data))
                episode._module_of, episode._ended_before = dict(state.modules), dict(state.ended)
                episode._truncated_before = state.any_truncated
            self.ongoing.append(episode)
        return groups

    def _replay(
        self, sub_env: SubEnvironment, actions: ActionHistoryState, lanes: Sequence[tuple[Lane, LaneState]]
    ) -> None:
        """Replays a sub-environment up to the env step of its lanes, and records their infos.

        Raises:
            CheckpointError: If the agents or their observations differ from the saved ones.
        """
        times = [[int(t) for t in lane.storage.column(Columns.T)] for lane, _ in lanes]
        unknown = {
            own_times[row]
            for own_times, (_, own) in zip(times, lanes, strict=True)
            for row, info in own.infos.items()
            if info is None
        }
        steps = ActionHistory.from_state(actions)
        observations, infos_at = self._vector_env.replay(sub_env, sub_env.episode_number, steps, unknown)
        if list(observations) != [lane.agent_id for lane, _ in lanes]:
            raise not_repeatable(sub_env)
        for own_times, (lane, own) in zip(times, lanes, strict=True):
            rollout, number = lane.group.rollout, lane.number
            if self._observed is None:
                position = rollout.cursor.item(number)
                observed = take(rollout.source(Columns.OBS), slice(position, position + 1))
            else:
                observed = take(self._observed[lane.group.index], slice(number, number + 1))
            replayed = spaces.stack([observations[lane.agent_id]], rollout.observation_space)
            if not all(map(np.array_equal, leaves(observed), leaves(replayed))):
                raise not_repeatable(sub_env, lane.agent_id)
            for row, saved in own.infos.items():
                info = infos_at[own_times[row]].get(lane.agent_id) if saved is None else decode(saved)
                if info:
                    rollout.infos[(lane.storage.first_row + row) * rollout.num_lanes + number] = info


def _tasks_of(sub_env: SubEnvironment) -> tuple[Any, Any]:
    """Returns the task of an environment with a curriculum, at the newest reset and now."""
    if sub_env.settable is None:
        return None, None
    at_reset, now = (encode(task, f"get_task() of {sub_env}") for task in (sub_env.task, sub_env.settable.get_task()))
    return at_reset, now


def _set_task(sub_env: SubEnvironment, task: Any) -> None:
    if sub_env.settable is not None and task is not None:
        sub_env.settable.set_task(decode(task))


def _leaving(event: Event, lanes: Mapping[AgentID, Lane]) -> list[AgentID]:
    """Returns the agents that have ended, in the order of the lanes. An agent that never had a turn has no lane."""
    return [agent for agent in lanes if event.terminations.get(agent) or event.truncations.get(agent)]
