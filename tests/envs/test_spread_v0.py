"""Spreading out: the batch is so many worlds of their own, each as a slow account by hand has it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test

from helpers.examples import examples
from marl_envs import spread_v0

STAY, LEFT, RIGHT, DOWN, UP = range(5)


def placed(agents, landmarks, **arguments):
    """A single world in which agents and landmarks are where they are told to be."""
    batch = spread_v0.batched_env(num_envs=1, n_agents=len(agents), n_landmarks=len(landmarks), **arguments)
    batch.reset([0])
    batch._positions[...] = np.array(agents, np.float32).T[..., None]
    batch._landmarks[...] = np.array(landmarks, np.float32).T[..., None]
    return batch


def observed(agents, landmarks, i):
    """What agent ``i`` sees, in the order that the documentation has."""
    others = [agents[(i + k) % len(agents)] for k in range(1, len(agents))]
    parts = [agents[i]]
    for points in (landmarks, others):
        for axis in (0, 1):
            parts.append([point[axis] - agents[i][axis] for point in points])
    return np.concatenate(parts).astype(np.float32)


def paid(agents, landmarks, i, *, radius=0.05, penalty=0.25):
    """What agent ``i`` is paid once all stand there."""
    nearest = [min(np.hypot(*np.subtract(a, mark)) for a in agents) for mark in landmarks]
    touching = [j for j, a in enumerate(agents) if j != i and np.hypot(*np.subtract(a, agents[i])) < 2 * radius]
    return -np.mean(nearest) - penalty * len(touching)


@pytest.mark.parametrize("continuous_actions", [False, True])
def test_keeps_pettingzoos_parallel_contract(continuous_actions):
    make = lambda: spread_v0.parallel_env(n_agents=3, continuous_actions=continuous_actions)
    parallel_api_test(make(), num_cycles=120)
    parallel_seed_test(make, num_cycles=20)


def test_moves_distances_and_payments_by_hand():
    batch = placed([(0.0, 0.0), (0.5, 0.5)], [(0.0, 0.3), (1.0, 0.5)], speed=0.1, radius=0.05)
    observations, rewards, terminations, truncations, infos = batch.step(np.array([[UP, RIGHT]]))
    # agent_0 stands at (0, 0.1), 0.2 from the first landmark; agent_1 at (0.6, 0.5), 0.4 from the second.
    np.testing.assert_allclose(rewards, [[-0.3, -0.3]], atol=1e-6)
    np.testing.assert_allclose(observations[0, 0], [0, 0.1, 0, 1.0, 0.2, 0.4, 0.6, 0.4], atol=1e-6)
    np.testing.assert_allclose(observations[0, 1], [0.6, 0.5, -0.6, 0.4, -0.2, 0.0, -0.6, -0.4], atol=1e-6)
    assert not terminations.any() and not truncations.any() and infos == {}


def test_the_five_moves_and_the_edges():
    batch = placed([(0.0, 0.0)] * 5 + [(0.98, -0.98)], [(0.0, 0.0)], collision_penalty=0.0)
    observations, *_ = batch.step(np.array([[STAY, LEFT, RIGHT, DOWN, UP, RIGHT]]))
    ends = [(0, 0), (-0.1, 0), (0.1, 0), (0, -0.1), (0, 0.1), (1.0, -0.98)]
    np.testing.assert_allclose(observations[0, :, :2], ends, atol=1e-6)


def test_agents_that_touch_are_fined_each_for_each_other():
    batch = placed([(0.0, 0.0), (0.06, 0.0), (0.12, 0.0), (-0.5, 0.0)], [(-0.5, 0.0)], collision_penalty=0.5)
    # 0.06 is less than twice the radius, 0.12 is not: the one in the middle touches two.
    np.testing.assert_allclose(batch.step(np.zeros((1, 4), int))[1], [[-0.5, -1.0, -0.5, 0.0]], atol=1e-6)


def test_continuous_actions_are_velocities():
    batch = placed([(0.0, 0.0)], [(0.5, 0.0)], continuous_actions=True, speed=0.2)
    observations, rewards, *_ = batch.step(np.array([[[0.5, -1.0]]], np.float32))
    np.testing.assert_allclose(observations[0, 0], [0.1, -0.2, 0.4, 0.2], atol=1e-6)
    np.testing.assert_allclose(rewards, [[-np.hypot(0.4, 0.2)]], atol=1e-6)


@examples(40)
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.booleans(), st.integers(0, 2**32))
def test_every_copy_is_a_world_of_its_own_as_a_slow_account_has_it(num_envs, n_agents, n_landmarks, continuous, seed):
    rng = np.random.default_rng(seed)
    batch = spread_v0.batched_env(
        num_envs=num_envs, n_agents=n_agents, n_landmarks=n_landmarks, continuous_actions=continuous, radius=0.3
    )
    observations = batch.reset([seed + i for i in range(num_envs)])
    positions = observations[..., :2].astype(float)
    marks = np.stack(
        [observations[:, 0, 2 : 2 + n_landmarks], observations[:, 0, 2 + n_landmarks : 2 + 2 * n_landmarks]], -1
    )
    marks = marks + positions[:, :1]
    for _ in range(4):
        if continuous:
            actions = moves = rng.uniform(-1, 1, (num_envs, n_agents, 2)).astype(np.float32)
        else:
            actions = rng.integers(5, size=(num_envs, n_agents))
            moves = np.array([(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)])[actions]
        positions = np.clip(positions + 0.1 * moves, -1, 1)
        observations, rewards, *_ = batch.step(actions)
        for e in range(num_envs):
            agents, landmarks = positions[e].tolist(), marks[e].tolist()
            for i in range(n_agents):
                np.testing.assert_allclose(observations[e, i], observed(agents, landmarks, i), atol=1e-5)
                near = [abs(np.hypot(*np.subtract(a, agents[i])) - 0.6) for a in agents]
                if min(near) > 1e-4:  # so near to touching, rounding decides
                    assert rewards[e, i] == pytest.approx(paid(agents, landmarks, i, radius=0.3), abs=1e-5)
        assert (np.abs(observations) <= 2.0).all()


def test_a_copy_depends_on_its_own_seed_only():
    one = spread_v0.batched_env(num_envs=3, n_agents=2).reset([5, 6, 7]).copy()
    other = spread_v0.batched_env(num_envs=4, n_agents=2).reset([7, 1, 5, None])
    np.testing.assert_array_equal(one[[2, 0]], other[[0, 2]])
    assert len({row.tobytes() for row in one}) == 3


def test_the_mask_names_the_copies_that_begin_again():
    batch = spread_v0.batched_env(num_envs=3, n_agents=2, ep_len=3)
    batch.reset([0, 1, 2])
    kept = batch.step(np.full((3, 2), UP))[0].copy()
    observations = batch.reset([7, None, 9], np.array([True, False, True]))
    np.testing.assert_array_equal(observations[1], kept[1])
    fresh = spread_v0.batched_env(num_envs=2, n_agents=2).reset([7, 9])
    np.testing.assert_array_equal(observations[[0, 2]], fresh)
    ends = [batch.step(np.zeros((3, 2), int))[3].any(axis=1).tolist() for _ in range(2)]
    assert ends == [[False, False, False], [False, True, False]]  # copy 1 is a step ahead


def test_without_a_seed_an_episode_follows_from_the_one_before():
    def episodes(batch):
        return [batch.reset(seeds).copy() for seeds in ([3, 3], [None, None], [None, 3])]

    first, second, third = episodes(spread_v0.batched_env(num_envs=2))
    np.testing.assert_array_equal(first[0], first[1])
    np.testing.assert_array_equal(second[0], second[1])
    assert not np.array_equal(first[0], second[0]) and not np.array_equal(second[0], third[0])
    np.testing.assert_array_equal(third[1], first[1])
    np.testing.assert_array_equal(episodes(spread_v0.batched_env(num_envs=2))[2], third)


def test_copies_that_were_never_seeded_differ():
    observations = spread_v0.batched_env(num_envs=2).reset([None, None])
    assert not np.array_equal(observations[0], observations[1])


def test_places_are_spread_evenly():
    batch = spread_v0.batched_env(num_envs=2000, n_agents=2, n_landmarks=2)
    batch.reset(list(range(2000)))
    places = batch.state()
    assert places.shape == (2000, 8) and places.min() >= -1.0 and places.max() < 1.0
    # Uniform in [-1, 1): mean 0 and variance 1/3, with errors of 0.013 and 0.0067 at 2000 copies; nothing correlates.
    np.testing.assert_allclose(places.mean(axis=0), 0.0, atol=0.065)
    np.testing.assert_allclose(np.cov(places.T), np.eye(8) / 3, atol=0.04)


def test_the_one_env_view_plays_what_the_batch_plays():
    batch, env = spread_v0.batched_env(num_envs=2, n_agents=3, ep_len=4), spread_v0.parallel_env(n_agents=3, ep_len=4)
    joint = batch.reset([8, 11])
    observations, infos = env.reset(seed=11)
    rng = np.random.default_rng(0)
    kept = []
    for t in range(4):
        np.testing.assert_array_equal(np.stack(list(observations.values())), joint[1])
        kept.append((observations["agent_0"], observations["agent_0"].copy()))
        actions = rng.integers(5, size=(2, 3))
        joint, rewards, terminations, truncations, _ = batch.step(actions)
        observations, *told, infos = env.step(dict(zip(env.agents, actions[1], strict=True)))
        assert [list(d.values()) for d in told] == [a[1].tolist() for a in (rewards, terminations, truncations)]
        assert infos == {f"agent_{i}": {} for i in range(3)}
        assert env.agents == ([] if t == 3 else env.possible_agents)
    np.testing.assert_array_equal(env.state(), batch.state()[1])
    for then, now in kept:
        np.testing.assert_array_equal(then, now)  # the view gives arrays of their own


def test_going_to_ones_own_landmark_is_worth_far_more_than_walking_at_random():
    batch = spread_v0.batched_env(num_envs=200, n_agents=4)
    rng = np.random.default_rng(0)

    def returns(choose):
        observations, total = batch.reset(list(range(200))), 0.0
        for _ in range(50):
            observations, rewards, *_ = batch.step(choose(observations))
            total += rewards.mean()
        return total

    def to_own_landmark(observations):
        i = np.arange(4)
        x, y = observations[:, i, 2 + i], observations[:, i, 6 + i]
        far = np.maximum(np.abs(x), np.abs(y)) > 0.05
        along_x = np.where(x > 0, RIGHT, LEFT)
        return np.where(far, np.where(np.abs(x) >= np.abs(y), along_x, np.where(y > 0, UP, DOWN)), STAY)

    assert returns(to_own_landmark) > -14.0
    assert returns(lambda _: rng.integers(5, size=(200, 4))) < -25.0


def test_the_arrays_are_used_again_and_are_contiguous():
    batch = spread_v0.batched_env(num_envs=2)
    first = batch.reset([0, 1])
    again = batch.step(np.zeros((2, 8), int))
    assert first is again[0]
    assert all(array.flags.c_contiguous for array in again[:4])
    assert [array.dtype.name for array in again[:4]] == ["float32", "float32", "bool", "bool"]


def test_stepping_a_copy_that_is_over_is_refused_by_its_number():
    batch = spread_v0.batched_env(num_envs=2, ep_len=1)
    with pytest.raises(RuntimeError, match=r"(?s)^spread_v0.*\[0, 1\].*\(2 of 2\)"):
        batch.step(np.zeros((2, 8), int))
    batch.reset([0, 1])
    batch.step(np.zeros((2, 8), int))
    batch.reset([0, 1], np.array([True, False]))
    with pytest.raises(RuntimeError, match=r"(?s)\[1\].*\(1 of 2\)"):
        batch.step(np.zeros((2, 8), int))


@pytest.mark.parametrize(
    ("continuous_actions", "actions"),
    [
        (False, np.full((2, 3), 5)),
        (False, np.full((2, 3), -1)),
        (False, np.zeros((2, 3))),
        (False, np.zeros((3, 2), int)),
        (True, np.full((2, 3, 2), 1.01)),
        (True, np.full((2, 3, 2), np.nan)),
        (True, np.zeros((2, 3))),
    ],
)
def test_actions_outside_their_space_are_refused(continuous_actions, actions):
    batch = spread_v0.batched_env(num_envs=2, n_agents=3, continuous_actions=continuous_actions)
    before = batch.reset([0, 1]).copy()
    with pytest.raises(ValueError, match=r"(?s)^spread_v0.*step\(\)"):
        batch.step(actions)
    np.testing.assert_array_equal(batch._observations, before)


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, "1"])
def test_a_seed_that_is_none_is_refused(seed):
    batch = spread_v0.batched_env(num_envs=2)
    with pytest.raises(ValueError, match=r"(?s)^spread_v0.*\bseed\b.*\b0\b.*\b2\b.*64"):
        batch.reset([0, seed])


def test_a_wrong_number_of_seeds_or_a_wrong_mask_is_refused():
    batch = spread_v0.batched_env(num_envs=2)
    with pytest.raises(ValueError, match=r"(?s)\b2\b.*\b1\b"):
        batch.reset([0])
    with pytest.raises(ValueError, match=r"(?s)\[2\].*int64.*\(2,\)"):
        batch.reset([0, 1], np.array([0, 1]))


def test_a_missing_action_is_refused_by_the_agents_name():
    env = spread_v0.parallel_env(n_agents=2, ep_len=1)
    with pytest.raises(RuntimeError, match=r"reset\(\)"):
        env.step({"agent_0": 0, "agent_1": 0})
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"\['agent_1'\]"):
        env.step({"agent_0": 0})


@pytest.mark.parametrize("size", ["num_envs", "n_agents", "n_landmarks", "ep_len"])
def test_a_size_below_one_is_refused_by_name(size):
    with pytest.raises(ValueError, match=rf"(?s)^spread_v0.*{size}.*\b1\b.*\b0\b"):
        spread_v0.batched_env(**{"num_envs": 1, size: 0})


@pytest.mark.parametrize("name", ["speed", "radius", "collision_penalty"])
def test_a_negative_number_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"(?s)^spread_v0.*{name}.*0.0.*-1"):
        spread_v0.parallel_env(**{name: -1})
