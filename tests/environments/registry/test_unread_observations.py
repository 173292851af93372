"""Parallel environments that are converted turn-based ones observe each agent once in a step."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import AgentSelector
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec
from pettingzoo.utils.wrappers import BaseParallelWrapper, OrderEnforcingWrapper

from marl_connectors.environments.registry import factory

AGENTS = ["a", "b", "c"]


class Turns(AECEnv):
    """Three agents whose observation is the number of steps so far; the episode ends after four rounds."""

    metadata = {"name": "turns", "is_parallelizable": True}
    render_mode = None

    def __init__(self):
        self.possible_agents = list(AGENTS)
        self.observed = []

    def observation_space(self, agent):
        return spaces.Box(0, 100, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = list(AGENTS)
        self.rounds = 0
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict.fromkeys(AGENTS, 0.0)
        self.terminations = dict.fromkeys(AGENTS, False)
        self.truncations = dict.fromkeys(AGENTS, False)
        self.infos = {agent: {} for agent in AGENTS}
        self._order = AgentSelector(AGENTS)
        self.agent_selection = self._order.next()

    def observe(self, agent):
        self.observed.append(agent)
        return np.array([self.rounds], np.float32)

    def step(self, action):
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[self.agent_selection] = 0
        self._clear_rewards()
        self.rewards[self.agent_selection] = float(action)
        if self._order.is_last():
            self.rounds += 1
            self.terminations = dict.fromkeys(AGENTS, self.rounds == 4)
        self.agent_selection = self._order.next()
        self._accumulate_rewards()


class OwnLast(Turns):
    """An environment whose ``last`` always observes."""

    def last(self, observe=True):
        return super().last(True)


class Outer(BaseParallelWrapper):
    """A wrapper that changes nothing."""


def make_env(maker, **settings) -> Any:
    return factory.make_env(maker, **settings)


def episode(env):
    rng = np.random.default_rng(0)
    steps = [env.reset(seed=0)]
    while env.agents:
        steps.append(env.step({agent: int(rng.integers(2)) for agent in env.agents}))
    return steps


def wrapped():
    return Outer(aec_to_parallel(OrderEnforcingWrapper(Turns())))


def converted_twice():
    return aec_to_parallel(OrderEnforcingWrapper(parallel_to_aec(wrapped())))


@pytest.mark.parametrize("maker", [lambda: aec_to_parallel(Turns()), wrapped, converted_twice])
def test_each_agent_is_observed_once_in_a_step_and_nothing_else_changes(maker):
    env, plain = make_env(maker), maker()
    assert episode(env) == episode(plain)
    assert env.unwrapped.observed == AGENTS * 5  # the reset and four steps
    assert len(plain.unwrapped.observed) > len(AGENTS) * 5


def test_wrappers_of_a_run_are_conversions_too():
    env = make_env(lambda: aec_to_parallel(Turns()), wrappers=[lambda own: aec_to_parallel(parallel_to_aec(own))])
    env.unwrapped.observed.clear()
    assert episode(env) == episode(aec_to_parallel(Turns()))
    assert env.unwrapped.observed == AGENTS * 5


def test_a_last_of_its_own_stays():
    env = make_env(lambda: aec_to_parallel(OwnLast()))
    assert episode(env) == episode(aec_to_parallel(Turns()))
    assert env.unwrapped.observed == AGENTS + (AGENTS + AGENTS) * 4


@pytest.mark.parametrize("again", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_are_independent(again):
    env = make_env(lambda: aec_to_parallel(Turns()))
    env.reset(seed=0)
    other = again(env)
    assert episode(other) == episode(aec_to_parallel(Turns()))
    assert env.unwrapped.rounds == 0 and env.unwrapped.observed == AGENTS
