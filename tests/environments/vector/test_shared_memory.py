"""What is written to the columns of one process is what another one reads; what does not fit them is sent as it is."""

from __future__ import annotations

import enum

import numpy as np
import pytest
from gymnasium import spaces

from helpers.envs.random_spaces import assert_identical, in_another_form, random_item, random_space, stacked
from helpers.envs.scripted_envs import small_config
from marl_connectors import spaces as space_tools
from marl_connectors.environments.rules.step_result import StepResult
from marl_connectors.environments.vector.shared_memory import StepMemory
from marl_connectors.trees import unstack

BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


def both_sides(agent_spaces, num_envs=3, state_space=None):
    """The memory as the process that makes it has it, and as another one that gets its block."""
    one = StepMemory(agent_spaces, num_envs, state_space)
    return one, StepMemory(agent_spaces, num_envs, state_space, one.block)


def env_actions(space, number, rng):
    """Actions as environments get them: Python numbers, arrays, or dicts and tuples of arrays and numpy numbers."""
    actions = space_tools.stack([random_item(rng, space) for _ in range(number)], space)
    return actions.tolist() if isinstance(actions, np.ndarray) and actions.ndim == 1 else unstack(actions)


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
    """Some steps with agents of random spaces, in random order; how many of them needed a message."""
    rng = np.random.default_rng(seed)
    kinds = [(random_space(rng, keys="str", empty=False), random_space(rng, keys="str", empty=False)) for _ in "abc"]
    agents = {f"agent_{i}": kinds[rng.integers(len(kinds))] for i in range(4)}
    here, there = both_sides(agents)
    num_sent = 0
    for _ in range(4):
        acting = [str(agent) for _ in range(3) for agent in rng.permutation(list(agents))[: rng.integers(5)]]
        given: dict = {agent: iter(env_actions(agents[agent][1], 3, rng)) for agent in agents}
        actions = [next(given[agent]) for agent in acting]
        sent = here.write_actions(acting, actions)
        assert_same(there.read_actions(acting, sent), actions)
        items = [random_item(rng, agents[agent][0]) for agent in acting]
        observations = [in_another_form(rng, agents[a][0], item) for a, item in zip(acting, items, strict=True)]
        rewards = [float(reward) for reward in rng.normal(size=len(acting))]
        left = there.write_step(StepResult(list(rewards), list(observations)), acting)
        assert left.rewards is None and left.observations is None
        result = here.read_step(left, len(rewards), acting)
        assert_same(result.rewards, rewards)
        for agent, found, item in zip(acting, result.observations, items, strict=True):
            space = agents[agent][0]
            assert_identical(space_tools.stack([found], space), stacked(space, [item]))
        num_sent += sent is not None
    return num_sent


@pytest.mark.parametrize("seed", range(40))
def test_steps_come_out_of_shared_memory_as_they_went_in(seed):
    play(seed)


@pytest.mark.slow
def test_so_do_many_random_ones():
    first = int(np.random.default_rng().integers(2**31))
    print("first seed:", first)
    for seed in range(first, first + 600):
        play(seed)


def test_actions_of_the_spaces_forms_need_no_message():
    rng, kinds = (
        np.random.default_rng(0),
        [
            spaces.Discrete(3),
            spaces.MultiDiscrete([2, 3]),
            spaces.Box(-1, 1, (), np.float32),
            spaces.Box(-1, 1, (2,), np.float32),
            spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Discrete(2), BOX])}),
        ],
    )
    for space in kinds:
        here, there = both_sides({"a": (BOX, space)})
        actions = env_actions(space, 3, rng)
        assert here.write_actions(["a"] * 3, actions) is None
        assert_same(there.read_actions(["a"] * 3, None), actions)


class Phase(enum.IntEnum):
    DAY = 1


