"""The two-step game pays what the paper says."""

from __future__ import annotations

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from marl_envs import two_step_v0


@pytest.mark.parametrize(
    ("first", "second", "pay"),
    [
        *[((0, other), joint, 7.0) for other in (0, 1) for joint in ((0, 0), (0, 1), (1, 0), (1, 1))],
        *[((1, other), (0, 0), 0.0) for other in (0, 1)],
        *[((1, other), joint, 1.0) for other in (0, 1) for joint in ((0, 1), (1, 0))],
        *[((1, other), (1, 1), 8.0) for other in (0, 1)],
    ],
)
def test_each_joint_choice_pays_what_the_paper_says(first, second, pay):
    env = two_step_v0.parallel_env()
    observations, _ = env.reset(seed=0)
    assert {agent: seen.tolist() for agent, seen in observations.items()} == {agent: [1, 0, 0] for agent in env.agents}
    observations, rewards, terminations, truncations, _ = env.step(dict(zip(env.agents, first, strict=True)))
    assert rewards == dict.fromkeys(env.agents, 0.0)
    assert not any({**terminations, **truncations}.values())
    game = [0, 0, 1] if first[0] else [0, 1, 0]
    assert all(seen.tolist() == game for seen in observations.values()) and env.state().tolist() == game
    _, rewards, terminations, truncations, _ = env.step(dict(zip(env.agents, second, strict=True)))
    assert rewards == dict.fromkeys(env.possible_agents, pay)
    assert all(terminations.values()) and not any(truncations.values()) and env.agents == []


def test_the_known_returns_are_those_of_the_best_the_safe_and_random_play():
    env = two_step_v0.parallel_env()
    assert (env.optimal_return, env.safe_return) == (8.0, 7.0)
    rng, returns = np.random.default_rng(0), []
    for _ in range(4000):
        env.reset()
        while env.agents:
            _, rewards, *_ = env.step({agent: int(rng.integers(2)) for agent in env.agents})
        returns.append(rewards["agent_0"])
    assert abs(np.mean(returns) - env.random_return) < 5 * np.std(returns) / np.sqrt(4000)


def test_keeps_pettingzoos_parallel_contract_and_draws_itself():
    parallel_api_test(two_step_v0.parallel_env(), num_cycles=20)
    env = two_step_v0.parallel_env(render_mode="rgb_array")
    env.reset()
    before = env.render()
    env.step(dict.fromkeys(env.agents, 1))
    after = env.render()
    assert before is not None and after is not None and before.shape == after.shape == (60, 160, 3)
    assert before.dtype == np.uint8 and not np.array_equal(before, after)
