"""The episodes that a runner's environment copies are in the middle of, and the lanes that hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import Space

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.connectors.common.agent_to_module_mapping import unknown_module
from marl_connectors.env_runners.data_checks import bad_observation
from marl_connectors.env_runners.episode_metrics import FinishedEpisode
from marl_connectors.env_runners.lanes import Lane, LaneGroup
from marl_connectors.env_runners.vector_env import EnvCopy, Transition, VectorEnv
from marl_connectors.episodes.column_batch import ColumnGroup
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.packing import rows_of_episodes
from marl_connectors.episodes.rollout import take
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import MappingError
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import DEFAULT_MODULE_ID, AgentID, ModuleID

Episode = SingleAgentEpisode | MultiAgentEpisode


class OngoingEpisodes:
    """Begins, ends and cuts episodes as the environments go on.

    Attributes:
        groups: The lanes, by observation and action space.
        ongoing: Each copy's episode.
        ended: Episodes in which agents ended in the newest step.
        ended_agents: The agent episodes that did.
    """

    def __init__(
        self,
        vector_env: VectorEnv,
        agent_spaces: Callable[[AgentID], tuple[Space, Space]],
        policy_mapping_fn: Callable[..., ModuleID],
        rl_module: MultiRLModule,
        *,
        single_agent: bool,
        lookback: int,
    ):
        self.groups: list[LaneGroup] = []
        self.ongoing: list[Episode] = []
        self.ended: list[Episode] = []
        self.ended_agents: list[SingleAgentEpisode] = []
        self._vector_env = vector_env
        self._agent_spaces = agent_spaces
        self._mapping = policy_mapping_fn
        self._rl_module = rl_module
        self._single_agent = single_agent
        self._lookback = lookback
        self._lanes: list[dict[AgentID, Lane]] = [{} for _ in vector_env.copies]
        self._returns: list[list[tuple[AgentID, ModuleID, float]]] = [[] for _ in vector_env.copies]
        self._done: list[Episode] = []
        self._done_in: list[int] = []
        self._finished: list[FinishedEpisode] = []
        self._fitting: set[tuple[int, ModuleID]] = set()
        self._group_agents: list[AgentID] = []

    def take_done(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        done, self._done, self._done_in = self._done, [], []
        return done

    def first_of_each_copy(self, num_episodes: int) -> list[int] | None:
        """Which of the episodes that have ended make up ``num_episodes`` without preferring short ones.

        Each copy contributes its first ones, as many as any other copy (or one less). None while some are missing.
        """
        copies = len(self._vector_env.copies)
        quotas = [num_episodes // copies + (index < num_episodes % copies) for index in range(copies)]
        chosen = []
        for i, index in enumerate(self._done_in):
            if quotas[index]:
                quotas[index] -= 1
                chosen.append(i)
        return None if any(quotas) else chosen

    def take_finished(self) -> list[FinishedEpisode]:
        """Their returns and lengths."""
        finished, self._finished = self._finished, []
        return finished

    def lanes_by_copy(self) -> list[Lane]:
        """All live lanes, in the order of the copies and their agents."""
        return [lane for lanes in self._lanes for lane in lanes.values()]

    def set_clocks(self) -> None:
        """Tells all groups the env step that each of their lanes is at, after copies began anew."""
        copies = self._vector_env.copies
        for group in self.groups:
            group.t = np.array([copies[lane.env_index].t for lane in group.lanes], np.int32)

    def sync(self) -> None:
        """Tells the multi-agent episodes what env step they are at."""
        if not self._single_agent:
            for episode, copy in zip(self.ongoing, self._vector_env.copies, strict=True):
                episode.env_t = copy.t  # type: ignore[union-attr]

    def set_policy_mapping_fn(self, policy_mapping_fn: Callable[..., ModuleID]) -> None:
        """For episodes that begin from now on."""
        self._mapping = policy_mapping_fn

    # Beginnings.

    def reset(self) -> list[Any]:
        """Starts a new episode in every copy, dropping what goes on; all agents' first observations, by copy."""
        first = [self._vector_env.reset(copy) for copy in self._vector_env.copies]
        for lanes, returns in zip(self._lanes, self._returns, strict=True):
            for lane in lanes.values():
                lane.group.lanes.remove(lane)
                lane.group.close(lane)
            lanes.clear()
            returns.clear()
        for group in self.groups:
            group.restart(group.rollout.num_rows - self._lookback - 2)
        self._make_room()
        self.ongoing = [self._begin_episode(copy) for copy in self._vector_env.copies]
        for copy, (_, infos) in zip(self._vector_env.copies, first, strict=True):
            self.write_infos(copy.index, infos)
        return [
            observations[agent_id]
            for copy, (observations, _) in zip(self._vector_env.copies, first, strict=True)
            for agent_id in copy.agents
        ]

    def _make_room(self) -> None:
        counts: dict[LaneGroup, list[int]] = {}
        for copy in self._vector_env.copies:
            for agent_id in copy.agents:
                per_copy = counts.setdefault(self._group_of(agent_id), [0] * len(self._lanes))
                per_copy[copy.index] += 1
        for group, per_copy in counts.items():
            group.make_room(sum(per_copy))
            group.num_slots = group.num_slots or max(per_copy)

    def _group_of(self, agent_id: AgentID) -> LaneGroup:
        observation_space, action_space = self._agent_spaces(agent_id)
        for group in self.groups:
            if group.matches(observation_space, action_space):
                return group
        return self._add_group(agent_id)

    def _add_group(self, agent_id: AgentID) -> LaneGroup:
        """A group for agents with spaces like this one's."""
        self.groups.append(LaneGroup(len(self.groups), *self._agent_spaces(agent_id), self._lookback))
        self._group_agents.append(agent_id)
        return self.groups[-1]

    def _begin_episode(self, copy: EnvCopy) -> Episode:
        id_ = f"{copy.index}-{copy.episode_number}"
        self._returns[copy.index] = []
        if self._single_agent:
            lane = self._open_lane(copy, copy.agents[0])
            lane.module_id = DEFAULT_MODULE_ID
            lane.episode = self._view(lane, id_, agent_id=None, module_id=None, multi_agent_episode_id=None)
            return lane.episode
        episode = MultiAgentEpisode.from_agent_episodes(
            id_, {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=self._mapping
        )
        for agent_id in copy.agents:
            self._begin_agent(episode, self._open_lane(copy, agent_id))
        return episode

    def _open_lane(self, copy: EnvCopy, agent_id: AgentID) -> Lane:
        group = self._group_of(agent_id)
        lane = group.open(copy.index, agent_id)
        group.lanes.append(lane)
        self._lanes[copy.index][agent_id] = lane
        return lane

    def _begin_agent(self, episode: MultiAgentEpisode, lane: Lane) -> None:
        agent_id = lane.agent_id
        lane.module_id = self._module_for(episode, lane)
        lane.episode = self._view(
            lane,
            f"{episode.id_}/{agent_id}/{episode.env_t}",
            agent_id=agent_id,
            module_id=lane.module_id,
            multi_agent_episode_id=episode.id_,
        )
        lane.earlier_return = 0.0
        episode.attach(agent_id, lane.episode)

    def _view(self, lane: Lane, id_: str, **ids: Any) -> SingleAgentEpisode:
        row, rollout = lane.row, lane.group.rollout
        rollout.infos.pop(row * rollout.num_lanes + lane.number, None)  # of the lane's former agent
        return SingleAgentEpisode.from_storage(
            LaneStorage(rollout, lane.number, first_row=row, start_row=row),
            id_=id_,
            t_started=0,
            observation_space=rollout.observation_space,
            action_space=rollout.action_space,
            **ids,
        )

    def _module_for(self, episode: MultiAgentEpisode, lane: Lane) -> ModuleID:
        agent_id = lane.agent_id
        module_id = ask_mapping(episode, agent_id)
        if module_id not in self._rl_module:
            raise unknown_module(agent_id, module_id, self._rl_module)
        if (lane.group.index, module_id) not in self._fitting:
            self._check_fit(lane, module_id)
            self._fitting.add((lane.group.index, module_id))
        return module_id

    def _check_fit(self, lane: Lane, module_id: ModuleID) -> None:
        module, rollout = self._rl_module[module_id], lane.group.rollout
        action_space = module.action_space
        if action_space is not None and spaces.describe(action_space) != spaces.describe(rollout.action_space):
            raise MappingError(
                f"policy_mapping_fn: agent {lane.agent_id!r} maps to module {module_id!r}, whose actions are "
                f"{spaces.describe(action_space)}, but the agent's are {spaces.describe(rollout.action_space)}. Map "
                f"agents with different spaces to different modules."
            )

    # Ends.

    def follow(self, transitions: list[Transition]) -> bool:
        """Ends and begins episodes as copies report; True if lanes were opened or closed, or changed their module."""
        self.ended, self.ended_agents = [], []
        rearranged = False
        for transition in transitions:
            copy = self._vector_env.copies[transition.index]
            lanes = self._lanes[transition.index]
            leaving = [a for a in lanes if transition.terminations.get(a) or transition.truncations.get(a)]
            if leaving:
                self.ended.append(self.ongoing[transition.index])
            for agent_id in leaving:
                self._end_agent(transition, lanes[agent_id])
            self._credit_strangers(transition)
            if not transition.is_over:
                self._close_lanes(lanes, leaving)
                self._welcome(copy, transition)
                rearranged = True
                continue
            self._end_episode(transition)
            modules = {agent_id: lane.module_id for agent_id, lane in lanes.items()}
            if list(lanes) == copy.agents:
                self._begin_again(copy)
            else:
                self._close_lanes(lanes, list(lanes))
                self.ongoing[copy.index] = self._begin_episode(copy)
                rearranged = True  # even if the agents are the same: their order is not
            rearranged |= modules != {agent_id: lane.module_id for agent_id, lane in self._lanes[copy.index].items()}
            self.write_infos(copy.index, transition.first_infos)
        return rearranged

    def _end_agent(self, transition: Transition, lane: Lane) -> None:
        rollout, agent_id = lane.group.rollout, lane.agent_id
        position = int(rollout.cursor[lane.number])
        here = slice(position, position + 1)
        observation = transition.observations.get(agent_id)
        if observation is None:
            before = position - rollout.num_lanes
            rollout.observe(here, take(rollout.source(Columns.OBS), slice(before, before + 1)), transition.t)
        else:
            try:
                rollout.observe(here, spaces.stack([observation], rollout.observation_space), transition.t)
            except (TypeError, ValueError) as error:
                raise bad_observation(lane, self._vector_env, observation) from error
        info = transition.infos.get(agent_id)
        if info:
            rollout.infos[position] = dict(info)
        episode = lane.episode
        self.ended_agents.append(episode)
        storage: LaneStorage = episode.storage  # type: ignore[assignment]
        storage.stop_row = lane.row
        episode.is_terminated = bool(transition.terminations.get(agent_id))
        episode.is_truncated = bool(transition.truncations.get(agent_id)) and not episode.is_terminated
        self._returns[lane.env_index].append((agent_id, lane.module_id, lane.earlier_return + chunk_return(storage)))

    def _credit_strangers(self, transition: Transition) -> None:
        """Rewards of agents that did not act in this step: to their last action, or kept as not creditable."""
        episode, returns = self.ongoing[transition.index], self._returns[transition.index]
        assert isinstance(episode, MultiAgentEpisode) or not transition.stray_rewards
        for agent_id, reward in transition.stray_rewards.items():
            agent_episode = episode.agent_episodes.get(agent_id)  # type: ignore[union-attr]
            if agent_episode is None:  # it never acted, or ended in an earlier chunk
                episode._credit(agent_id, reward)  # type: ignore[union-attr]
            elif len(agent_episode):
                agent_episode.set_rewards(new_data=agent_episode.get_rewards(-1) + reward, at_indices=-1)
            else:
                agent_episode.uncredited_reward += reward
            ended = [i for i, (whose, _, _) in enumerate(returns) if whose == agent_id]
            if ended:
                _, module_id, earlier = returns[ended[-1]]
                returns[ended[-1]] = (agent_id, module_id, earlier + reward)

    def _end_episode(self, transition: Transition) -> None:
        episode = self.ongoing[transition.index]
        if isinstance(episode, MultiAgentEpisode):
            episode.env_t = transition.t
            ends = episode._ended_before | {a: life.is_truncated for a, life in episode.agent_episodes.items()}
            episode.is_truncated = any(ends.values())
            episode.is_terminated = not episode.is_truncated
        self._done.append(episode)
        self._done_in.append(transition.index)
        self._finished.append(FinishedEpisode(transition.t, self._returns[transition.index]))

    def _begin_again(self, copy: EnvCopy) -> None:
        """The same agents in the same lanes: the usual case."""
        lanes = self._lanes[copy.index]
        for lane in lanes.values():
            lane.group.skip_row(lane)
        id_ = f"{copy.index}-{copy.episode_number}"
        self._returns[copy.index] = []
        if self._single_agent:
            lane = next(iter(lanes.values()))
            lane.earlier_return = 0.0
            lane.episode = self._view(lane, id_, agent_id=None, module_id=None, multi_agent_episode_id=None)
            self.ongoing[copy.index] = lane.episode
            return
        episode = MultiAgentEpisode.from_agent_episodes(
            id_, {}, env_t_started=0, env_t=0, agent_to_module_mapping_fn=self._mapping
        )
        for lane in lanes.values():
            self._begin_agent(episode, lane)
        self.ongoing[copy.index] = episode

    def _close_lanes(self, lanes: dict[AgentID, Lane], agent_ids: list[AgentID]) -> None:
        for agent_id in agent_ids:
            lane = lanes.pop(agent_id)
            lane.group.lanes.remove(lane)
            lane.group.close(lane)

    def _welcome(self, copy: EnvCopy, transition: Transition) -> None:
        episode, lanes = self.ongoing[copy.index], self._lanes[copy.index]
        assert isinstance(episode, MultiAgentEpisode)
        episode.env_t = copy.t
        for agent_id in copy.agents:
            if agent_id not in lanes:
                self._begin_agent(episode, self._open_lane(copy, agent_id))
        self._lanes[copy.index] = {agent_id: lanes[agent_id] for agent_id in copy.agents}
        self.write_infos(copy.index, transition.infos)

    def write_infos(self, env_index: int, infos: dict[AgentID, dict]) -> None:
        """Keeps the infos that came with live agents' newest observations."""
        for agent_id, lane in self._lanes[env_index].items():
            info = infos.get(agent_id)
            if info:
                rollout = lane.group.rollout
                rollout.infos[int(rollout.cursor[lane.number])] = dict(info)

    def ended_rows(self) -> list[ColumnGroup]:
        """The last observations of the agents that ended in the newest step, for pieces that write to episodes."""
        groups = []
        for group in self.groups:
            own = [e for e in self.ended_agents if e.storage.rollout is group.rollout]  # type: ignore[attr-defined]
            if own:
                rows = rows_of_episodes(own, list(self._rl_module.keys()), last_only=True)
                groups.append(ColumnGroup(rows))
        return groups

    # Cuts.

    def cut(self, num_rows: int) -> list[Episode]:
        """Ends the fragment: all groups go on in fresh rollouts with room for ``num_rows`` more rows.

        Returns:
            The chunks of ongoing episodes that have at least one step.
        """
        self.sync()
        chunks = [episode for episode in self.ongoing if episode.env_steps() > 0]
        for group in self.groups:
            ends, returns = group.chunk_ends()
            group.restart(num_rows)
            for lane, last_row, chunk_return in zip(group.lanes, ends, returns, strict=True):
                self._continue(lane, last_row)
                lane.earlier_return += chunk_return
        for copy, lanes in zip(self._vector_env.copies, self._lanes, strict=True):
            former = self.ongoing[copy.index]
            if self._single_agent:
                self.ongoing[copy.index] = next(iter(lanes.values())).episode
                continue
            assert isinstance(former, MultiAgentEpisode)
            episode = self._continued_episode(copy, former.id_, dict(former._module_of))
            ended = {a: life.is_truncated for a, life in former.agent_episodes.items() if life.is_done}
            episode._ended_before = former._ended_before | ended
            if former.custom_data:
                episode.custom_data.update(former.custom_data)
            self.ongoing[copy.index] = episode
        return chunks

    def _continued_episode(self, copy: EnvCopy, id_: str, module_of: dict[AgentID, ModuleID]) -> MultiAgentEpisode:
        """The chunk that goes on; ``module_of`` also remembers agents that are gone and may come back."""
        lanes = self._lanes[copy.index]
        return MultiAgentEpisode.from_agent_episodes(
            id_,
            {agent_id: lane.episode for agent_id, lane in lanes.items()},
            env_t_started=copy.t,
            env_t=copy.t,
            agent_to_module_mapping_fn=self._mapping,
            module_of=module_of,
        )

    def _continue(self, lane: Lane, last_row: int) -> None:
        """Freezes a lane's chunk and gives the lane its successor, in the fresh rollout."""
        former = lane.episode
        storage: LaneStorage = former.storage  # type: ignore[assignment]
        storage.stop_row = last_row
        rollout, row = lane.group.rollout, self._lookback
        kept = min(self._lookback, last_row - storage.first_row)
        lane.episode = SingleAgentEpisode.from_storage(
            LaneStorage(rollout, lane.number, first_row=row - kept, start_row=row),
            id_=former.id_,
            agent_id=former.agent_id,
            module_id=former.module_id,
            multi_agent_episode_id=former.multi_agent_episode_id,
            t_started=former.t_started + last_row - storage.start_row,
            observation_space=former.observation_space,
            action_space=former.action_space,
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


def chunk_return(storage: LaneStorage) -> float:
    """The sum of a chunk's rewards."""
    lanes = storage.rollout.num_lanes
    begin, end = storage.start_row * lanes + storage.lane, storage.last_row * lanes + storage.lane
    return float(storage.rollout.columns[Columns.REWARDS][begin:end:lanes].sum())
