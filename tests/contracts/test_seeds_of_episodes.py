"""Sub-environments play different episodes, and one seed plays the same ones again."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from helpers.envs.gymnasium_envs import Walk
from helpers.envs.sound_envs import Sound, SoundAEC, SoundGym
from marl_connectors import PPOConfig


def make_parallel(config):
    return Sound()


def make_vector(num_envs=1):
    return gym.vector.SyncVectorEnv([Walk] * num_envs)


ENVS = {
    "parallel": make_parallel,
    "turn-based": lambda config: SoundAEC(),
    "Gymnasium": lambda config: SoundGym(),
    "VectorEnv": make_vector,
}
NUM_ENVS = 4


def first_observations(make_env, *, seed: int, workers: int = 0) -> list[bytes]:
    """Of some episodes of each sub-environment, by a runner of a seed."""
    config = PPOConfig().environment(make_env).debugging(seed=seed)
    config.env_runners(num_envs_per_env_runner=NUM_ENVS, num_env_workers=workers, rollout_fragment_length=30)
    algo = config.build_algo()
    try:
        episodes = algo.env_runner.sample(num_episodes=3 * NUM_ENVS)
    finally:
        algo.stop()
    found = []
    for episode in episodes:
        alone = next(iter(episode.agent_episodes.values())) if hasattr(episode, "agent_episodes") else episode
        found.append(np.asarray(alone.get_observations(0)).tobytes())
    return found


@pytest.mark.parametrize("kind", ENVS)
def test_no_two_episodes_of_a_run_begin_alike(kind):
    found = first_observations(ENVS[kind], seed=3)
    assert len(found) >= 3 * NUM_ENVS
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("kind", ENVS)
def test_one_seed_plays_the_same_episodes_and_another_one_others(kind):
    found = first_observations(ENVS[kind], seed=3)
    assert first_observations(ENVS[kind], seed=3) == found
    assert not set(first_observations(ENVS[kind], seed=4)) & set(found)


@pytest.mark.slow
def test_worker_processes_play_the_episodes_that_one_process_plays():
    assert first_observations(ENVS["parallel"], seed=3, workers=2) == first_observations(ENVS["parallel"], seed=3)
