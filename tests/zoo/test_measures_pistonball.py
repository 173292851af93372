"""Whether the ball has reached the left wall, in games that end in both ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from marl_connectors.environments.registry.factory import make_env
from marl_connectors.zoo import find_task
from marl_connectors.zoo.measures import wall_reached


def made() -> Any:
    pytest.importorskip("pettingzoo.butterfly.pistonball_v6")
    pytest.importorskip("supersuit")
    task = find_task("pistonball_v6")
    assert task is not None
    return make_env(task.env, task.settings["env_config"], wrappers=task.settings["wrappers"])


def test_a_ball_that_stays_has_not_reached_the_wall():
    env = made()
    env.reset(seed=0)
    for _ in range(3):
        env.step({agent: np.zeros(1, np.float32) for agent in env.agents})
        assert wall_reached(env.unwrapped, None) == 0


def test_a_ball_that_rolls_down_a_slope_reaches_the_wall():
    env = made()
    env.reset(seed=2)
    own, total = env.unwrapped, 0.0
    while env.agents:
        right = {agent: own.ball.position[0] < 60 + 40 * i for i, agent in enumerate(own.possible_agents)}
        rewards = env.step({agent: np.full(1, 1.0 if right[agent] else -1.0, np.float32) for agent in env.agents})[1]
        total += rewards["piston_0"]
    assert wall_reached(own, None) == 1
    assert total > 90


def test_agents_see_the_ball_move():
    env = made()
    env.reset(seed=0)
    seen = [env.step({agent: np.zeros(1, np.float32) for agent in env.agents})[0] for _ in range(6)]
    near = [agent for agent in seen[0] if not np.array_equal(seen[0][agent], seen[-1][agent])]
    assert near and set(near) <= {f"piston_{i}" for i in range(14, 20)}
    assert seen[0][near[0]].shape == (46, 12)
