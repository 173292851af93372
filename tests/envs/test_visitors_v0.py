"""Visitors that come, die, leave and return: who is there when, with which flags, and paid what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test

from helpers.examples import examples
from marl_envs import visitors_v0


def right(observations, agents):
    """Everybody's target."""
    return {agent: int(observations[agent][:-2].argmax()) for agent in agents}


def wrong(observations, agents, n_actions=4):
    return {agent: (target + 1) % n_actions for agent, target in right(observations, agents).items()}


def visits(env, choose, seed=0):
    """``(agent, first step, last step, return, how it ended)`` of each visit, in the order of their ends."""
    observations, _ = env.reset(seed=seed)
    begun, paid, found, t = dict.fromkeys(env.agents, 0), dict.fromkeys(env.agents, 0.0), [], 0
    while env.agents:
        acting = env.agents
        observations, rewards, terminations, truncations, _ = env.step(choose(observations, acting))
        t += 1
        for agent in acting:
            paid[agent] += rewards[agent]
            if terminations[agent] or truncations[agent]:
                how = "died" if terminations[agent] else "left"
                assert terminations[agent] != truncations[agent]
                found.append((agent, begun.pop(agent), t, paid.pop(agent), how))
        for agent in env.agents:
            if agent not in begun:
                assert (rewards[agent], terminations[agent], truncations[agent]) == (0.0, False, False)
                begun[agent], paid[agent] = t, 0.0
        assert set(begun) == set(env.agents)
    assert not begun
    return found


def test_keeps_pettingzoos_parallel_contract():
    parallel_api_test(visitors_v0.parallel_env(returns=False, ep_len=100), num_cycles=150)
    parallel_seed_test(visitors_v0.parallel_env, num_cycles=40)


def test_pettingzoos_test_forbids_that_agents_return():
    with pytest.raises(AssertionError, match="dead"):
        parallel_api_test(visitors_v0.parallel_env(), num_cycles=150)


def test_the_timetable_of_visitors_that_are_always_right():
    env = visitors_v0.parallel_env(n_agents=3, n_start=1, visit_len=4, absence=2, arrival_every=3, ep_len=12)
    # agent_1 comes after 3 steps, agent_2 after 6. Each leaves after 4 and is back 2 later, until the doors are shut.
    assert visits(env, right) == [
        ("agent_0", 0, 4, 4.0, "left"),
        ("agent_1", 3, 7, 4.0, "left"),
        ("agent_0", 6, 10, 4.0, "left"),
        ("agent_2", 6, 10, 4.0, "left"),
        ("agent_1", 9, 13, 4.0, "left"),
    ]


def test_the_timetable_of_visitors_that_are_always_wrong():
    env = visitors_v0.parallel_env(
        n_agents=3, n_start=1, lives=2, visit_len=4, absence=2, arrival_every=3, ep_len=9, returns=False
    )
    # agent_0 dies after 2 steps; nobody would be left, so agent_1 comes at once, and so does agent_2, 2 steps later.
    assert visits(env, wrong) == [
        ("agent_0", 0, 2, 0.0, "died"),
        ("agent_1", 2, 4, 0.0, "died"),
        ("agent_2", 3, 5, 0.0, "died"),
    ]


def test_who_is_due_back_keeps_a_new_one_from_coming_at_once():
    env = visitors_v0.parallel_env(n_agents=3, n_start=2, lives=1, absence=1, arrival_every=9)
    observations, _ = env.reset(seed=0)
    observations, *_ = env.step(wrong(observations, ["agent_0"]) | right(observations, ["agent_1"]))
    env.step(wrong(observations, ["agent_1"]))
    assert env.agents == ["agent_0"]


