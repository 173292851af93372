"""Who makes the copies of an environment, and whether the first of them is drawn."""

from __future__ import annotations

import os

import gymnasium as gym
import numpy as np
import pytest

from helpers.envs.gymnasium_envs import Counting, Walk
from helpers.envs.scripted_envs import small_config
from helpers.envs.sound_envs import Sound
from marl_connectors import Algorithm, Callbacks, ConfigError, EnvError, register_env
from marl_connectors.environments.vector.batched_vector_env import NextStepVectorEnv
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.environments.vector.worker_vector_env import WorkerVectorEnv


def configured(env="CartPole-v1", mode="sync", copies=2, **settings):
    config = small_config(env, env_config=settings)
    return config.env_runners(num_envs_per_env_runner=copies, rollout_fragment_length=4, gym_env_vectorize_mode=mode)


@pytest.mark.parametrize("given", ["ASYNC", "async", "Async", gym.VectorizeMode.ASYNC])
def test_a_mode_is_written_as_gymnasium_or_rllib_write_it(given):
    assert configured(mode=given).gym_env_vectorize_mode == "async"


@pytest.mark.parametrize(("given", "said"), [("asynch", "'async'"), (3, "'async', 'sync' or 'vector_entry_point'")])
def test_an_unknown_mode_is_an_error(given, said):
    with pytest.raises(ConfigError, match=said):
        configured(mode=given)


def test_async_copies_are_in_workers_and_do_the_same():
    samples = []
    for mode in ("sync", "async"):
        algo = configured(Walk, mode, copies=3, infos=True).build_algo()
        kind = algo.env_runner.vector_env
        assert type(kind) is (WorkerVectorEnv if mode == "async" else VectorEnv)
        if isinstance(kind, WorkerVectorEnv):
            assert len(kind.workers) == min(3, len(os.sched_getaffinity(0)))
        samples.append([(c.id_, c.get_observations().tolist()) for _ in range(3) for c in algo.env_runner.sample()])
        algo.stop()
    assert samples[0] == samples[1]


def test_async_with_a_number_of_workers():
    algo = configured(Walk, "async", copies=3).env_runners(num_env_workers=1).build_algo()
    assert len(algo.env_runner.vector_env.workers) == 1
    algo.stop()


def test_a_gymnasium_id_with_a_vector_entry_point(tmp_path):
    algo = configured(mode="vector_entry_point", copies=3, max_episode_steps=9).build_algo()
    assert type(algo.env_runner.vector_env) is NextStepVectorEnv
    assert type(algo.env_runner.vector_env.env.env).__name__ == "CartPoleVectorEnv"
    algo.train()
    lengths = [len(episode) for episode in algo.env_runner.sample(num_episodes=6)]
    assert max(lengths) <= 9
    assert len(algo.render_episode(max_frames=2)) == 2
    algo.train()
    with pytest.warns(UserWarning, match="episodes"):
        algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    with pytest.warns(UserWarning, match="episodes"):
        restored = Algorithm.from_checkpoint(tmp_path / "checkpoint")
    assert type(restored.env_runner.vector_env) is NextStepVectorEnv
    restored.train()
    restored.stop()


def rllib_style(env_config):
    return Counting(env_config["num_envs"], longer=env_config.get("longer", 1))


def test_a_function_of_the_config_is_told_the_number_of_copies():
    register_env("counting", rllib_style)
    for env in (rllib_style, "counting"):
        algo = configured(env, "vector_entry_point", copies=3, longer=2).build_algo()
        assert algo.env_runner.vector_env.env.env.num_envs == 3
        assert algo.env_runner.vector_env.env.env.longer == 2
        algo.stop()


def test_a_function_of_any_keywords_is_told_the_number_of_copies():
    algo = configured(lambda **settings: Counting(**settings), "vector_entry_point", copies=3).build_algo()
    assert len(algo.env_runner.vector_env.sub_envs) == 3


@pytest.mark.parametrize(
    ("env", "error", "said"),
    [
        ("Acrobot-v1", EnvError, "vector"),
        (lambda **settings: Walk(), EnvError, r"gymnasium.vector.VectorEnv"),
        ("marl_envs.null_v0", EnvError, "num_envs"),
    ],
)
def test_no_vector_env_is_an_error(env, error, said):
    with pytest.raises(error, match=said):
        configured(env, "vector_entry_point").build_algo()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda c: c.env_runners(gym_env_vectorize_mode="vector_entry_point", num_env_workers=2),
            "sub-environments",
        ),
        (lambda c: c.environment(render_env=True).env_runners(num_env_workers=2), "num_env_workers=2"),
        (lambda c: c.environment(render_env=True).env_runners(gym_env_vectorize_mode="async"), "'async'"),
        (lambda c: c.environment(Walk, render_env=True), "windows"),
        (lambda c: c.environment(render_env="human"), "render_env"),
    ],
)
def test_settings_that_do_not_fit_are_an_error(change, said):
    with pytest.raises(ConfigError, match=said):
        change(configured()).build_algo()


class Window(Walk):
    """Draws itself in every reset and step, as Gymnasium's environments do in this mode."""

    metadata = {"render_modes": ["human"]}

    def __init__(self, render_mode=None, **settings):
        super().__init__(**settings)
        self.render_mode, self.num_drawn = render_mode, 0

    def step(self, action):
        self.num_drawn += self.render_mode == "human"
        return super().step(action)


def test_the_first_copy_of_the_training_runner_is_drawn():
    made = []

    class Notes(Callbacks):
        def on_environment_created(self, *, env_runner, env, env_context, **kwargs):
            made.extend(copy.unwrapped for copy in env.envs)

    algo = configured(Window, copies=3).environment(render_env=True).callbacks(Notes).build_algo()
    algo.train()
    algo.evaluate(num_episodes=2)
    assert [env.render_mode for env in made] == ["human", None, None, None, None]
    assert [env.num_drawn > 0 for env in made] == [True, False, False, False, False]
    algo.stop()


class SoundWindow(Sound):
    metadata = {"name": "window", "render_modes": ["human"]}


def test_a_pettingzoo_environment_is_drawn_too():
    algo = configured(SoundWindow, copies=2).environment(render_env=True).build_algo()
    assert [copy.env.render_mode for copy in algo.env_runner.vector_env.sub_envs] == ["human", None]
    algo.stop()


def test_being_watched_changes_nothing():
    fingerprints = []
    for render_env in (False, True):
        algo = configured("CartPole-v1", copies=2).environment(render_env=render_env).build_algo()
        algo.train()
        fingerprints.append(np.concatenate([c.get_observations().ravel() for c in algo.env_runner.sample()]).tolist())
        algo.stop()
    assert fingerprints[0] == fingerprints[1]
