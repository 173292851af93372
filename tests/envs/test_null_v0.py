"""The null environment keeps PettingZoo's contract and costs next to nothing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from marl_envs import null_v0


def test_keeps_pettingzoos_parallel_contract():
    parallel_api_test(null_v0.parallel_env(), num_cycles=250)


def test_has_the_sizes_that_measurements_quote():
    env = null_v0.parallel_env()
    observations, _ = env.reset(seed=0)
    assert env.agents == [f"agent_{i}" for i in range(8)]
    assert {(o.shape, o.dtype.name) for o in observations.values()} == {((16,), "float32")}
    assert {env.action_space(a).n for a in env.agents} == {5}


def test_observations_lie_in_their_space():
    env = null_v0.parallel_env(pool=3)
    env.reset(seed=0)
    for _ in range(3):
        observations, *_ = env.step({})
        assert all(env.observation_space(a).contains(o) for a, o in observations.items())


def test_all_agents_are_truncated_together_at_the_last_step_and_never_terminated():
    env = null_v0.parallel_env(n_agents=2, ep_len=3)
    env.reset(seed=0)
    flags = [env.step({})[2:4] for _ in range(3)]
    no, yes = {"agent_0": False, "agent_1": False}, {"agent_0": True, "agent_1": True}
    assert flags == [(no, no), (no, no), (no, yes)]
    assert env.agents == []


def test_a_return_is_half_the_episode_length():
    env = null_v0.parallel_env(n_agents=1, ep_len=10)
    env.reset(seed=0)
    assert sum(env.step({})[1]["agent_0"] for _ in range(10)) == 5.0


def test_the_same_seed_shows_the_same_observations_and_another_seed_shows_others():
    env = null_v0.parallel_env(n_agents=1)
    first, same, other = (env.reset(seed=seed)[0]["agent_0"].copy() for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


def test_a_caller_that_changes_the_returned_dicts_does_not_change_the_next_episode():
    env = null_v0.parallel_env(n_agents=1, pool=1)
    observations, infos = env.reset(seed=0)
    observations.clear()
    infos.clear()
    assert [list(d) for d in env.reset(seed=0)] == [["agent_0"], ["agent_0"]]


def test_an_observation_is_read_only():
    observations, _ = null_v0.parallel_env(n_agents=1).reset(seed=0)
    with pytest.raises(ValueError, match="read-only"):
        observations["agent_0"][0] = 1.0


def test_the_state_is_the_joint_observation():
    env = null_v0.parallel_env(n_agents=2)
    observations, _ = env.reset(seed=5)
    np.testing.assert_array_equal(env.state(), [observations["agent_0"], observations["agent_1"]])


@pytest.mark.parametrize("size", ["n_agents", "obs_dim", "n_actions", "ep_len", "pool"])
def test_a_size_below_one_is_refused_by_name(size):
    with pytest.raises(ValueError, match=rf"(?s)^null_v0.*{size}.*\b1\b.*\b0\b"):
        null_v0.parallel_env(**{size: 0})


def test_episodes_follow_each_other_without_a_seed():
    env = null_v0.parallel_env(n_agents=1, ep_len=2)
    env.reset(seed=0)
    for _ in itertools.repeat(None, 3):
        env.step({})
        env.step({})
        assert env.agents == []
        env.reset()
        assert env.agents == ["agent_0"]
