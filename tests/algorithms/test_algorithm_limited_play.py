"""Random play and evaluations that are bounded by time: what they give, and that training does not depend on them."""

from __future__ import annotations

import contextlib
import math
import random

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import PPOConfig
from marl_connectors.env_runners.done_episodes import DoneEpisode, first_rounds
from marl_connectors.seeding import global_generators_kept


class LengthsEnv(gymnasium.Env):
    """Episodes of as many steps as the reset's seed says, 3 to 12, with a reward of 1 a step."""

    observation_space = spaces.Box(-1.0, 20.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length, self.t = int(self.np_random.integers(3, 13)), 0
        return np.array([0.0], np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.t], np.float32), 1.0, False, self.t >= self.length, {}


class CarelessEnv(LengthsEnv):
    """Draws from all global generators."""

    def step(self, action):
        obs, *rest = super().step(action)
        return obs + np.float32(np.random.random() / 3 + random.random() / 3 + float(torch.rand(())) / 3), *rest


def config_of(env, copies=3, **settings):
    config = small_config(env, **settings).env_runners(num_envs_per_env_runner=copies, rollout_fragment_length=10)
    return config.debugging(seed=3)


def stop_after(steps):
    """For ``is_enough``: enough after so many steps."""
    left = [steps]

    def is_enough(num_done):
        left[0] -= 1
        return left[0] < 0

    return is_enough


@pytest.mark.parametrize("at_random", [False, True])
def test_a_sample_that_ends_early_has_the_first_episodes_of_the_whole_one(at_random):
    algo = config_of(LengthsEnv).build_algo()

    def sampled(is_enough=None):
        runner = algo._runner(algo.config, 5, 3, for_training=False)
        with algo._borrowed(runner):
            episodes = runner.sample(num_episodes=12, random_actions=at_random, is_enough=is_enough)
            assert [summary.length for summary in runner.take_finished()] == [len(episode) for episode in episodes]
            return {episode.id_: episode.get_observations().tolist() for episode in episodes}

    whole, numbers = sampled(), []
    for steps in range(0, 60, 4):
        part = sampled(stop_after(steps))
        assert part.items() <= whole.items()
        numbers.append(len(part))
    assert numbers[0] == 0 and numbers[-1] == 12 and set(numbers) == {0, 3, 6, 9, 12} and numbers == sorted(numbers)
    algo.stop()


def test_of_each_copy_come_as_many_episodes_as_the_slowest_one_has_ended():
    rng = np.random.default_rng(0)
    for _ in range(100):
        copies = int(rng.integers(1, 5))
        done = [DoneEpisode(number, int(rng.integers(copies)), None) for number in range(rng.integers(0, 15))]
        by_copy = [[entry for entry in done if entry.env_index == index] for index in range(copies)]
        fewest = min(map(len, by_copy))
        expected = {entry.episode for entries in by_copy for entry in entries[:fewest]}
        found = [entry.episode for entry in first_rounds(done, copies)]
        assert found == sorted(expected)  # in the order in which they ended


def test_no_time_gives_no_figures_and_no_error():
    algo = config_of(LengthsEnv).build_algo()
    for play in (algo.random_play, algo.evaluate):
        results = play(num_episodes=5, max_seconds=0.0)["env_runners"]
        assert results["num_episodes"] == 0
        assert results["module_episode_returns"] == {}
        assert math.isnan(results["episode_return_mean"])
    algo.stop()


def test_enough_time_gives_what_no_limit_gives():
    algo = config_of(LifeEnv).build_algo()
    assert algo.random_play(num_episodes=5, max_seconds=1e9) == algo.random_play(num_episodes=5)
    assert algo.evaluate(num_episodes=5, seed=1, max_seconds=1e9) == algo.evaluate(num_episodes=5, seed=1)
    algo.stop()


@pytest.mark.parametrize("name", ["random_play", "evaluate"])
def test_the_caller_can_end_it_and_gets_the_first_episodes_of_each_copy(name):
    algo = config_of(LengthsEnv).build_algo()
    play, asked = getattr(algo, name), []

    def is_enough():
        asked.append(True)
        return len(asked) > 20

    results = play(num_episodes=30, seed=1, is_enough=is_enough)["env_runners"]
    assert len(asked) == 21
    assert 0 < results["num_episodes"] < 30
    assert results["num_episodes"] % 3 == 0  # of three copies, as many from each
    assert play(num_episodes=30, seed=1, is_enough=lambda: False)["env_runners"]["num_episodes"] == 30
    algo.stop()


def test_progress_is_told_after_each_step():
    algo, told = config_of(LengthsEnv).build_algo(), []
    algo.random_play(num_episodes=7, on_progress=told.append)
    assert told == sorted(told) and told[0] == 0 and told[-1] < 7 and len(set(told)) > 2
    algo.stop()


class _Stop(BaseException):
    pass


def disturbed(algo, steps, ending):
    """Plays at random and evaluates for so many steps."""
    for play in (algo.random_play, algo.evaluate):
        left = [steps]

        def on_progress(num_done, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise ending

        with contextlib.suppress(ending):
            play(num_episodes=50, on_progress=on_progress)


def trained(algo):
    rows = [algo.train() for _ in range(3)]
    weights = {m: {k: v.numpy() for k, v in s.items()} for m, s in algo.rl_module.get_state().items()}
    algo.stop()
    return [{k: v for k, v in row.items() if not k.startswith("time")} for row in rows], weights


@pytest.mark.few(2)
@pytest.mark.parametrize("ending", [_Stop, KeyboardInterrupt])
@pytest.mark.parametrize("env", [LengthsEnv, CarelessEnv, LifeEnv])
def test_training_does_not_depend_on_how_long_random_play_took(env, ending):
    """Also where it is interrupted, and for an environment that draws from the global generators."""
    outcomes = []
    for steps in (None, 0, 1, 17, 60):
        with global_generators_kept():
            random.seed(5)
            np.random.seed(5)
            torch.manual_seed(5)
            algo = config_of(env, disable_env_checking=env is CarelessEnv).build_algo()
            if steps is not None:
                disturbed(algo, steps, ending)
            outcomes.append(trained(algo))
    for outcome in outcomes[1:]:
        np.testing.assert_equal(outcome, outcomes[0])


def test_global_generators_are_put_back():
    before = random.getstate(), np.random.get_state()[2], torch.get_rng_state()

    def draw():
        random.random(), np.random.random(), torch.rand(())
        raise KeyError

    with pytest.raises(KeyError), global_generators_kept():
        draw()
    after = random.getstate(), np.random.get_state()[2], torch.get_rng_state()
    assert after[:2] == before[:2] and torch.equal(after[2], before[2])


def test_the_limit_holds_for_episodes_that_never_end():
    class Endless(LengthsEnv):
        def step(self, action):
            return np.array([1.0], np.float32), 1.0, False, False, {}

    algo = PPOConfig().environment(Endless).env_runners(num_envs_per_env_runner=2).build_algo()
    assert algo.random_play(num_episodes=4, max_seconds=0.05)["env_runners"]["num_episodes"] == 0
    assert algo.evaluate(num_episodes=4, max_seconds=0.05)["env_runners"]["num_episodes"] == 0
    algo.stop()
