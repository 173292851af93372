"""Recall: each agent's own cue, its own wait, and one answer that is paid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test

from helpers.examples import examples
from marl_envs import recall_v0


def returns(env, seed, answer):
    """Of one episode; ``answer(agent, seen)`` is asked at every step."""
    observations, _ = env.reset(seed=seed)
    paid = dict.fromkeys(env.agents, 0.0)
    while env.agents:
        observations, rewards, *_ = env.step({agent: answer(agent, observations[agent]) for agent in env.agents})
        for agent, reward in rewards.items():
            paid[agent] += reward
    return paid


def remembering():
    known = {}

    def answer(agent, seen):
        if seen[:-1].any():
            known[agent] = int(seen[:-1].argmax())
        return known[agent]

    return answer


@pytest.mark.parametrize("jitter", [0, 3])
def test_keeps_pettingzoos_parallel_contract(jitter):
    parallel_api_test(recall_v0.parallel_env(jitter=jitter), num_cycles=30)
    parallel_seed_test(lambda: recall_v0.parallel_env(jitter=jitter), num_cycles=30)


def test_a_trial_step_by_step():
    env = recall_v0.parallel_env(n_agents=1, n_cues=2, delay=2, n_trials=1)
    observations, _ = env.reset(seed=0)
    seen, paid, ends = [observations["agent_0"].tolist()], [], []
    cue = int(np.argmax(seen[0][:2]))
    while env.agents:
        observations, rewards, terminations, truncations, infos = env.step({"agent_0": cue})
        seen.append(observations["agent_0"].tolist())
        paid.append(rewards["agent_0"])
        ends.append((terminations["agent_0"], truncations["agent_0"]))
        assert infos == {"agent_0": {}}
    blank = [0.0, 0.0, 0.0]
    assert seen == [[float(cue == 0), float(cue == 1), 0.0], blank, blank, [0.0, 0.0, 1.0], blank]
    assert paid == [0.0, 0.0, 0.0, 1.0]
    assert ends == [(False, False)] * 3 + [(True, False)]


def test_a_wrong_answer_and_an_answer_at_another_time_are_paid_nothing():
    env = recall_v0.parallel_env(n_agents=1, n_cues=2, delay=0, n_trials=1)
    observations, _ = env.reset(seed=0)
    cue = int(observations["agent_0"][:2].argmax())
    assert env.step({"agent_0": cue})[1] == {"agent_0": 0.0}
    assert env.step({"agent_0": 1 - cue})[1] == {"agent_0": 0.0}


@examples(40)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.integers(1, 3), st.integers(0, 99)
)
def test_who_remembers_gets_the_optimal_return(n_agents, n_cues, delay, jitter, n_trials, seed):
    env = recall_v0.parallel_env(n_agents=n_agents, n_cues=n_cues, delay=delay, jitter=jitter, n_trials=n_trials)
    assert set(returns(env, seed, remembering()).values()) == {env.optimal_return} == {float(n_trials)}


def test_cues_and_waits_are_each_agents_own():
    env = recall_v0.parallel_env(n_agents=20, n_cues=4, delay=1, jitter=2)
    observations, _ = env.reset(seed=0)
    cues = {agent: int(seen[:-1].argmax()) for agent, seen in observations.items()}
    assert set(cues.values()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(env.state()[:, :4].argmax(axis=1), list(cues.values()))
    asked = {}
    for t in range(1, 5):
        observations, *_ = env.step(dict.fromkeys(cues, 0))
        asked |= {agent: t for agent, seen in observations.items() if seen[-1]}
        assert not np.array([seen[:-1] for seen in observations.values()]).any()
    assert set(asked.values()) == {2, 3, 4} and set(asked) == set(cues)


def test_trials_follow_each_other_with_new_cues():
    env = recall_v0.parallel_env(n_agents=30, n_cues=3, delay=0, n_trials=2)
    first, _ = env.reset(seed=0)
    env.step(dict.fromkeys(first, 0))
    second, *_ = env.step(dict.fromkeys(first, 0))
    cues = [[int(seen[:-1].argmax()) for seen in observations.values()] for observations in (first, second)]
    assert all(seen[:-1].sum() == 1.0 for seen in second.values()) and cues[0] != cues[1]


@pytest.mark.parametrize("whose", ["nobody's", "the next agent's"])
def test_without_ones_own_cue_there_is_no_more_than_the_memoryless_return(whose):
    env = recall_v0.parallel_env(n_agents=2, n_cues=4, n_trials=400)
    answer = remembering()
    if whose == "nobody's":
        paid = returns(env, 0, lambda agent, seen: 1)
    else:
        other = {"agent_0": "agent_1", "agent_1": "agent_0"}
        known = {}

        def swapped(agent, seen):
            known[agent] = answer(agent, seen)
            return known.get(other[agent], 0)

        paid = returns(env, 0, swapped)
    # 400 answers, each right with chance 1/4: a standard deviation of 8.7.
    assert env.memoryless_return == env.random_return == 100.0
    assert all(abs(r - 100.0) < 4 * 8.7 for r in paid.values())


@pytest.mark.parametrize(
    ("size", "least"), [("n_agents", 1), ("n_cues", 1), ("n_trials", 1), ("delay", 0), ("jitter", 0)]
)
def test_a_size_below_its_least_is_refused_by_name(size, least):
    with pytest.raises(ValueError, match=f"(?s)^recall_v0.*{size}.*{least}"):
        recall_v0.parallel_env(**{size: least - 1})
