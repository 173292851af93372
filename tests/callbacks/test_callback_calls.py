"""Which classes and functions are callbacks, in which order they are called, and what is refused."""

from __future__ import annotations

import functools

import pytest

from helpers.envs.scripted_envs import small_config
from marl_connectors import Callbacks, RLlibCallback
from marl_connectors.callbacks import CALLBACK_NAMES
from marl_connectors.errors import ConfigError


def test_classes_come_before_functions_in_the_order_given():
    told = []

    class One(RLlibCallback):
        def on_sample_end(self, **kwargs):
            told.append("one")

    class Two(Callbacks):
        def on_sample_end(self, **kwargs):
            told.append("two")

    functions = [lambda tag=tag, **kwargs: told.append(tag) for tag in "ab"]
    config = small_config("CartPole-v1").callbacks([Two, One], on_sample_end=functions)
    config.build_algo().env_runner.sample(num_timesteps=1)
    assert told == ["two", "one", "a", "b"]
    told.clear()
    config.copy().callbacks(One, on_sample_end=functools.partial(functions[1])).build_algo().env_runner.sample()
    assert told == ["one", "b"]
    told.clear()
    config.copy().callbacks(None, on_sample_end=None).build_algo().env_runner.sample()
    assert told == []


def test_every_callback_is_a_setting():
    algo_events, runner_events = [], []
    told = {
        name: lambda _name=name, **kwargs: (algo_events if "algorithm" in kwargs else runner_events).append(_name)
        for name in CALLBACK_NAMES
    }
    config = small_config("CartPole-v1").callbacks(**told)
    assert all(getattr(config, f"callbacks_{name}") is told[name] for name in CALLBACK_NAMES)
    algo = config.evaluation(evaluation_interval=1, evaluation_duration=1).build_algo()
    algo.train()
    assert algo_events == ["on_algorithm_init", "on_evaluate_start", "on_evaluate_end", "on_train_result"]
    assert set(runner_events) == {name for name in CALLBACK_NAMES if "episode" in name or "sample" in name} | {
        "on_environment_created"
    }
    with pytest.raises(ConfigError, match=r"(?s)'on_episod_end'.*'on_episode_end'"):
        config.copy().callbacks(on_episod_end=print)


def test_a_name_that_nothing_is_told_to_is_refused():
    class Misspelt(Callbacks):
        def on_episodes_end(self, **kwargs):
            pass

    with pytest.raises(ConfigError, match=r"(?s)Misspelt\.on_episodes_end.*'on_episode_end'"):
        small_config("CartPole-v1").callbacks(Misspelt).build_algo()


def test_what_cannot_be_called_with_the_arguments_is_refused_at_once():
    class Short(Callbacks):
        def on_episode_end(self, *, episode):
            pass

    with pytest.raises(ConfigError, match=r"(?s)Short\.on_episode_end.*prev_episode_chunks"):
        small_config("CartPole-v1").callbacks(Short).build_algo()
    with pytest.raises(ConfigError, match=r"(?s)on_sample_end.*\b3\b"):
        small_config("CartPole-v1").callbacks(on_sample_end=3)
