"""Ongoing episodes that a checkpoint can hold: as their seed, their actions, and the rows that they keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.env_runners.done_episodes import Episode
from marl_connectors.env_runners.episode_metrics import EpisodeTally
from marl_connectors.env_runners.lanes import Lane
from marl_connectors.env_runners.ongoing_episodes import OngoingEpisodes
from marl_connectors.env_runners.plain_data import storable
from marl_connectors.environments.action_history import ActionHistory
from marl_connectors.environments.env_copy import EnvCopy, not_repeatable, task_of, with_tasks
from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
from marl_connectors.episodes.rollout import take
from marl_connectors.episodes.state import decode, encode
from marl_connectors.errors import CheckpointError
from marl_connectors.trees import leaves, same_structure, tree_map
from marl_connectors.typing import Tree


class ReplayableEpisodes(OngoingEpisodes):
    """OngoingEpisodes that can be brought back to where they stood.

    Each copy is reset with the episode's seed and given the same actions again. What does not follow from those is
    saved: the rows that the episodes keep, as connector pieces left them, their infos, the user's notes, and what was
    paid so far.
    """

    _observed: list[Tree] | None = None  # by group, in the order of its lanes, where pieces change observations

    def acting(self) -> list[Episode]:
        """The episodes whose agents act next."""
        copies = self._vector_env.copies
        if self._vector_env.has_rests:
            return [episode for episode, copy in zip(self.ongoing, copies, strict=True) if not copy.rests]
        return self.ongoing

    def note_observations(self) -> None:
        """Remembers the newest observations as the environments gave them. For pieces that may write others to them."""
        self._observed = [
            tree_map(np.copy, take(group.rollout.source(Columns.OBS), group.newest())) for group in self.lanes.groups
        ]

    def restore_observations(self) -> None:
        """Writes the newest observations of those who act next as the environments gave them, not as pieces did."""
        for group, observed in zip(self.lanes.groups, self._observed or [], strict=True):
            acts = set(group.acting)
            acting = np.array([i for i, lane in enumerate(group.lanes) if lane in acts], np.int64)
            group.rollout.observe(
                group.positions, take(observed, acting), group.rollout.columns[Columns.T][group.positions]
            )

    @property
    def can_be_replayed(self) -> bool:
        """Whether the actions of all ongoing episodes are known."""
        return all(copy.pack_history().is_complete for copy in self._vector_env.copies)

    def get_state(self) -> dict[str, Any] | None:
        """The ongoing episodes, right after a cut; None if one of them is too long to be replayed.

        Raises:
            EpisodeError: If custom data hold what no file can.
        """
        copies = self._vector_env.copies
        if not self.can_be_replayed:
            return None
        return {
            "copies": [
                {
                    "number": copy.episode_number,
                    "actions": copy.history.get_state(),
                    "memory": _memory_of(episode),
                    "tally": tally.get_state(),
                    "tasks": _tasks_of(copy),
                }
                for copy, episode, tally in zip(copies, self.ongoing, self._tallies, strict=True)
            ],
            "observed": self._observed,
            "groups": [
                {
                    "members": members,
                    "num_lanes": group.rollout.num_lanes,
                    "rollout": group.rollout.get_state(),
                }
                for group, members in zip(self.lanes.groups, self.lanes.get_members(), strict=True)
            ],
            "lanes": [
                {
                    "group": lane.group.index,
                    "row": lane.group.lanes.index(lane),
                    "number": lane.number,
                    "env_index": lane.env_index,
                    "agent_id": lane.agent_id,
                    "module_id": lane.module_id,
                    "episode_id": lane.episode.id_,
                    "ids": [lane.episode.agent_id, lane.episode.module_id, lane.episode.multi_agent_episode_id],
                    "earlier_return": lane.group.lives.earlier_return.item(lane.number),
                    "waits": lane.is_waiting,
                    "t_started": lane.episode.t_started,
                    "kept": lane.storage.lookback,
                    "infos": [storable(info) for info in lane.storage.column(Columns.INFOS)],
                    "custom_data": _notes(lane.episode),
                }
                for lane in self.lanes.in_order()
            ],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Takes what ``get_state`` gave. Must be called right after construction, or instead of a reset.

        Raises:
            CheckpointError: If an episode does not lead to where it led before.
        """
        self.lanes.clear()
        self.take_done()
        self._modules.forget()
        self._observed = state["observed"]
        for own in state["groups"]:
            group = self.lanes.add_group(*own["members"])
            group.make_room(own["num_lanes"])
            actions, is_over = own["rollout"]["columns"][Columns.ACTIONS], own["members"][2]
            if not is_over and not same_structure(group.rollout.columns[Columns.ACTIONS], actions):
                raise CheckpointError(
                    f"checkpoint: it is damaged: its actions of {own['members'][0]!r} are of another kind."
                )
            group.rollout.set_state(own["rollout"])
            group.note_carried()
        restored = [(self._restore_lane(own), own) for own in state["lanes"]]
        self.ongoing.clear()
        for copy, own in zip(self._vector_env.copies, state["copies"], strict=True):
            copy.episode_number = own["number"]
            at_reset, now = own.get("tasks", (None, None))
            _set_task(copy, at_reset)
            self._replay(copy, own["actions"], [pair for pair in restored if pair[0].env_index == copy.index])
            _set_task(copy, now)
            self._tallies[copy.index] = EpisodeTally.from_state(own["tally"])
            self._begun[copy.index] = {a: lane.module_id for a, lane in self.lanes.by_copy[copy.index].items()}
            episode = self._continued_episode(copy, f"{copy.index}-{copy.episode_number}", with_views=True)
            _remember(episode, own["memory"])
            self.ongoing.append(episode)

    def _restore_lane(self, own: Mapping[str, Any]) -> Lane:
        lane = self.lanes.reopen(own["group"], own["number"], own["env_index"], own["agent_id"])
        lives, number = lane.group.lives, lane.number
        lane.module_id, lives.earlier_return[number] = own["module_id"], own["earlier_return"]
        lives.start_row[number], lives.first_row[number] = self._lookback, self._lookback - own["kept"]
        lives.t_started[number] = own["t_started"]
        lane.group.rollout.pending[number] = own["waits"]
        lane.view(own["episode_id"], *own["ids"])
        lane.episode.custom_data.update(decode(own["custom_data"]))
        return lane

    def _replay(self, copy: EnvCopy, actions: Mapping[str, Any], lanes: list[tuple[Lane, Mapping[str, Any]]]) -> None:
        """Brings a copy to where its lanes are, and gives these their infos."""
        observed_at = [[int(t) for t in lane.storage.column(Columns.T)] for lane, _ in lanes]
        unknown = {
            t
            for times, (_, own) in zip(observed_at, lanes, strict=True)
            for t, info in zip(times, own["infos"], strict=True)
            if info is None
        }
        steps = ActionHistory.from_state(actions)
        observations, infos_at = self._vector_env.replay(copy, copy.episode_number, steps, unknown)
        if list(observations) != [lane.agent_id for lane, _ in lanes]:
            raise not_repeatable(copy)
        for times, (lane, own) in zip(observed_at, lanes, strict=True):
            rollout, first_row = lane.group.rollout, lane.storage.first_row
            if self._observed is None:
                position = int(rollout.cursor[lane.number])
                observed = take(rollout.source(Columns.OBS), slice(position, position + 1))
            else:
                observed = take(self._observed[lane.group.index], slice(own["row"], own["row"] + 1))
            replayed = spaces.stack([observations[lane.agent_id]], rollout.observation_space)
            if not all(map(np.array_equal, leaves(observed), leaves(replayed))):
                raise not_repeatable(copy, lane.agent_id)
            for row, (t, saved) in enumerate(zip(times, own["infos"], strict=True), first_row):
                info = infos_at[t].get(lane.agent_id) if saved is None else decode(saved)
                if info:
                    rollout.infos[row * rollout.num_lanes + lane.number] = info


