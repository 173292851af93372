"""Staying or leaving: who ends how, what it is worth, and what it seems worth to those who take a cut for an end."""

from __future__ import annotations

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from marl_envs import stay_v0
from marl_envs.stay_v0 import LEAVE, STAY


def test_keeps_pettingzoos_parallel_contract():
    parallel_api_test(stay_v0.parallel_env(cut_chance=0.1), num_cycles=60)
    parallel_seed_test(lambda: stay_v0.parallel_env(cut_chance=0.1), num_cycles=20)


def test_who_leaves_terminates_and_who_is_cut_is_truncated():
    env = stay_v0.parallel_env(n_agents=2, leave_reward=4.0, cut_chance=1.0)
    observations, _ = env.reset(seed=0)
    assert {agent: seen.tolist() for agent, seen in observations.items()} == {"agent_0": [1.0], "agent_1": [1.0]}
    observations, rewards, terminations, truncations, _ = env.step({"agent_0": LEAVE, "agent_1": STAY})
    assert rewards == {"agent_0": 4.0, "agent_1": 1.0}
    assert terminations == {"agent_0": True, "agent_1": False}
    assert truncations == {"agent_0": False, "agent_1": True}
    assert set(observations) == {"agent_0", "agent_1"} and env.agents == []


def test_without_cuts_all_stay_until_the_end_and_are_truncated():
    env = stay_v0.parallel_env(n_agents=2, cut_chance=0.0, ep_len=3)
    env.reset(seed=0)
    stays = {"agent_0": STAY, "agent_1": STAY}
    no, yes = dict.fromkeys(stays, False), dict.fromkeys(stays, True)
    assert [env.step(stays)[2:4] for _ in range(3)] == [(no, no), (no, no), (no, yes)]
    assert env.optimal_return == 3.0


def test_who_is_left_goes_on_when_others_have_gone():
    env = stay_v0.parallel_env(n_agents=3, cut_chance=0.0)
    env.reset(seed=0)
    env.step({"agent_0": STAY, "agent_1": LEAVE, "agent_2": STAY})
    assert env.agents == ["agent_0", "agent_2"] and env.state().tolist() == [1.0, 0.0, 1.0]
    _, rewards, *_ = env.step({"agent_0": STAY, "agent_2": LEAVE})
    assert rewards == {"agent_0": 1.0, "agent_2": 3.0} and env.agents == ["agent_0"]


def test_cuts_come_with_their_chance_and_for_each_agent_alone():
    env = stay_v0.parallel_env(n_agents=2000, cut_chance=0.3)
    env.reset(seed=1)
    alive = [2000]
    for _ in range(3):
        env.step(dict.fromkeys(env.agents, STAY))
        alive.append(len(env.agents))
    shares = np.divide(alive[1:], alive[:-1])
    np.testing.assert_allclose(shares, 0.7, atol=4 * np.sqrt(0.21 / 980))


def iterated_values(gamma, leave_reward, cut_chance, *, bootstrapped):
    """Values of leaving and staying, by value iteration over the one state there is."""
    value = 0.0
    for _ in range(500):
        goes_on = 1.0 if bootstrapped else 1.0 - cut_chance
        leave, stay = leave_reward, 1.0 + gamma * goes_on * value
        value = max(leave, stay)
    return leave, stay


@pytest.mark.parametrize("bootstrapped", [True, False])
def test_the_default_arguments_make_the_difference(bootstrapped):
    env = stay_v0.parallel_env()
    leave, stay = iterated_values(0.9, env.leave_reward, env.cut_chance, bootstrapped=bootstrapped)
    assert (stay > leave) is bootstrapped
    worth = env.value_of_staying(0.9, bootstrapped=bootstrapped)
    assert (worth > env.leaving_return) is bootstrapped
    assert worth == pytest.approx(10.0 if bootstrapped else 1 / 0.55)
    if bootstrapped:
        assert stay == pytest.approx(worth)


def test_expected_returns_by_hand():
    env = stay_v0.parallel_env(cut_chance=0.5, ep_len=3, leave_reward=3.0)
    assert env.optimal_return == 1.0 + 0.5 + 0.25
    # Each step pays (1 + 3) / 2, and the next one is reached with chance 1/4.
    assert env.random_return == 2.0 * (1.0 + 0.25 + 0.0625)
    assert env.leaving_return == 3.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cut_chance": 1.5}, r"cut_chance.*\[0, 1\].*1.5"),
        ({"leave_reward": -1.0}, r"leave_reward.*0.0.*-1.0"),
        ({"ep_len": 0}, r"ep_len.*\b1\b.*\b0\b"),
        ({"n_agents": 0}, r"n_agents.*\b1\b.*\b0\b"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=rf"^stay_v0: .*{message}"):
        stay_v0.parallel_env(**arguments)
