"""What a run checks before it starts remote env runners, and what it reserves for its actors."""

from __future__ import annotations

import threading

import pytest

from helpers.envs.scripted_envs import small_config
from helpers.runs.fake_ray import use_fake_ray
from marl_connectors import PPOConfig
from marl_connectors.algorithms.remote_parts import (
    check_can_be_sent,
    learner_resources,
    restart_policy,
    runner_resources,
)
from marl_connectors.cluster.actor_pool import RestartPolicy
from marl_connectors.cluster.ray_cluster import Resources
from marl_connectors.errors import ConfigError


def test_a_setting_that_cannot_be_sent_to_another_process_is_named(monkeypatch):
    use_fake_ray(monkeypatch)
    config = small_config("CartPole-v1").callbacks(on_sample_end=Callback(threading.Lock()))
    config.env_runners(num_env_runners=1)
    with pytest.raises(ConfigError, match=r"(?s)callbacks_on_sample_end.*'_thread.lock'"):
        config.build_algo()


def test_learners_get_no_callbacks(monkeypatch):
    """They run in the processes of env runners, or in that of the algorithm."""
    config = small_config("CartPole-v1").callbacks(on_sample_end=Callback(threading.Lock()))
    algo = config.build_algo()
    check_can_be_sent(algo._learner_blueprint().config.to_dict())


def test_callbacks_of_the_algorithm_stay_in_this_process(monkeypatch):
    use_fake_ray(monkeypatch)
    callback = Callback(threading.Lock())
    algo = small_config("CartPole-v1").env_runners(num_env_runners=1).callbacks(on_train_result=callback).build_algo()
    algo.train()
    algo.stop()
    assert callback.calls == 1


class Callback:
    """A function that holds something."""

    def __init__(self, held):
        self.held = held
        self.calls = 0

    def __call__(self, **kwargs):
        self.calls += 1


def test_env_runners_reserve_what_their_settings_say():
    config = PPOConfig().env_runners(
        num_cpus_per_env_runner=2, num_gpus_per_env_runner=0.25, custom_resources_per_env_runner={"fast_disk": 0.5}
    )
    assert runner_resources(config) == Resources(2.0, 0.25, {"fast_disk": 0.5})


@pytest.mark.parametrize(
    ("cpus", "gpus", "expected"),
    [("auto", 0, Resources(1.0, 0.0)), ("auto", 1, Resources(0.0, 1.0)), (3, 0, Resources(3.0, 0.0))],
)
def test_a_learner_reserves_a_cpu_unless_it_has_a_gpu(cpus, gpus, expected):
    config = PPOConfig().learners(num_cpus_per_learner=cpus, num_gpus_per_learner=gpus)
    assert learner_resources(config) == expected


def test_what_happens_to_lost_actors_follows_from_the_settings():
    config = PPOConfig().env_runners(sample_timeout_s=7)
    config.fault_tolerance(
        restart_failed_env_runners=False,
        ignore_env_runner_failures=True,
        max_num_env_runner_restarts=3,
        env_runner_health_probe_timeout_s=2,
        env_runner_restore_timeout_s=9,
    )
    assert restart_policy(config) == RestartPolicy(False, True, 3, 7.0, 2.0, 9.0)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_learners": 2, "num_gpus_per_learner": 1}, r"need 2 GPU \(num_gpus_per_learner=1\), but"),
        ({"num_env_runners": 2, "num_gpus_per_env_runner": 0.5}, r"need 1 GPU \(num_gpus_per_env_runner=0\.5\), but"),
        (
            {"num_env_runners": 2, "num_gpus_per_env_runner": 1, "num_learners": 1, "num_gpus_per_learner": 1},
            r"need 3 GPU \(num_gpus_per_env_runner=1, num_gpus_per_learner=1\), but",
        ),
        (
            {"num_env_runners": 2, "custom_resources_per_env_runner": {"fast_disk": 1}},
            r"need 2 fast_disk \(custom_resources_per_env_runner=\{'fast_disk': 1\}\), but",
        ),
    ],
)
def test_the_settings_that_reserve_what_is_not_there_are_named(settings, expected, monkeypatch):
    use_fake_ray(monkeypatch)
    config = small_config("CartPole-v1")
    config.change(**settings)
    with pytest.raises(ConfigError, match=expected):
        config.build_algo()