# What is neither in the lanes nor follows from the actions.


def _memory_of(episode: Episode) -> dict[str, Any]:
    """What outlives the chunks of an episode of several agents."""
    if not isinstance(episode, MultiAgentEpisode):
        return {}
    return {
        "custom_data": _notes(episode),
        "modules": list(episode._module_of.items()),
        "ended": list(episode._ended_before.items()),
        "any_truncated": episode._truncated_before,
    }


def _remember(episode: Episode, memory: Mapping[str, Any]) -> None:
    if isinstance(episode, MultiAgentEpisode):
        episode.custom_data.update(decode(memory["custom_data"]))
        episode._module_of = dict(memory["modules"])
        episode._ended_before = dict(memory["ended"])
        episode._truncated_before = memory["any_truncated"]


def _tasks_of(copy: EnvCopy) -> list[Any]:
    """Of an environment with a curriculum: its task at the newest reset, and now."""
    return [encode(task, f"get_task() of {copy}") for task in (copy.task, task_of(copy.env))]


def _set_task(copy: EnvCopy, task: Any) -> None:
    settable = with_tasks(copy.env)
    if settable is not None and task is not None:
        settable.set_task(decode(task))


def _notes(episode: Episode) -> Any:
    return encode(episode.custom_data, f"custom_data of episode {episode.id_!r}")
