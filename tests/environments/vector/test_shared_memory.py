"""What is written to the columns of one process is what another one reads; what does not fit them is not written."""

from __future__ import annotations

import enum
import os
from multiprocessing.connection import Connection

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.random_spaces import assert_identical, in_another_form, random_item, random_space, stacked
from helpers.envs.scripted_envs import small_config
from marl_connectors import spaces as space_tools
from marl_connectors.environments.registry.spec import EnvSpec
from marl_connectors.environments.vector.shared_memory import SharedColumns
from marl_connectors.environments.vector.worker_vector_env import make_vector_env
from marl_connectors.typing import DEFAULT_AGENT_ID

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


def both_sides(agent_spaces, num_envs=3):
    """The memory as the process that makes it has it, and as another one that gets it."""
    one = SharedColumns(agent_spaces, num_envs)
    return one, SharedColumns(agent_spaces, num_envs, one.memory)


def assert_same(found, expected):
    """The same items, of the same types."""
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for mine, other in zip(found, expected, strict=True):
            assert_same(mine, other)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, (np.ndarray, np.generic)):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    else:
        assert found == expected or found != found


def play(seed):
    """Some steps with agents of random spaces, in random order."""
    rng = np.random.default_rng(seed)
    kinds = [(random_space(rng, keys="str", empty=False), BOX) for _ in "abc"]
    agents = {f"agent_{i}": kinds[rng.integers(len(kinds))] for i in range(4)}
    here, there = both_sides(agents)
    for _ in range(4):
        acting = [str(agent) for _ in range(3) for agent in rng.permutation(list(agents))[: rng.integers(5)]]
        items = [random_item(rng, agents[agent][0]) for agent in acting]
        observations = [in_another_form(rng, agents[a][0], item) for a, item in zip(acting, items, strict=True)]
        assert there.write(acting, observations)
        for agent, found, item in zip(acting, here.read(acting), items, strict=True):
            space = agents[agent][0]
            assert_identical(space_tools.stack([found], space), stacked(space, [item]))


@pytest.mark.parametrize("seed", range(40))
def test_steps_come_out_of_shared_memory_as_they_went_in(seed):
    play(seed)


@pytest.mark.slow
def test_so_do_many_random_ones():
    first = int(np.random.default_rng().integers(2**31))
    print("first seed:", first)
    for seed in range(first, first + 600):
        play(seed)


@pytest.mark.parametrize(
    "observation", [None, "text", np.zeros(2, np.float32), np.zeros((3, 1), np.float32), [0.0, [1.0], 2.0], {"x": 1}]
)
def test_observations_that_do_not_fit_their_space_are_not_written(observation):
    _, there = both_sides({"a": (BOX, BOX)})
    assert not there.write(["a"], [observation])


@pytest.mark.parametrize("other", [spaces.Text(3), spaces.Sequence(BOX), spaces.Dict({})])
def test_agents_that_were_not_known_and_spaces_without_a_fixed_size_have_no_columns(other):
    _, there = both_sides({"a": (BOX, BOX), "b": (other, BOX)})
    zeros = [np.zeros(3, np.float32), np.ones(3, np.float32)]
    for stranger in ("b", "c"):
        assert not there.write(["a", stranger], zeros)
    assert there.write(["a"], zeros[:1])


class Phase(enum.IntEnum):
    DAY = 1


class Echo(gym.Env):
    """Its infos have the action and its reward is what ``reward`` returns for the step."""

    observation_space, action_space = BOX, spaces.Discrete(3)

    def __init__(self, rewards=(1.0,)):
        self.rewards = rewards

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(3, np.float32), self.rewards[self.t % len(self.rewards)], False, False, {"action": action}


def echo(num_envs=2, **settings):
    return make_vector_env(EnvSpec(Echo, settings).factory, num_envs=num_envs, num_workers=1, seed=0)


F32 = np.array([0.1, -2.5], np.float32)


@pytest.mark.parametrize(
    "action",
    [
        1,
        np.int64(1),
        1.5,
        True,
        2**70,
        Phase.DAY,
        F32,
        F32.astype(">f4"),
        F32.reshape(1, 2),
        np.array(3),
        np.zeros(100_000),
        [0.0, 1],
        {"b": F32, "a": (np.int64(1), 2)},
        (1, np.bool_(True)),
    ],
    ids=repr,
)
def test_environments_in_workers_get_actions_as_they_are(action):
    env = echo()
    env.reset_all()
    for other in (action, 1):  # alike, and mixed
        infos = dict(env.step([action, other]).infos)
        assert_same([infos[i][DEFAULT_AGENT_ID]["action"] for i in (0, 1)], [action, other])
    env.close()


@pytest.mark.parametrize("reward", [2, None, "text", float("nan"), np.inf, [1.0, 2.0], 10**400, np.float32(0.1)])
def test_rewards_come_from_workers_whatever_they_are(reward):
    env = echo(1, rewards=(reward,))
    env.reset_all()
    expected = float(reward) if isinstance(reward, np.float32) else reward
    assert_same(env.step([0]).rewards, [expected])
    env.close()


def test_ordinary_steps_do_not_use_the_connection(monkeypatch):
    if not hasattr(os, "eventfd"):
        pytest.skip("this system has no eventfd")
    config = small_config("marl_envs.null_v0").multi_agent(policies="shared")
    runner = config.env_runners(num_envs_per_env_runner=4, num_env_workers=2).build_algo().env_runner
    vector_env = runner.vector_env
    vector_env.reset_all()
    num_acting = sum(len(sub_env.agents) for sub_env in vector_env.sub_envs)
    sent = []
    monkeypatch.setattr(Connection, "send_bytes", lambda self, message: sent.append(message))
    monkeypatch.setattr(Connection, "recv_bytes", lambda self: sent.append(None))
    for _ in range(3):
        vector_env.step([0] * num_acting)
    assert not sent
    monkeypatch.undo()
    runner.close()
