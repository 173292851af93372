"""Rendered episodes."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import PPOConfig
from marl_connectors.algorithms.rendering import FrameRecorder
from marl_connectors.errors import EnvError


class Clock(gymnasium.Env):
    """Episodes of ``length`` steps with reward 2, whose picture has the number of steps since the reset."""

    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=5, render_mode=None):
        self.length, self.render_mode, self.t = length, render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 2.0, self.t == self.length, False, {}

    def render(self):
        return np.full((2, 3, 3), self.t, np.uint8)


def algorithm(env=Clock, **env_config):
    return PPOConfig().environment(env, env_config=env_config).env_runners(num_envs_per_env_runner=1).build_algo()


def steps_shown(episode):
    return [int(frame[0, 0, 0]) for frame in episode.frames]


def test_an_episode_is_rendered_from_its_reset_to_its_last_step():
    episodes = algorithm().render_episodes(2)
    assert [steps_shown(episode) for episode in episodes] == 2 * [[0, 1, 2, 3, 4, 5]]
    assert [episode.num_steps for episode in episodes] == [5, 5]
    assert [episode.module_returns for episode in episodes] == 2 * [{"default_policy": 10.0}]


def test_of_a_long_episode_frames_at_equal_distances_and_the_last_are_kept():
    (episode,) = algorithm(length=21).render_episodes(max_frames=6)
    assert steps_shown(episode) == [0, 8, 16, 21]


@pytest.mark.parametrize("max_frames", [2, 3, 7, 50])
def test_there_are_never_too_many_frames(max_frames):
    for num_steps in range(1, 60):
        counter = itertools.count()
        recorder = FrameRecorder(lambda counter=counter: next(counter), max_frames)
        recorder.start()
        for _ in range(num_steps):
            recorder.step()
        recorder.end()
        assert 2 <= len(recorder.frames) <= max_frames
        assert len(recorder.frames) > max_frames / 2 or len(recorder.frames) == num_steps + 1


def test_a_stopped_episode_has_no_return():
    (episode,) = algorithm().render_episodes(max_steps=3)
    assert (steps_shown(episode), episode.num_steps, episode.module_returns) == ([0, 1, 2, 3], 3, {})


def test_the_returns_are_those_of_an_evaluation_with_the_same_seed():
    algo = small_config("mpe2.simple_spread_v3", env_config={"max_cycles": 5}).build_algo()
    (episode,) = algo.render_episodes(seed=4)
    result = algo.evaluate(num_episodes=1, seed=4)["env_runners"]["module_episode_returns"]
    assert episode.module_returns == {module_id: stats["mean"] for module_id, stats in result.items()}
    assert len(episode.frames) == 6


def test_the_users_callbacks_are_called_too():
    ended = []
    config = PPOConfig().environment(Clock).callbacks(on_episode_end=lambda **arguments: ended.append(1))
    algo = config.build_algo()
    assert len(algo.render_episodes(2)[1].frames) == 6
    assert ended == [1, 1]


def test_an_environment_without_pictures_has_no_rendered_episodes():
    class Blank(Clock):
        def render(self):
            return None

    assert algorithm(Blank).render_episodes(2) == []
    assert small_config(lambda: LifeEnv()).build_algo().render_episodes() == []


class Painter(Clock):
    """Renders ``frame``, a fresh object or one and the same."""

    frame = np.zeros((2, 3, 3), np.uint8)

    def render(self):
        if isinstance(self.frame, np.ndarray):
            self.frame[...] = self.t
        return self.frame


def test_frames_stay_as_they_were_though_the_environment_paints_into_one_array():
    algo = algorithm(Painter)
    assert [frame[0, 0, 0] for frame in algo.render_episode(max_frames=4)] == [1, 2, 3, 4]
    assert steps_shown(algo.render_episodes()[0]) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((2, 3), np.uint8),
        np.zeros((2, 3, 4), np.uint8),
        np.zeros((2, 3, 3)),
        [np.zeros((2, 3, 3), np.uint8)],
        "text",
        [[1], [1, 2]],
    ],
)
def test_frames_of_other_forms_name_the_environment(frame, monkeypatch):
    monkeypatch.setattr(Painter, "frame", frame)
    algo = algorithm(Painter)
    for render in (algo.render_episode, algo.render_episodes):
        with pytest.raises(EnvError, match="Painter: render"):
            render()
