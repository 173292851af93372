"""Each sub-environment has an environment of its own."""

from __future__ import annotations

import gc

import gymnasium
import pytest
from gymnasium.vector import SyncVectorEnv

from helpers.envs.scripted_aec import Beat, ScriptedAEC
from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import EnvError, PPOConfig
from marl_connectors.environments.vector.vector_env import VectorEnv


def one_cart_pole(num_envs=4, **settings):
    env = gymnasium.make("CartPole-v1")

    def returns_the_same(config):
        return settings["wrap"](env) if settings else env

    return returns_the_same, config_of(returns_the_same, num_envs)


def config_of(make, num_envs):
    config = PPOConfig().environment(make).env_runners(num_envs_per_env_runner=num_envs)
    return config.training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1)


def test_a_maker_that_returns_the_same_environment_is_named():
    make, config = one_cart_pole()
    line = make.__code__.co_firstlineno
    with pytest.raises(EnvError, match=rf"(?s)'returns_the_same'.*test_envs_in_use\.py:{line}.*\b1\b.*CartPole"):
        config.build_algo()


def test_wrappers_around_the_same_environment_do_not_hide_it():
    _, config = one_cart_pole(wrap=lambda env: gymnasium.wrappers.TimeLimit(env, 10))
    with pytest.raises(EnvError, match="each call"):
        config.build_algo()


@pytest.mark.parametrize("env", [LifeEnv(), ScriptedAEC([Beat("a")])], ids=["parallel", "turn-based"])
def test_the_same_holds_for_pettingzoo_environments(env):
    config = small_config(lambda config: env, disable_env_checking=True).multi_agent(policies="independent")
    with pytest.raises(EnvError, match=rf"(?s)\b1\b.*{type(env.unwrapped).__name__}.*sub-environment 0"):
        config.env_runners(num_envs_per_env_runner=2).build_algo()


@pytest.mark.parametrize("disabled", [True, False])
def test_the_same_holds_inside_of_a_vector_env(disabled):
    env = gymnasium.make("CartPole-v1")

    def makes_vector(*, num_envs=1):
        return SyncVectorEnv([lambda: env] * num_envs)

    config = config_of(makes_vector, 2).environment(disable_env_checking=disabled)
    with pytest.raises(EnvError, match=r"(?s)'makes_vector'.*\b1\b.*CartPoleEnv.*sub-environment 0"):
        config.build_algo()


def test_an_environment_cannot_train_and_evaluate_at_once():
    _, config = one_cart_pole(num_envs=1)
    algo = config.build_algo()
    algo.train()
    with pytest.raises(EnvError, match=r"(?s)\b0\b.*CartPoleEnv.*sub-environment 0"):
        algo.evaluate()
    algo.train()  # it was not touched
    algo.stop()


def test_a_list_with_one_environment_is_refused_and_releases_it():
    env = LifeEnv()
    with pytest.raises(EnvError, match=r"(?s)VectorEnv.*\b1\b.*LifeEnv"):
        VectorEnv([env] * 4, seed=0)
    VectorEnv([env, LifeEnv()], seed=0).reset_all()


def test_an_environment_is_free_again_after_close_or_without_a_user():
    env = LifeEnv()
    first = VectorEnv([env], seed=0)
    with pytest.raises(EnvError, match="LifeEnv"):
        VectorEnv([env], seed=0)
    first.close()
    second = VectorEnv([env], seed=0)
    del second
    gc.collect()
    VectorEnv([env], seed=0).reset_all()


@pytest.mark.slow
def test_worker_processes_have_copies_of_their_own():
    config = small_config(ReturnsTheSame(), disable_env_checking=True).multi_agent(policies="shared")
    with config.env_runners(num_envs_per_env_runner=2, num_env_workers=2).build_algo() as algo:
        algo.env_runner.sample(num_timesteps=4)
    with pytest.raises(EnvError, match=r"(?s)\b1\b.*LifeEnv.*sub-environment 0"):
        config.env_runners(num_envs_per_env_runner=2, num_env_workers=1).build_algo()


class ReturnsTheSame:
    """Returns one environment in all calls in a process."""

    def __init__(self):
        self.env = LifeEnv()

    def __call__(self, config):
        return self.env
