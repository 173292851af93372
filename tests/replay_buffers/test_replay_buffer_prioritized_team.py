"""Env steps of a team are drawn by their priorities."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from helpers.fresh_seeds import fresh_seeds
from helpers.runs.random_runs import differences, plain
from marl_connectors import Algorithm, Columns, MADDPGConfig, QMIXConfig, VDNConfig
from marl_connectors.errors import EpisodeError
from marl_connectors.replay_buffers.replay_buffer import (
    PrioritizedJointReplayBuffer,
    PrioritizedTeamReplayBuffer,
)
from marl_connectors.replay_buffers.replay_sample import WEIGHTS

AGENTS = {"x": ["a"], "y": ["b", "c"]}
BUFFERS = (PrioritizedTeamReplayBuffer, PrioritizedJointReplayBuffer)
FRESH = fresh_seeds(20)


def filled(cls, seed=0, capacity=500, **settings):
    config = small_config(LifeEnv, env_config={"die": 0.1, "join": 0.2, "max_steps": 9}).debugging(seed=seed)
    config.environment(disable_env_checking=True).multi_agent(policies="a=x,*=y")
    buffer = cls(capacity, agents=AGENTS, seed=seed, **settings)
    with config.env_runners(num_envs_per_env_runner=2).build_algo() as algo:
        for _ in range(3):
            buffer.add(algo.env_runner.sample(num_timesteps=20))
    return buffer


def errors_of(sample, size_of):
    """Errors whose sizes are those of their items."""
    return {m: (-1) ** np.arange(len(i)) * size_of[i] for m in sample.segments for i in [sample.items_of(m)]}


@pytest.mark.few(2)
@pytest.mark.parametrize("cls", BUFFERS)
@pytest.mark.parametrize("seed", [*range(2), *FRESH])
def test_env_steps_are_drawn_in_proportion_to_their_priorities_and_weighted_against_them(cls, seed):
    buffer = filled(cls, seed, alpha=0.5, beta=1.0)
    everything = buffer.every_step()
    sizes = np.random.default_rng(seed).uniform(0, 4, len(everything.window.positions))
    buffer.update_priorities(errors_of(everything, sizes), sample=everything)
    expected = np.sqrt(sizes + 1e-6)
    expected = dict(zip(everything.window.positions.tolist(), expected / expected.sum(), strict=True))
    sample = buffer.sample(20_000)
    found, counts = np.unique(sample.window.positions, return_counts=True)
    own = np.array([expected[p] for p in found.tolist()])
    assert np.abs(counts / 20_000 - own).max() < 5 * np.sqrt(own.max() / 20_000)
    rarest = min(expected[p] for p in found.tolist())
    np.testing.assert_allclose(
        sample.weights, [rarest / expected[p] for p in sample.window.positions.tolist()], rtol=1e-5
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("cls", BUFFERS)
def test_new_env_steps_have_the_greatest_priority_and_old_ones_keep_theirs_when_lanes_are_added(cls):
    buffer = filled(cls, alpha=1.0)
    sample = buffer.sample(5)
    buffer.update_priorities(errors_of(sample, np.full(5, 7.0)), sample=sample)
    tree = buffer._rings["all agents"].tree
    assert tree.weights.max() == pytest.approx(7.0) and (tree.weights[sample.window.positions] > 6.9).all()
    before = len(buffer)
    with small_config(LifeEnv, env_config={"max_steps": 9}).multi_agent(policies="a=x,*=y").build_algo() as algo:
        buffer.add(algo.env_runner.sample(num_timesteps=6))
    added = len(buffer) - before
    assert np.isclose(buffer._rings["all agents"].tree.weights, 7.0).sum() == len(set(sample.window.positions)) + added


def test_rows_of_agents_have_the_weights_of_their_env_steps():
    sample = filled(PrioritizedJointReplayBuffer, beta=0.7).sample(16, n_step=(1, 3))
    for segments in sample.segments.values():
        weights = segments.rollout.columns[WEIGHTS][segments.start]
        np.testing.assert_array_equal(weights, sample.weights[segments.items])
        assert len(segments.rollout.columns[WEIGHTS]) == len(segments.rollout.columns[Columns.REWARDS])


@pytest.mark.parametrize("cls", BUFFERS)
def test_errors_that_do_not_fit_are_refused(cls):
    buffer = filled(cls)
    sample = buffer.sample(4)
    with pytest.raises(EpisodeError, match=f"(?s){cls.__name__}.*'y'"):
        buffer.update_priorities({"y": np.zeros(1)}, sample=sample)


@pytest.mark.slow
@pytest.mark.parametrize("stack", [False, True])
def test_modules_that_act_at_unlike_numbers_of_env_steps_have_an_error_for_each(stack):
    config = MADDPGConfig().environment(LifeEnv, env_config={"die": 0.5, "join": 0.2}, disable_env_checking=True)
    config.multi_agent(policies="independent").learners(stack_modules=stack).env_runners(num_env_workers=0)
    config.training(
        replay_buffer_config={"type": "PrioritizedJointReplayBuffer", "capacity": 300},
        num_steps_sampled_before_learning_starts=100,
        train_batch_size_per_learner=64,
    ).debugging(seed=0)
    with config.build_algo() as algo:
        algo.train()
        sample = algo.replay.draw(list(algo.rl_module))
        algo.learner.update(episodes=sample)
        numbers = {m: len(errors) for m, errors in algo.learner.td_errors.items()}
        assert numbers == {m: len(own) for m, own in sample.segments.items()}
        assert len(set(numbers.values())) == 3
        algo.replay_buffer.update_priorities(algo.learner.td_errors, sample=sample)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("cls", [QMIXConfig, VDNConfig, MADDPGConfig])
def test_a_run_with_priorities_sets_them_and_continues_exactly(cls, memory, tmp_path):
    if memory and cls is MADDPGConfig:
        return
    config = cls().environment(LifeEnv, env_config={"die": 0.1, "max_steps": 9}, disable_env_checking=True)
    config.env_runners(num_env_workers=0, rollout_fragment_length=1).debugging(seed=0)
    config.rl_module(model_config={"fcnet_hiddens": (4,)} | ({"use_gru": True, "max_seq_len": 4} if memory else {}))
    kind = "PrioritizedJointReplayBuffer" if cls is MADDPGConfig else "PrioritizedTeamReplayBuffer"
    config.training(
        replay_buffer_config={"type": kind, "capacity": 60},
        num_steps_sampled_before_learning_starts=10,
        train_batch_size_per_learner=8,
        n_step=2,
    ).reporting(min_sample_timesteps_per_iteration=40)
    with config.build_algo() as whole:
        whole.train()
        assert len(np.unique(whole.replay_buffer._rings["all agents"].tree.weights)) > 5
        path = whole.save_to_path(tmp_path / "checkpoint")
        with Algorithm.from_checkpoint(path, config=config) as resumed:
            assert whole.train()["learners"] == resumed.train()["learners"]
            assert not differences(plain(whole.get_state().replays), plain(resumed.get_state().replays))
