"""First steps: paid for one action at the first step and for the other later, with nothing to tell them apart."""

from __future__ import annotations

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from marl_envs import first_step_v0


def mean_return(env, choose, episodes):
    """Of one agent in an episode; ``choose(t, rng)`` names an action at step ``t``."""
    rng, paid = np.random.default_rng(0), []
    for seed in range(episodes):
        env.reset(seed=seed)
        total, t = 0.0, 0
        while env.agents:
            _, rewards, *_ = env.step({agent: choose(t, rng) for agent in env.agents})
            total += sum(rewards.values())
            t += 1
        paid.append(total / len(env.possible_agents))
    return np.mean(paid), np.std(paid) / np.sqrt(episodes)


def test_keeps_pettingzoos_parallel_contract():
    parallel_api_test(first_step_v0.parallel_env(end_chance=0.1), num_cycles=60)
    parallel_seed_test(lambda: first_step_v0.parallel_env(end_chance=0.1), num_cycles=20)


def test_payments_by_hand():
    env = first_step_v0.parallel_env(n_agents=2, end_chance=0.0, ep_len=3)
    observations, _ = env.reset(seed=0)
    assert env.state().tolist() == [1.0, 1.0, 1.0]
    paid = []
    for _ in range(3):
        assert {agent: seen.tolist() for agent, seen in observations.items()} == {"agent_0": [1.0], "agent_1": [1.0]}
        observations, rewards, terminations, truncations, _ = env.step({"agent_0": 0, "agent_1": 1})
        paid.append(list(rewards.values()))
    assert paid == [[1.0, -1.0], [-1.0, 1.0], [-1.0, 1.0]]
    assert not any(terminations.values()) and all(truncations.values()) and env.agents == []


def test_each_agent_ends_by_itself_and_terminates():
    env = first_step_v0.parallel_env(n_agents=1000, end_chance=0.25)
    env.reset(seed=2)
    _, _, terminations, truncations, _ = env.step(dict.fromkeys(env.agents, 0))
    ended = sum(terminations.values())
    assert abs(ended - 250) < 4 * np.sqrt(1000 * 0.25 * 0.75) and not any(truncations.values())
    assert env.agents == [agent for agent, flag in terminations.items() if not flag]


def test_who_ends_at_the_last_step_is_terminated():
    env = first_step_v0.parallel_env(n_agents=1, end_chance=1.0, ep_len=1)
    env.reset(seed=0)
    assert env.step({"agent_0": 0})[2:4] == ({"agent_0": True}, {"agent_0": False})


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda t, rng: int(t > 0), "optimal_return"),
        (lambda t, rng: 1, "memoryless_return"),
        (lambda t, rng: 0, "memoryless_return"),
        (lambda t, rng: int(rng.integers(2)), "random_return"),
    ],
)
def test_returns_are_what_is_said(choose, expected):
    env = first_step_v0.parallel_env()
    mean, error = mean_return(env, choose, 1500)
    assert abs(mean - getattr(env, expected)) < 4 * error


def test_knowing_how_long_the_last_episode_was_does_not_help():
    # A policy whose state runs through all episodes knows no more than how many steps it has seen.
    env = first_step_v0.parallel_env(n_agents=1)
    paid, steps = {0: [], 1: []}, 0
    for seed in range(1500):
        env.reset(seed=seed)
        while env.agents:
            paid[steps % 2].append(env.step({"agent_0": 0})[1]["agent_0"])
            steps += 1
    assert all(abs(np.mean(rewards)) < 4 / np.sqrt(len(rewards)) for rewards in paid.values())


def test_expected_returns_by_hand():
    env = first_step_v0.parallel_env(end_chance=0.25, ep_len=2)
    assert env.optimal_return == env.mean_length == 1.75
    assert env.memoryless_return == 0.25  # action 0: 1 - 0.75


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"end_chance": -0.1}, r"end_chance.*\[0, 1\].*-0.1"),
        ({"ep_len": 0}, r"ep_len.*\b1\b.*\b0\b"),
        ({"n_agents": 0}, r"n_agents.*\b1\b.*\b0\b"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=rf"^first_step_v0: .*{message}"):
        first_step_v0.parallel_env(**arguments)
