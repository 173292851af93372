"""The matching game pays an agent for its own target and for nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from marl_envs import match_v0


def play(env, choose, seed=0):
    """Returns of one episode in which ``choose(observations)`` names all agents' actions."""
    observations, _ = env.reset(seed=seed)
    returns = dict.fromkeys(env.agents, 0.0)
    while env.agents:
        observations, rewards, *_ = env.step(choose(observations))
        for agent, reward in rewards.items():
            returns[agent] += reward
    return returns


def own_targets(observations):
    return {agent: int(target.argmax()) for agent, target in observations.items()}


@pytest.mark.parametrize("continuous_actions", [False, True])
def test_keeps_pettingzoos_parallel_contract(continuous_actions):
    parallel_api_test(match_v0.parallel_env(continuous_actions=continuous_actions), num_cycles=60)
    parallel_seed_test(lambda: match_v0.parallel_env(continuous_actions=continuous_actions), num_cycles=10)


@pytest.mark.parametrize("continuous_actions", [False, True])
@pytest.mark.parametrize(("n_agents", "ep_len"), [(1, 4), (3, 7)])
def test_an_agent_that_follows_its_observation_reaches_the_optimal_return(n_agents, ep_len, continuous_actions):
    env = match_v0.parallel_env(n_agents=n_agents, ep_len=ep_len, continuous_actions=continuous_actions)
    follow = (lambda observations: observations) if continuous_actions else own_targets
    assert play(env, follow) == {f"agent_{i}": float(ep_len) for i in range(n_agents)}
    assert env.optimal_return == ep_len


def test_agents_that_act_on_each_others_observations_stay_near_chance():
    env = match_v0.parallel_env(n_agents=2, n_actions=5, ep_len=1000)

    def swapped(observations):
        own = own_targets(observations)
        return {"agent_0": own["agent_1"], "agent_1": own["agent_0"]}

    # Chance pays 200 of 1000 with a standard deviation of sqrt(1000 * 0.2 * 0.8) = 12.6.
    assert env.random_return == 200.0
    assert all(abs(r - 200.0) < 5 * 12.6 for r in play(env, swapped).values())


def test_actions_of_the_step_before_stay_near_chance():
    env = match_v0.parallel_env(n_agents=1, n_actions=5, ep_len=1000)
    late = [0]

    def one_step_late(observations):
        late.append(int(observations["agent_0"].argmax()))
        return {"agent_0": late[-2]}

    assert abs(play(env, one_step_late)["agent_0"] - 200.0) < 5 * 12.6


def test_only_the_agent_that_matches_is_paid():
    env = match_v0.parallel_env(n_agents=2, n_actions=2)
    observations, _ = env.reset(seed=1)
    own = own_targets(observations)
    _, rewards, *_ = env.step({"agent_0": own["agent_0"], "agent_1": 1 - own["agent_1"]})
    assert rewards == {"agent_0": 1.0, "agent_1": 0.0}


def test_the_highest_score_is_the_choice_of_a_continuous_action():
    env = match_v0.parallel_env(n_agents=1, n_actions=3, continuous_actions=True)
    observations, _ = env.reset(seed=0)
    scores = np.where(observations["agent_0"] == 1.0, -0.5, -0.6).astype(np.float32)
    assert env.step({"agent_0": scores})[1] == {"agent_0": 1.0}


def test_an_observation_is_the_one_hot_target_and_the_state_holds_all_of_them():
    env = match_v0.parallel_env(n_agents=3, n_actions=4)
    observations, _ = env.reset(seed=0)
    rows = np.stack(list(observations.values()))
    assert rows.shape == (3, 4) and rows.dtype == np.float32
    assert sorted(rows.ravel().tolist()) == [0.0] * 9 + [1.0] * 3
    np.testing.assert_array_equal(rows.sum(axis=1), [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(env.state(), rows)


def test_all_agents_are_truncated_at_the_last_step_and_see_a_final_observation():
    env = match_v0.parallel_env(n_agents=2, ep_len=2)
    env.reset(seed=0)
    zeros = {"agent_0": 0, "agent_1": 0}
    no, yes = dict.fromkeys(zeros, False), dict.fromkeys(zeros, True)
    assert env.step(zeros)[2:4] == (no, no)
    observations, _, *flags, _ = env.step(zeros)
    assert flags == [no, yes]
    assert list(observations) == ["agent_0", "agent_1"] and env.agents == []


def test_without_a_seed_the_next_episode_has_other_targets():
    env = match_v0.parallel_env(n_agents=8, n_actions=100)
    first, _ = env.reset(seed=0)
    second, _ = env.reset()
    assert own_targets(first) != own_targets(second)


def test_numpy_integers_are_actions_too():
    env = match_v0.parallel_env(n_agents=1, n_actions=1)
    env.reset(seed=0)
    assert env.step({"agent_0": np.int64(0)})[1] == {"agent_0": 1.0}


def test_a_missing_action_is_refused_by_the_agents_name():
    env = match_v0.parallel_env(n_agents=2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"(?s)^match_v0.*'agent_1'.*\['agent_0'\]"):
        env.step({"agent_0": 0})


@pytest.mark.parametrize(
    ("continuous_actions", "action"), [(False, 5), (False, 0.5), (True, [2.0, 0, 0, 0, 0]), (True, [0.0])]
)
def test_an_action_outside_the_space_is_refused(continuous_actions, action):
    env = match_v0.parallel_env(n_agents=1, continuous_actions=continuous_actions)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"(?s)^match_v0.*'agent_0'"):
        env.step({"agent_0": action})


@pytest.mark.parametrize("steps", [0, 1])
def test_a_step_outside_an_episode_is_refused(steps):
    env = match_v0.parallel_env(n_agents=1, ep_len=1)
    if steps:
        env.reset(seed=0)
        env.step({"agent_0": 0})
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        env.step({"agent_0": 0})


@pytest.mark.parametrize("size", ["n_agents", "n_actions", "ep_len"])
def test_a_size_below_one_is_refused_by_name(size):
    with pytest.raises(ValueError, match=rf"(?s)^match_v0.*{size}.*\b1\b.*\b0\b"):
        match_v0.parallel_env(**{size: 0})
