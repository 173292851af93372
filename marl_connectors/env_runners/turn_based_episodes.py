"""Ongoing episodes of turn-based environments: agents act one after another, and wait for one another."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.env_runners.data_checks import bad_observation
from marl_connectors.env_runners.lanes import Lane, LaneGroup
from marl_connectors.env_runners.replayable_episodes import ReplayableEpisodes
from marl_connectors.env_runners.turn_based_vector_env import Turn
from marl_connectors.typing import AgentID


class TurnBasedEpisodes(ReplayableEpisodes):
    """An agent's lane waits while others act: its newest row is *pending* from its action until its next turn.

    What an agent is paid meanwhile goes to that row. An agent gets its lane, and is mapped to its module, at its first
    turn in an episode.
    """

    def acted(self) -> None:
        """Lets all lanes that acted wait."""
        for group in self.lanes.groups:
            group.rollout.pending[[lane.number for lane in group.acting]] = True

    def follow_turns(self, turns: list[Turn]) -> None:
        """Pays, ends and begins agents' episodes as the copies report, and opens the rows of those who act next."""
        self.ended, self.ended_agents = [], []
        opened: dict[LaneGroup, list[tuple[Lane, Any]]] = {}
        for turn in turns:
            copy = self._vector_env.copies[turn.index]
            lanes = self.lanes.by_copy[turn.index]
            self._pay(turn, lanes)
            self._end_agents(turn, lanes)
            if turn.is_over:
                self._end_episode(turn)
                self.lanes.close(turn.index, list(lanes))
                self.ongoing[turn.index] = self._begin_episode(copy, *self._mapped(copy))
                observations, infos = turn.first_observations, turn.first_infos
            else:
                episode: Any = self.ongoing[turn.index]
                episode.env_t = turn.t
                for agent_id in copy.agents:
                    lane = lanes.get(agent_id)
                    if lane is not None:
                        _go_on(lane)
                        continue
                    module_id = self._module_for(episode, agent_id)
                    self._begin_agent(episode, self.lanes.open(turn.index, agent_id, module_id), module_id)
                observations, infos = turn.observations, turn.infos
            for agent_id in copy.agents:
                lane = lanes[agent_id]
                opened.setdefault(lane.group, []).append((lane, observations[agent_id]))
                info = infos.get(agent_id)
                if info:
                    lane.group.rollout.infos[int(lane.group.rollout.cursor[lane.number])] = dict(info)
        for group, own in opened.items():
            self._observe(group, own)

    def _pay(self, turn: Turn, lanes: dict[AgentID, Lane]) -> None:
        """Credits rewards to the actions that wait for them; others as those of agents that did not act."""
        for agent_id, reward in turn.rewards.items():
            lane = lanes.get(agent_id)
            if lane is not None and lane.is_waiting:
                rollout = lane.group.rollout
                rollout.columns[Columns.REWARDS][rollout.cursor[lane.number]] += reward
            elif reward:
                turn.stray_rewards[agent_id] = reward
        self._credit_strangers(turn)

    def _end_agents(self, turn: Turn, lanes: dict[AgentID, Lane]) -> None:
        """Ends those that are flagged; one that never had a turn has no lane and nothing to end."""
        leaving = [a for a in lanes if turn.terminations.get(a) or turn.truncations.get(a)]
        for agent_id in leaving:
            _go_on(lanes[agent_id])
            self._end_agent(turn, lanes[agent_id])
        if leaving:
            self.ended.append(self.ongoing[turn.index])
            if not turn.is_over:
                self.lanes.close(turn.index, leaving)

    def _observe(self, group: LaneGroup, own: list[tuple[Lane, Any]]) -> None:
        rollout = group.rollout
        positions = np.array([rollout.cursor[lane.number] for lane, _ in own], np.int64)
        clocks = np.array([self._vector_env.copies[lane.env_index].t for lane, _ in own], np.int32)
        try:
            values = spaces.stack([observation for _, observation in own], rollout.observation_space)
            rollout.observe(positions, values, clocks)
        except (TypeError, ValueError) as error:
            for lane, observation in own:
                if spaces.misfit(rollout.observation_space, observation):
                    raise bad_observation(lane, self._vector_env, observation) from error
            raise


def _go_on(lane: Lane) -> None:
    """Closes the row that waits; the one after it is open now."""
    if lane.is_waiting:
        lane.group.rollout.pending[lane.number] = False
        lane.group.skip_row(lane)
