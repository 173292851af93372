"""Ongoing episodes of turn-based environments: agents act one after another, and wait for one another."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from marl_connectors import spaces
from marl_connectors.columns import Columns
from marl_connectors.env_runners.data_checks import bad_observation
from marl_connectors.env_runners.done_episodes import Episode
from marl_connectors.env_runners.lanes import Lane, LaneGroup
from marl_connectors.env_runners.replayable_episodes import ReplayableEpisodes
from marl_connectors.environments.turn_based_vector_env import Turn
from marl_connectors.episodes.rollout import take
from marl_connectors.typing import AgentID


class TurnBasedEpisodes(ReplayableEpisodes):
    """An agent's lane waits while others act: its newest row is *pending* from its action until its next turn.

    What an agent is paid meanwhile goes to that row. An agent gets its lane, and is mapped to its module, at its first
    turn in an episode.
    """

    def __init__(self, *args: Any, **settings: Any):
        """As OngoingEpisodes."""
        super().__init__(*args, **settings)
        self._opened: dict[LaneGroup, _Opened] = {}

    def acting(self) -> list[Episode]:
        """The episodes in which it is somebody's turn."""
        return [e for e, copy in zip(self.ongoing, self._vector_env.copies, strict=True) if copy.agents]

    def cut(self, num_rows: int) -> list[Episode]:
        """As OngoingEpisodes. A lane gets rows for its own turns only, about as many as in the fragment that ends."""
        used = max((group.last_row - group.lookback for group in self.lanes.groups), default=0)
        return super().cut(min(num_rows, used + 1))

    def acted(self) -> None:
        """Lets all lanes that acted wait."""
        for group in self.lanes.groups:
            group.rollout.pending[[lane.number for lane in group.acting]] = True

    def follow_turns(self, turns: list[Turn]) -> None:
        """Pays, ends and begins agents' episodes as the copies report. Those who act next observe in ``observe``.

        A hot path: of a turn after which somebody goes on who has waited, and nothing else, it only takes note.
        """
        self._ended = {}
        self._opened = {}
        going_on: dict[LaneGroup, tuple[list[int], list[float]]] = {}
        for turn in turns:
            copy = self._vector_env.copies[turn.index]
            lanes = self.lanes.by_copy[turn.index]
            rewards = turn.rewards
            if len(rewards) == 1 and len(copy.agents) == 1 and not turn.is_over and not turn.stray_rewards:
                agent_id = copy.agents[0]
                lane = lanes.get(agent_id)
                if lane is not None and agent_id in rewards:
                    numbers, paid = going_on.setdefault(lane.group, ([], []))
                    numbers.append(lane.number)
                    paid.append(rewards[agent_id])
                    self._open(lane, turn.t, turn.observations[agent_id], turn.infos.get(agent_id))
                    continue
            self._follow_turn(turn, lanes)
        for group, (numbers, paid) in going_on.items():
            group.go_on(numbers, paid)

    def _follow_turn(self, turn: Turn, lanes: dict[AgentID, Lane]) -> None:
        copy = self._vector_env.copies[turn.index]
        self._pay(turn, lanes)
        self._end_agents(turn, lanes)
        observations, infos = turn.observations, turn.infos
        if turn.is_over:
            if turn.is_dropped:
                self._drop_episode(turn)
            else:
                self._end_episode(turn)
            if self.told is not None:
                self.told.ended([turn], self.ongoing)
            if turn.awaits_reset:
                self._vector_env.reset_late(turn)
            self.lanes.close(turn.index, list(lanes))
            self.ongoing[turn.index] = self._begin_episode(copy, *self._mapped(copy))
            observations, infos = turn.first_observations, turn.first_infos
        else:
            episode: Any = self.ongoing[turn.index]
            episode.env_t = turn.t
            for agent_id in copy.agents:
                if agent_id in lanes:
                    _go_on(lanes[agent_id])
                    continue
                self._begin_agent(episode, turn.index, agent_id)
        for agent_id in copy.agents:
            self._open(lanes[agent_id], copy.t, observations[agent_id], infos.get(agent_id))

    def _open(self, lane: Lane, t: int, observation: Any, info: dict[str, Any] | None) -> None:
        opened = self._opened.get(lane.group)
        if opened is None:
            opened = self._opened[lane.group] = _Opened([], [], [], [])
        opened.lanes.append(lane)
        opened.clocks.append(t)
        opened.observations.append(observation)
        opened.infos.append(info)

    def observe(self) -> None:
        """Writes the observations and infos of those who act next."""
        states = self._vector_env.states()
        for group, (lanes, clocks, observations, infos) in self._opened.items():
            rollout = group.rollout
            positions = rollout.cursor[[lane.number for lane in lanes]]
            try:
                values = spaces.stack(observations, rollout.observation_space)
                of_rows = None if states is None else take(states, np.array([lane.env_index for lane in lanes]))
                rollout.observe(positions, values, np.array(clocks, np.int32), of_rows)
            except (TypeError, ValueError) as error:
                for lane, observation in zip(lanes, observations, strict=True):
                    if not spaces.fits(rollout.observation_space, observation):
                        raise bad_observation(lane, self._vector_env, observation) from error
                raise
            for position, info in zip(positions.tolist(), infos, strict=True):
                if info:
                    rollout.infos[position] = info

    def _pay(self, turn: Turn, lanes: dict[AgentID, Lane]) -> None:
        """Credits rewards to the actions that wait for them; others as those of agents that did not act."""
        for agent_id, reward in turn.rewards.items():
            lane = lanes.get(agent_id)
            if lane is not None and lane.is_waiting:
                rollout = lane.group.rollout
                rollout.columns[Columns.REWARDS][rollout.cursor[lane.number]] = reward
            elif reward:
                turn.stray_rewards[agent_id] = turn.stray_rewards.get(agent_id, 0.0) + reward
        self._credit_strangers(turn)

    def _end_agents(self, turn: Turn, lanes: dict[AgentID, Lane]) -> None:
        """Ends those that are flagged; one that never had a turn has no lane and nothing to end."""
        leaving = [a for a in lanes if turn.terminations.get(a) or turn.truncations.get(a)]
        for agent_id in leaving:
            _go_on(lanes[agent_id])
            self._end_agent(turn, lanes[agent_id])
        if leaving and not turn.is_over:
            self.lanes.close(turn.index, leaving)


class _Opened(NamedTuple):
    """Rows of a group that begin in this step, one entry each."""

    lanes: list[Lane]
    clocks: list[int]
    observations: list[Any]
    infos: list[dict[str, Any] | None]


def _go_on(lane: Lane) -> None:
    """Closes the row that waits; the one after it is open now."""
    if lane.is_waiting:
        lane.group.rollout.pending[lane.number] = False
        lane.group.skip_row(lane)
