import numpy as np
import pytest

from helpers.episodes.little_chunks import chunk
from marl_connectors import PPOConfig
from marl_connectors.checkpoints import load_state, save_state
from marl_connectors.errors import EpisodeError
from marl_connectors.replay_buffers import sum_tree
from marl_connectors.replay_buffers.replay_buffer import PrioritizedEpisodeReplayBuffer
from marl_connectors.replay_buffers.ring import ACTED
from marl_connectors.replay_buffers.sum_tree import SumTree


def filled(capacity=300, rounds=8, **settings):
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=4).debugging(seed=3)
    algo = config.build_algo()
    buffer = PrioritizedEpisodeReplayBuffer(capacity, **settings)
    for _ in range(rounds):
        buffer.add(algo.env_runner.sample(num_timesteps=64))
    return algo, buffer, buffer._rings["default_policy"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("roots", [1, 3, 8192])
def test_the_tree_draws_like_a_running_sum(seed, roots, monkeypatch):
    monkeypatch.setattr(sum_tree, "_ROOTS", roots)
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 40)) if seed % 2 else int(rng.integers(1, 2000))
    tree, weights = SumTree(size), np.zeros(size)
    for _ in range(5):
        items = rng.integers(size, size=int(rng.integers(1, 20)))
        new = rng.random(len(items)) * rng.integers(0, 2, len(items))
        tree.set(items, new)
        weights[items] = new
        np.testing.assert_array_equal(tree.weights, weights)
        assert tree.total == pytest.approx(weights.sum())
        if not weights.any():
            continue
        at = np.append(rng.random(200) * tree.total, [0.0, np.nextafter(tree.total, 0.0), tree.total])
        drawn = tree.draw(at)
        assert (weights[drawn] > 0).all()
        ends = np.cumsum(weights)
        clear = np.abs(ends[:, None] - at).min(0) > 1e-9
        np.testing.assert_array_equal(drawn[clear], np.searchsorted(ends, at[clear], side="right"))


def test_steps_are_drawn_in_proportion_to_their_priorities():
    _, buffer, ring = filled(alpha=0.5, beta=1.0)
    steps = np.flatnonzero(ring.flags & ACTED)
    sample = buffer.sample(2000)
    errors = sample.segments["default_policy"].positions.astype(float)
    buffer.update_priorities({"default_policy": errors}, sample=sample)
    drawn = set(sample.segments["default_policy"].positions.tolist())
    expected = np.array([(p + 1e-6) ** 0.5 if p in drawn else 1.0 for p in steps.tolist()])
    np.testing.assert_allclose(ring.tree.weights[steps], expected)
    counts = np.zeros(len(ring.flags))
    for _ in range(100):
        np.add.at(counts, buffer.sample(1000).segments["default_policy"].positions, 1)
    frequent = 100_000 * expected / expected.sum()
    chi2 = ((counts[steps] - frequent) ** 2 / frequent).sum()
    assert abs(chi2 - len(steps)) < 6 * np.sqrt(2 * len(steps))
    assert counts.sum() == counts[steps].sum()


def test_weights_correct_for_the_probabilities():
    _, buffer, ring = filled(alpha=1.0, beta=1.0)
    first = buffer.sample(500)
    buffer.update_priorities({"default_policy": 1.0 + first.segments["default_policy"].positions % 3}, sample=first)
    segments = buffer.sample(5000).segments["default_policy"]
    weights = segments.rollout.columns["weights"][segments.start]
    priorities = ring.tree.weights[segments.positions]
    np.testing.assert_allclose(weights, priorities.min() / priorities, rtol=1e-5)


def test_new_steps_get_the_greatest_priority_and_forgotten_ones_none():
    algo, buffer, ring = filled()
    sample = buffer.sample(50)
    buffer.update_priorities({"default_policy": np.full(50, 9.0)}, sample=sample)
    before = ring.flags.copy(), ring.columns["t"].copy(), ring.tree.weights.copy()
    buffer.add(algo.env_runner.sample(num_timesteps=64))
    changed = (ring.columns["t"] != before[1]) & ((ring.flags & ACTED) > 0)
    assert changed.any()
    np.testing.assert_allclose(ring.tree.weights[changed], (9.0 + 1e-6) ** 0.6)
    assert not ring.tree.weights[(ring.flags & ACTED) == 0].any()


