"""Prices and masks: half of the actions are allowed, forbidden ones end in loss, or raise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test

from helpers.examples import examples
from marl_envs import masked_v0


def returns(env, choose, episodes):
    """Of all agents in some episodes; ``choose(observation)`` names an action."""
    paid = []
    for seed in range(episodes):
        observations, _ = env.reset(seed=seed)
        own = dict.fromkeys(env.agents, 0.0)
        while env.agents:
            observations, rewards, *_ = env.step({agent: choose(observations[agent]) for agent in env.agents})
            for agent, reward in rewards.items():
                own[agent] += reward
        paid += own.values()
    return np.array(paid)


def dearest_allowed(seen):
    return int(np.where(seen["action_mask"], seen["observation"], -1.0).argmax())


def any_allowed(rng):
    return lambda seen: int(rng.choice(np.flatnonzero(seen["action_mask"])))


def dearest(seen):
    return int(seen["observation"].argmax())


@pytest.mark.parametrize("illegal", ["lose", "raise"])
def test_keeps_pettingzoos_parallel_contract(illegal):
    make = lambda: masked_v0.parallel_env(illegal=illegal)
    parallel_api_test(make(), num_cycles=60)
    if illegal == "lose":  # the other test does not look at masks
        parallel_seed_test(make, num_cycles=20)


def test_the_price_of_an_allowed_action_is_paid_and_a_forbidden_one_ends_in_loss():
    env = masked_v0.parallel_env(n_agents=2, n_actions=4, illegal_reward=-2.0)
    observations, _ = env.reset(seed=0)
    allowed = dearest_allowed(observations["agent_0"])
    forbidden = int(np.flatnonzero(observations["agent_1"]["action_mask"] == 0)[0])
    price = observations["agent_0"]["observation"][allowed]
    seen, rewards, terminations, truncations, _ = env.step({"agent_0": allowed, "agent_1": forbidden})
    assert rewards == {"agent_0": float(price), "agent_1": -2.0}
    assert terminations == {"agent_0": False, "agent_1": True} and not any(truncations.values())
    assert env.agents == ["agent_0"] and set(seen) == {"agent_0", "agent_1"}
    assert list(env.step({"agent_0": dearest_allowed(seen["agent_0"])})[0]) == ["agent_0"]


def test_a_forbidden_action_may_raise_instead():
    env = masked_v0.parallel_env(n_agents=1, n_actions=2, illegal="raise")
    observations, _ = env.reset(seed=0)
    allowed = dearest_allowed(observations["agent_0"])
    with pytest.raises(ValueError, match=rf"(?s)'agent_0'.*{1 - allowed}.*\[{allowed}\]"):
        env.step({"agent_0": 1 - allowed})


@examples(40)
@given(st.integers(1, 4), st.integers(2, 9), st.integers(1, 6), st.integers(0, 99))
def test_half_of_the_actions_are_allowed_and_who_minds_the_mask_is_truncated(n_agents, n_actions, ep_len, seed):
    env = masked_v0.parallel_env(n_agents=n_agents, n_actions=n_actions, ep_len=ep_len, illegal="raise")
    choose = any_allowed(np.random.default_rng(seed))
    observations, _ = env.reset(seed=seed)
    for t in range(ep_len):
        for agent, seen in observations.items():
            assert env.observation_space(agent).contains(seen)
            assert seen["action_mask"].sum() == (n_actions + 1) // 2
        observations, _, terminations, truncations, _ = env.step({a: choose(seen) for a, seen in observations.items()})
        assert not any(terminations.values())
        assert list(truncations.values()) == [t == ep_len - 1] * n_agents
    assert env.agents == []


def test_masks_are_fair_and_drawn_for_each_agent():
    env = masked_v0.parallel_env(n_agents=2000, n_actions=4)
    env.reset(seed=0)
    masks, prices = env.state()[:, 4:], env.state()[:, :4]
    np.testing.assert_allclose(masks.mean(axis=0), 0.5, atol=4 * 0.5 / np.sqrt(2000))
    together = np.corrcoef(masks.T, prices.T)[:4, 4:]
    np.testing.assert_allclose(together, 0.0, atol=4 / np.sqrt(2000))


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (dearest_allowed, "optimal_return"),
        (any_allowed(np.random.default_rng(0)), "random_return"),
        (dearest, "unmasked_return"),
    ],
)
def test_returns_are_what_is_said(choose, expected):
    env = masked_v0.parallel_env(n_agents=20, ep_len=10)
    found = returns(env, choose, 40)
    assert abs(found.mean() - getattr(env, expected)) < 4 * found.std() / np.sqrt(800)


def test_returns_by_hand():
    env = masked_v0.parallel_env(n_actions=2, ep_len=2)
    assert env.optimal_return == 2 * 0.5  # the mean of the one price that is allowed, twice
    # Right with chance 1/2: then the larger of two prices, 2/3 on average, else -1; a second step with chance 1/2.
    assert env.unmasked_return == pytest.approx(1.5 * (0.5 * 2 / 3 - 0.5))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_actions": 1}, r"n_actions.*\b2\b.*\b1\b"),
        ({"ep_len": 0}, r"ep_len.*\b1\b.*\b0\b"),
        ({"illegal": "warn"}, r"'lose'.*'raise'.*'warn'"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=rf"^masked_v0: .*{message}"):
        masked_v0.parallel_env(**arguments)
