"""Last observations are kept when the reset writes to the arrays that the last step returned."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_connectors.environments.vector.vector_env import VectorEnv


class OneArray(ParallelEnv):
    """An agent's observation is always the same array: -1 after a reset, then the number of the step.

    Args:
        ends: The step in which each agent terminates.
        late: The reward of agents that have ended before, in each step.
    """

    metadata = {"name": "one_array"}

    def __init__(self, ends, late=0.0):
        self.possible_agents, self.agents = list(ends), []
        self.ends, self.late = ends, late
        self.seen = {agent: np.zeros(1, np.float32) for agent in ends}

    def observation_space(self, agent):
        return spaces.Box(-1, 9, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agents, number):
        for agent in agents:
            self.seen[agent][:] = number
        return {agent: self.seen[agent] for agent in agents}

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self.possible_agents)
        return self.observe(self.agents, -1), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        acting, self.agents = self.agents, [agent for agent in self.agents if self.ends[agent] > self.t]
        rewards = {agent: 1.0 if agent in acting else self.late for agent in self.possible_agents}
        rewards = {agent: reward for agent, reward in rewards.items() if reward}
        flags = {agent: self.ends[agent] == self.t for agent in acting}
        return (
            self.observe(acting, self.t),
            rewards,
            flags,
            dict.fromkeys(acting, False),
            {agent: {} for agent in acting},
        )


def test_of_agents_that_end_together():
    vector = VectorEnv([OneArray({"a": 1, "b": 1})], seed=0)
    vector.reset_all()
    result = vector.step([0, 0])
    assert result.ends is not None
    assert np.array(result.ends.observations).tolist() == [[1], [1]]
    assert np.array(result.observations).tolist() == [[-1], [-1]]


def test_of_an_episode_that_ends_with_a_reward_of_an_absent_agent():
    vector = VectorEnv([OneArray({"a": 1, "b": 2}, late=5.0)], seed=0)
    vector.reset_all()
    (first,) = vector.step([0, 0]).events
    assert ({agent: own.tolist() for agent, own in first.observations.items()}, first.is_over) == ({"a": [1]}, False)
    result = vector.step([0])
    (last,) = result.events
    assert ({agent: own.tolist() for agent, own in last.observations.items()}, last.is_over) == ({"b": [2]}, True)
    assert last.uncredited == {"a": 5.0}
    assert np.array(result.observations).tolist() == [[-1], [-1]]


class OneDict(OneArray):
    """Rewards and flags are always the same objects too, which a reset clears."""

    def __init__(self, ends):
        super().__init__(ends)
        self.rewards = {agent: np.zeros(()) for agent in ends}
        self.flags = {}

    def reset(self, seed=None, options=None):
        self.flags.clear()
        for reward in self.rewards.values():
            reward[...] = -1.0
        return super().reset(seed, options)

    def step(self, actions):
        obs, _, flags, truncations, infos = super().step(actions)
        self.flags.update(flags)
        for reward in self.rewards.values():
            reward[...] = self.t
        return obs, self.rewards, self.flags, truncations, infos


def test_rewards_and_flags_are_kept_too():
    vector = VectorEnv([OneDict({"a": 1, "b": 2})], seed=0)
    vector.reset_all()
    assert [float(reward) for reward in vector.step([0, 0]).rewards] == [1.0, 1.0]
    result = vector.step([0])
    (last,) = result.events  # agent "a", which is paid although it has ended, makes it one
    assert last.is_over and last.terminations["b"]
    assert [float(reward) for reward in result.rewards] == [2.0]