def test_an_observation_says_target_lives_and_time():
    env = visitors_v0.parallel_env(n_agents=2, n_start=2, n_actions=3, lives=2, visit_len=4)
    observations, _ = env.reset(seed=0)
    for seen in observations.values():
        assert sorted(seen[:3]) == [0.0, 0.0, 1.0] and seen[3:].tolist() == [1.0, 1.0]
    actions = right(observations, ["agent_0"]) | wrong(observations, ["agent_1"], 3)
    observations, rewards, *_ = env.step(actions)
    assert rewards == {"agent_0": 1.0, "agent_1": 0.0}
    assert observations["agent_0"][3:].tolist() == [1.0, 0.75]
    assert observations["agent_1"][3:].tolist() == [0.5, 0.75]
    np.testing.assert_array_equal(env.state(), [observations["agent_0"], observations["agent_1"]])
    observations, _, terminations, truncations, _ = env.step(
        right(observations, ["agent_0"]) | wrong(observations, ["agent_1"], 3)
    )
    assert terminations == {"agent_0": False, "agent_1": True} and not any(truncations.values())
    assert observations["agent_1"][3:].tolist() == [0.0, 0.5]  # the last thing it sees
    assert env.agents == ["agent_0"]
    np.testing.assert_array_equal(env.state()[1], np.zeros(5))


def test_who_loses_its_last_life_at_the_end_of_its_visit_died():
    env = visitors_v0.parallel_env(n_agents=1, n_start=1, lives=1, visit_len=1, returns=False)
    observations, _ = env.reset(seed=0)
    _, _, terminations, truncations, _ = env.step(wrong(observations, env.agents))
    assert (terminations, truncations) == ({"agent_0": True}, {"agent_0": False})


def test_who_returns_has_all_its_lives_again():
    env = visitors_v0.parallel_env(n_agents=2, n_start=2, lives=1, absence=1, visit_len=9)
    observations, _ = env.reset(seed=0)
    observations, *_ = env.step(wrong(observations, ["agent_0"]) | right(observations, ["agent_1"]))
    assert env.agents == ["agent_1"]
    observations, *_ = env.step(right(observations, env.agents))
    assert env.agents == ["agent_1", "agent_0"]
    assert observations["agent_0"][-2:].tolist() == [1.0, 1.0]


@examples(30)
@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(1, 25),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_every_visit_is_whole_and_every_absence_as_long_as_it_should_be(
    n_agents, lives, visit_len, absence, arrival_every, ep_len, returns, seed
):
    env = visitors_v0.parallel_env(
        n_agents=n_agents,
        n_start=1,
        lives=lives,
        visit_len=visit_len,
        absence=absence,
        arrival_every=arrival_every,
        ep_len=ep_len,
        returns=returns,
    )
    rng = np.random.default_rng(seed)
    gone = {}
    found = visits(env, lambda _, agents: {agent: int(rng.integers(4)) for agent in agents}, seed)
    for agent, first, last, paid, how in sorted(found, key=lambda visit: visit[1]):
        assert first < ep_len or first == 0
        if agent in gone:
            assert returns and first - gone[agent] == absence
        gone[agent] = last
        steps = last - first
        lost = steps - paid
        assert (how, lost) == ("died", lives) or (how == "left" and steps == visit_len and lost < lives)


@pytest.mark.parametrize(("lives", "visit_len", "expected"), [(1, 2, 0.25 + 0.25**2), (2, 2, 0.5), (9, 4, 1.0)])
def test_random_returns_by_hand(lives, visit_len, expected):
    # A right choice has chance 1/4. With one life a second step needs a right first one; with enough lives all are had.
    assert visitors_v0.parallel_env(lives=lives, visit_len=visit_len).random_return == pytest.approx(expected)


def test_returns_of_random_visitors_are_what_is_said():
    env = visitors_v0.parallel_env(n_agents=50, n_start=50, ep_len=1)
    rng = np.random.default_rng(3)
    found = [
        visit[3]
        for seed in range(10)
        for visit in visits(env, lambda _, agents: {agent: int(rng.integers(4)) for agent in agents}, seed)
    ]
    error = np.std(found) / np.sqrt(len(found))
    assert len(found) == 500 and abs(np.mean(found) - env.random_return) < 4 * error


def test_more_visitors_at_the_start_than_there_are_is_refused():
    with pytest.raises(ValueError, match=r"(?s)^visitors_v0.*n_start.*n_agents.*\b2\b.*\b3\b"):
        visitors_v0.parallel_env(n_agents=2, n_start=3)


@pytest.mark.parametrize(
    "size", ["n_agents", "n_start", "n_actions", "lives", "visit_len", "absence", "arrival_every", "ep_len"]
)
def test_a_size_below_one_is_refused_by_name(size):
    with pytest.raises(ValueError, match=rf"(?s)^visitors_v0.*{size}.*\b1\b.*\b0\b"):
        visitors_v0.parallel_env(**{size: 0})