def test_priorities_stay_with_their_steps_when_lanes_are_added():
    _, buffer, ring = filled(capacity=4000)
    sample = buffer.sample(300)
    positions = sample.segments["default_policy"].positions
    buffer.update_priorities({"default_policy": positions.astype(float)}, sample=sample)
    by_obs = {ring.columns["obs"][p].tobytes(): ring.tree.weights[p] for p in np.flatnonzero(ring.flags & ACTED)}
    ring._widen(ring.num_lanes + 3)
    steps = np.flatnonzero(ring.flags & ACTED)
    assert {ring.columns["obs"][p].tobytes(): ring.tree.weights[p] for p in steps} == by_obs
    assert ring.tree.total == pytest.approx(sum(by_obs.values()))


@pytest.mark.parametrize("capacity", [300, 100_000])
def test_a_restored_buffer_draws_what_the_first_one_draws(capacity, tmp_path):
    _, first, _ = filled(seed=4, capacity=capacity)
    sample = first.sample(40)
    first.update_priorities({"default_policy": np.arange(40.0)}, sample=sample)
    save_state(tmp_path / "buffer", first.get_state())
    assert sum(path.stat().st_size for path in (tmp_path / "buffer").iterdir()) < 100_000  # only what is in use
    second = PrioritizedEpisodeReplayBuffer(capacity)
    second.set_state(load_state(tmp_path / "buffer"))
    assert second.nbytes == first.nbytes
    one, other = (b.sample(50).segments["default_policy"] for b in (first, second))
    np.testing.assert_array_equal(one.positions, other.positions)
    np.testing.assert_array_equal(one.rollout.columns["weights"], other.rollout.columns["weights"])


def test_new_steps_of_a_restored_buffer_get_the_greatest_priority_of_the_first_one():
    first = PrioritizedEpisodeReplayBuffer(100)
    first.add([chunk("default_policy", 0, 3)])
    sample = first.sample(5)
    first.update_priorities({"default_policy": np.full(5, 9.0)}, sample=sample)
    second = PrioritizedEpisodeReplayBuffer(100)
    second.set_state(first.get_state())
    second.add([chunk("default_policy", 10, 1)])
    ring = second._rings["default_policy"]
    (new,) = np.flatnonzero((ring.columns["obs"][:, 0] == 10) & ((ring.flags & ACTED) > 0))
    assert ring.tree.weights[new] == pytest.approx((9.0 + 1e-6) ** 0.6)


@pytest.mark.parametrize("capacity", [100, 5000])
def test_priorities_stay_with_their_steps_in_a_buffer_of_another_capacity(capacity):
    _, first, ring = filled()
    sample = first.sample(200)
    positions = sample.segments["default_policy"].positions
    first.update_priorities({"default_policy": positions.astype(float)}, sample=sample)
    by_obs = {ring.columns["obs"][p].tobytes(): ring.tree.weights[p] for p in np.flatnonzero(ring.flags & ACTED)}
    second = PrioritizedEpisodeReplayBuffer(capacity)
    second.set_state(first.get_state())
    other = second._rings["default_policy"]
    steps = np.flatnonzero(other.flags & ACTED)
    assert len(steps) == min(len(by_obs), len(second)) > 0
    assert all(other.tree.weights[p] == by_obs[other.columns["obs"][p].tobytes()] for p in steps)
    assert not other.tree.weights[(other.flags & ACTED) == 0].any()


@pytest.mark.parametrize("errors", [np.ones(3), np.array([1.0, np.nan]), np.ones((2, 1))])
def test_wrong_errors_are_named(errors):
    _, buffer, _ = filled()
    with pytest.raises(EpisodeError, match=r"(?s)\b2\b.*'default_policy'"):
        buffer.update_priorities({"default_policy": errors}, sample=buffer.sample(2))