@pytest.mark.parametrize(
    ("space", "action"),
    [
        (spaces.Discrete(3), np.int64(1)),
        (spaces.Discrete(3), 1.0),
        (spaces.Discrete(3), True),
        (spaces.Discrete(3), 2**70),
        (spaces.Discrete(3), Phase.DAY),
        (BOX, np.zeros(3, np.float64)),
        (BOX, np.zeros(3, ">f4")),
        (BOX, np.zeros(2, np.float32)),
        (BOX, [0.0, 0.0, 0.0]),
        (spaces.Dict({"a": BOX, "b": BOX}), {"b": np.zeros(3, np.float32), "a": np.zeros(3, np.float32)}),
        (spaces.Dict({"a": spaces.Discrete(3)}), {"a": 1}),
        (spaces.Tuple([spaces.Discrete(3)] * 2), (np.int64(1),)),
        (spaces.Tuple([spaces.Discrete(3)] * 2), np.array([1, 1])),
    ],
)
def test_actions_that_pieces_made_of_another_type_are_sent_as_they_are(space, action):
    here, there = both_sides({"a": (BOX, space)})
    sent = here.write_actions(["a"], [action])
    assert sent is not None and sent[0] is action
    assert there.read_actions(["a"], sent)[0] is action


@pytest.mark.parametrize(
    "observation", [None, "text", np.zeros(2, np.float32), np.zeros((3, 1), np.float32), [0.0, [1.0], 2.0], {"x": 1}]
)
def test_observations_that_do_not_fit_their_space_are_sent_as_they_are(observation):
    here, there = both_sides({"a": (BOX, BOX)})
    left = there.write_step(StepResult([1.0], [observation]), ["a"])
    assert left.rewards is None and left.observations[0] is observation
    result = here.read_step(left, 1, ["a"])
    assert result.rewards == [1.0] and result.observations[0] is observation


@pytest.mark.parametrize("reward", [None, "text", float("nan"), np.inf, [1.0, 2.0], 10**400])
def test_rewards_that_are_no_finite_numbers_are_sent_as_they_are(reward):
    _, there = both_sides({"a": (BOX, BOX)})
    left = there.write_step(StepResult([reward], [np.zeros(3)]), ["a"])
    assert left.rewards[0] is reward and left.observations is None


@pytest.mark.parametrize("other", [spaces.Text(3), spaces.Sequence(BOX), spaces.Dict({})])
def test_agents_that_were_not_known_and_spaces_without_a_fixed_size_have_no_columns(other):
    here, there = both_sides({"a": (BOX, BOX), "b": (other, BOX)})
    zeros = [np.zeros(3, np.float32), np.ones(3, np.float32)]
    for stranger in ("b", "c"):
        assert here.write_actions(["a", stranger], zeros) is zeros
        left = there.write_step(StepResult([0.0, 0.0], zeros), ["a", stranger])
        assert left.observations is zeros
    assert here.write_actions(["a"], zeros[:1]) is None


def test_states_of_sub_environments_stand_in_their_rows():
    space = spaces.Dict({"x": spaces.Box(-1, 1, (2,), np.float64), "y": spaces.Discrete(4)})
    here, there = both_sides({"a": (BOX, BOX)}, 3, space)
    states = [{"x": np.full((1, 2), 0.1 * i), "y": np.array([i])} for i in range(3)]
    there.write_states([states[0], None, states[2]])
    np.testing.assert_array_equal(here.env_states["x"], [[0.0, 0.0], [0.0, 0.0], [0.2, 0.2]])
    np.testing.assert_array_equal(here.env_states["y"], [0, 0, 2])


def test_ordinary_steps_send_no_data(monkeypatch):
    config = small_config("marl_envs.null_v0").multi_agent(policies="shared")
    runner = config.env_runners(num_envs_per_env_runner=4, num_env_workers=2).build_algo().env_runner
    vector_env = runner.vector_env
    vector_env.reset_all()
    sent, replies, num_acting = [], [], sum(len(copy.agents) for copy in vector_env.sub_envs)
    for worker in vector_env.workers:
        monkeypatch.setattr(worker, "_send", lambda m, send=worker._send: (sent.append(m), send(m)))
        channel = worker._channel
        hear = channel.receive
        monkeypatch.setattr(channel, "receive", lambda s, hear=hear: replies.append(hear(s)) or replies[-1])
    for _ in range(3):
        vector_env.step([0] * num_acting)
    assert sent == replies == [b"s"] * 6
    runner.close()
