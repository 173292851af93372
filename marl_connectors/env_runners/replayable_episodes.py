"""Ongoing episodes that a checkpoint can hold: as their seed, their actions, and the rows that they keep."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.env_runners.ongoing_episodes import OngoingEpisodes
from marl_connectors.episodes.lane_storage import LaneStorage
from marl_connectors.episodes.rollout import take
from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
from marl_connectors.errors import CheckpointError
from marl_connectors.trees import leaves
from marl_connectors.typing import AgentID


class ReplayableEpisodes(OngoingEpisodes):
    """OngoingEpisodes that can be brought back to where they stood.

    Each copy is reset with the episode's seed and given the same actions again.
    """

    def get_state(self) -> dict[str, Any]:
        """The ongoing episodes: the rows that they keep, and the actions that lead to where their copies are."""
        return {
            "copies": [
                {
                    "number": copy.episode_number,
                    "history": [[list(a), list(x)] for a, x in copy.history],
                    "ended": [] if self._single_agent else list(episode._ended_before.items()),  # type: ignore[union-attr]
                    "modules": [] if self._single_agent else list(episode._module_of.items()),  # type: ignore[union-attr]
                }
                for copy, episode in zip(self._vector_env.copies, self.ongoing, strict=True)
            ],
            "groups": [
                {
                    "agent_id": agent_id,
                    "num_lanes": group.rollout.num_lanes,
                    "num_slots": group.num_slots,
                    "slots": group.get_slots(),
                    "rollout": group.rollout.get_state(),
                }
                for group, agent_id in zip(self.groups, self._group_agents, strict=True)
            ],
            "lanes": [
                {
                    "group": lane.group.index,
                    "number": lane.number,
                    "env_index": lane.env_index,
                    "slot": lane.slot,
                    "agent_id": lane.agent_id,
                    "module_id": lane.module_id,
                    "episode_id": lane.episode.id_,
                    "earlier_return": lane.earlier_return,
                    "t_started": lane.episode.t_started,
                    "kept": lane.episode.storage.lookback,
                }
                for lane in self.lanes_by_copy()
            ],
            "returns": [list(returns) for returns in self._returns],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what ``get_state`` gave. Must be called right after construction, or instead of a reset."""
        observed = [
            self._vector_env.replay(copy, own["number"], [(list(a), list(x)) for a, x in own["history"]])
            for copy, own in zip(self._vector_env.copies, state["copies"], strict=True)
        ]
        self.groups, self._group_agents, self._finished = [], [], []
        self.take_done()
        self._fitting = set()
        self._returns = [[tuple(entry) for entry in returns] for returns in state["returns"]]
        for own in state["groups"]:
            group = self._add_group(own["agent_id"])
            group.make_room(own["num_lanes"])
            group.num_slots = own["num_slots"]
            group.set_slots(own["slots"])
            group.rollout.set_state(own["rollout"])
        self._lanes = [{} for _ in self._vector_env.copies]
        for own in state["lanes"]:
            self._restore_lane(own, observed[own["env_index"]][0])
        self.ongoing = []
        for copy, lanes, own in zip(self._vector_env.copies, self._lanes, state["copies"], strict=True):
            copy.agents = list(lanes)
            self.write_infos(copy.index, observed[copy.index][1])
            if self._single_agent:
                self.ongoing.append(next(iter(lanes.values())).episode)
                continue
            episode = self._continued_episode(copy, f"{copy.index}-{copy.episode_number}", dict(own["modules"]))
            episode._ended_before = dict(own["ended"])
            self.ongoing.append(episode)

    def _restore_lane(self, own: dict[str, Any], observations: dict[AgentID, Any]) -> None:
        copy, agent_id = self._vector_env.copies[own["env_index"]], own["agent_id"]
        group = self.groups[own["group"]]
        lane = group.reopen(own["number"], own["env_index"], own["slot"], agent_id)
        group.lanes.append(lane)
        self._lanes[copy.index][agent_id] = lane
        lane.module_id, lane.earlier_return = own["module_id"], own["earlier_return"]
        position = int(group.rollout.cursor[lane.number])
        kept = take(group.rollout.source(Columns.OBS), slice(position, position + 1))
        replayed = spaces.stack([observations[agent_id]], group.rollout.observation_space)
        if not all(map(np.array_equal, leaves(kept), leaves(replayed))):
            raise CheckpointError(
                f"{copy}: replaying the episode from its seed leads agent {agent_id!r} elsewhere than before the "
                f"checkpoint, so the environment does not follow from reset(seed=...) and the run cannot be continued "
                f"exactly. Load the modules with Algorithm.from_checkpoint and start a new run."
            )
        episode_id = f"{copy.index}-{copy.episode_number}"
        ids = {"agent_id": None, "module_id": None, "multi_agent_episode_id": None}
        if not self._single_agent:
            ids = {"agent_id": agent_id, "module_id": lane.module_id, "multi_agent_episode_id": episode_id}
        lane.episode = SingleAgentEpisode.from_storage(
            LaneStorage(group.rollout, lane.number, first_row=self._lookback - own["kept"], start_row=self._lookback),
            id_=own["episode_id"],
            t_started=own["t_started"],
            observation_space=group.rollout.observation_space,
            action_space=group.rollout.action_space,
            **ids,
        )
