"""Ends and beginnings of whole episodes, for all agents of many copies at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import itemgetter

import numpy as np

from marl_connectors.env_runners.copy_lanes import CopyLanes
from marl_connectors.env_runners.done_episodes import DoneEpisode, Episode
from marl_connectors.env_runners.episode_metrics import EpisodeTally, joint_tallies
from marl_connectors.env_runners.joint_ends import JointEnds
from marl_connectors.environments.batched_ends import BatchedEnds
from marl_connectors.environments.vector_env import EnvCopy, Transition, VectorEnv
from marl_connectors.episodes.agent_views import EndedViews
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.typing import AgentID, ModuleID

Modules = Mapping[AgentID, ModuleID]


class JointEpisodes(ABC):
    """Follows episodes whose agents begin together and end together, in arrays for all of them.

    Attributes:
        lanes: Who is in which lane.
        done: The episodes that ended and were not taken yet.
    """

    def __init__(self, vector_env: VectorEnv, lanes: CopyLanes):
        self.lanes = lanes
        self.done: list[DoneEpisode] = []
        self._vector_env = vector_env
        self._tallies = [EpisodeTally() for _ in vector_env.copies]
        self._begun: list[Modules] = [{} for _ in vector_env.copies]  # who acted for whom at the beginning
        # By copy: the episode, if agents ended in the newest step, and those; None for all of them.
        self._ended: dict[int, tuple[Episode, list[SingleAgentEpisode] | None]] = {}

    @property
    def ongoing(self) -> list[Episode]:
        """Each copy's episode."""
        return self.lanes.ongoing

    def in_rollouts(self) -> list[tuple[int, Episode]]:
        """All episodes with rows in the rollouts, those that ended before the others, with their copies."""
        return [(entry.env_index, entry.episode) for entry in self.done] + list(enumerate(self.ongoing))

    @abstractmethod
    def _mapped(self, copy: EnvCopy) -> tuple[MultiAgentEpisode | None, Modules]:
        """The copy's next episode, still without agents (None for a single one), and the modules of its agents."""

    @abstractmethod
    def _of_lanes(self, index: int, episode: MultiAgentEpisode | None) -> Episode:
        """A copy's episode, which begins in the lanes of the copy's agents."""

    @abstractmethod
    def _begin_after(self, copy: EnvCopy, begun: tuple[MultiAgentEpisode | None, Modules] | None = None) -> bool:
        """The copy's next episode, after one that has ended; True if lanes were opened or closed, or changed module.

        Args:
            copy: Which.
            begun: What ``_mapped`` gave, if it was called already.
        """

    @property
    def ended(self) -> list[Episode]:
        """Episodes in which agents ended in the newest step."""
        return [episode for _, (episode, _) in sorted(self._ended.items(), key=itemgetter(0))]

    @property
    def ended_agents(self) -> list[SingleAgentEpisode]:
        """The agent episodes that did."""
        found: list[SingleAgentEpisode] = []
        for _, (episode, agent_episodes) in sorted(self._ended.items(), key=itemgetter(0)):
            if agent_episodes is None:
                found += episode.agent_episodes.values() if isinstance(episode, MultiAgentEpisode) else [episode]
            else:
                found += agent_episodes
        return found

    def _sorted(self, transitions: Sequence[Transition]) -> tuple[JointEnds | None, Sequence[Transition]]:
        """What can be dealt with for all agents together, and the rest.

        The former are the ends of whole episodes in which nobody has ended before.
        """
        if isinstance(transitions, BatchedEnds):
            joint, others = JointEnds.of_batch(transitions), ()
        else:
            over = {
                t.index
                for t in transitions
                if t.is_over and not t.is_dropped and not t.stray_rewards and self._tallies[t.index].is_empty
            }
            others = [t for t in transitions if t.index not in over]
            whole = [t for t in transitions if t.index in over]
            joint = JointEnds.of_transitions(whole, self.lanes.by_copy) if whole else None
        if joint is None or not joint.record(self.lanes.of_copies(joint.indices)):
            return None, transitions
        return joint, others

    def _follow_jointly(self, joint: JointEnds) -> bool:
        """Ends episodes and begins the next ones. A hot path: per copy little more than its next episode is made."""
        lanes, agent_ids = self.lanes.of_copies(joint.indices), self.lanes.in_arrays().agent_ids
        ended = lanes.ended(joint.terminated, joint.truncated)
        paid = lanes.gathered(lambda group, numbers: group.paid(numbers), np.float64)
        for index, infos in zip(joint.indices, joint.infos, strict=False):
            self.lanes.write_infos(index, infos)
        tallies = joint_tallies(
            joint.t,
            [agent_ids[index] for index in joint.indices],
            [tuple([lane.module_id for lane in self.lanes.by_copy[index].values()]) for index in joint.indices],
            paid,
            joint.truncated,
            ended.t_started + ended.stop_row - ended.start_row,
            lanes.begins,
        )
        for index, begin, tally in zip(joint.indices, lanes.begins.tolist(), tallies, strict=True):
            episode = self.ongoing[index]
            self._freeze(index, EndedViews(ended, begin, agent_ids[index]))
            if isinstance(episode, MultiAgentEpisode):
                episode.env_t = tally.length
                episode.is_truncated = tally.is_truncated
                episode.is_terminated = not tally.is_truncated
            self._ended[index] = episode, None
            self.done.append(DoneEpisode(episode, index, tally))
        rearranged = self._begin_jointly(joint.indices)
        for index, infos in zip(joint.indices, joint.first_infos, strict=False):
            self.lanes.write_infos(index, infos)
        return rearranged

    def _freeze(self, index: int, views: EndedViews) -> None:
        """Lets the agents' episodes stay as they are now, whether anybody has asked for them or not."""
        episode = self.ongoing[index]
        if isinstance(episode, MultiAgentEpisode) and episode.agent_views is not None:
            episode.let_be_views(views)
            return
        for lane, end in zip(self.lanes.by_copy[index].values(), views.ends(), strict=True):
            lane.storage.stop_row, lane.episode.is_terminated, lane.episode.is_truncated = end

    def _begin_jointly(self, indices: Sequence[int]) -> bool:
        """Begins the next episodes: without a look at the lanes where agents and modules are the same as before."""
        rearranged, again, known = False, [], None
        for index in indices:
            copy = self._vector_env.copies[index]
            episode, modules = self._mapped(copy)
            if modules is not known and self.lanes.know(modules.values()):
                known = modules
            is_same = modules == self._begun[index] and list(modules) == list(self.lanes.by_copy[index])
            if is_same and modules is known:
                again.append(index)
                self.ongoing[index] = episode  # type: ignore[assignment]
            else:
                rearranged |= self._begin_after(copy, (episode, modules))
        if again:
            for group, _, numbers in self.lanes.of_copies(again).by_group():
                group.begin_again(numbers)
        for index in again:
            self.ongoing[index] = self._of_lanes(index, self.ongoing[index])  # type: ignore[arg-type]
        return rearranged
