"""reset_options: every reset gets a copy of them, wherever the environment is."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import VectorWrapper

from helpers.envs.gymnasium_envs import AutoresetMode
from helpers.envs.reset_option_envs import ParallelShown, SingleShown, TurnBasedShown, vector_shown
from helpers.envs.scripted_envs import small_config
from marl_connectors import Algorithm, ConfigError, load_policy
from marl_envs import spread_v0

KINDS = [SingleShown, ParallelShown, TurnBasedShown]
OPTIONS = {"nested": {"level": 7}}


def configured(env, **settings):
    config = small_config(env, **settings).multi_agent(policies=None if env is SingleShown else "shared")
    return config.env_runners(num_envs_per_env_runner=2)


def levels(episodes):
    """Those that observations show: ``[[level, ...] of each sequence]``."""
    found = []
    for episode in episodes:
        agents = getattr(episode, "agent_episodes", None)
        for own in [episode] if agents is None else agents.values():
            found.append([float(own.get_observations(t)[0]) for t in range(len(own) + 1)])
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("env", KINDS)
def test_all_resets_get_them(env, workers):
    algo = configured(env, reset_options=OPTIONS).env_runners(num_env_workers=workers).build_algo()
    samples = algo.env_runner.sample(num_timesteps=20) + algo.env_runner.sample(num_episodes=4)
    algo.stop()
    assert len(levels(samples)) > 8
    assert all(set(own) == {7.0} for own in levels(samples))
    assert OPTIONS == {"nested": {"level": 7}}


@pytest.mark.parametrize("env", KINDS)
def test_without_them_resets_get_none(env):
    samples = configured(env).build_algo().env_runner.sample(num_timesteps=20)
    assert all(set(own) == {-1.0} for own in levels(samples))


@pytest.mark.parametrize("env", KINDS)
def test_wrapped_environments_are_what_they_were(env):
    (copy, _) = configured(env, reset_options=OPTIONS).build_algo().env_runner.vector_env.envs
    assert type(copy.unwrapped) is env


@pytest.mark.parametrize("env", KINDS)
def test_a_checkpoint_keeps_them_and_replays_with_them(env, tmp_path):
    algo = configured(env, reset_options=OPTIONS).build_algo()
    algo.env_runner.sample(num_timesteps=4)  # amid an episode of three steps
    algo.save_to_path(tmp_path / "run")
    restored = Algorithm.from_checkpoint(tmp_path / "run")
    assert restored.config.reset_options == OPTIONS
    after, expected = (levels(run.env_runner.sample(num_timesteps=8)) for run in (restored, algo))
    assert after == expected
    assert {level for own in after for level in own} == {7.0}
    load_policy(tmp_path / "run")


@pytest.mark.skipif(AutoresetMode is None, reason="Gymnasium 1.0 has no autoreset modes")
@pytest.mark.parametrize("mode", ["DISABLED", "NEXT_STEP"])
def test_vector_envs_whose_copies_are_reset_from_outside_get_them_with_each_reset(mode):
    config = small_config(vector_shown, env_config={"mode": mode}, reset_options=OPTIONS)
    episodes = config.env_runners(num_envs_per_env_runner=2).build_algo().env_runner.sample(num_timesteps=14)
    assert len(episodes) >= 4
    assert {level for own in levels(episodes) for level in own} == {7.0}


@pytest.mark.skipif(AutoresetMode is None, reason="Gymnasium 1.0 has no autoreset modes")
@pytest.mark.parametrize(("mode", "wrapper"), [("SAME_STEP", None), ("NEXT_STEP", VectorWrapper)])
def test_vector_envs_that_reset_copies_themselves_take_none(mode, wrapper):
    def make(num_envs=1, **settings):
        env = vector_shown(num_envs, **settings)
        return env if wrapper is None else wrapper(env)

    small_config(make, env_config={"mode": mode}).build_algo()
    with pytest.raises(ConfigError, match=rf"reset_options: .*AutoresetMode\.{mode}.*env_config.*DISABLED"):
        small_config(make, env_config={"mode": mode}, reset_options=OPTIONS).build_algo()


def test_natively_batched_environments_take_none():
    with pytest.raises(ConfigError, match=r"(?s)reset_options.*env_config"):
        small_config(spread_v0.batched_env, reset_options=OPTIONS).multi_agent(policies="shared").build_algo()


@pytest.mark.parametrize("wrong", [7, "level", [("level", 7)]])
def test_what_is_no_dict_is_an_error(wrong):
    with pytest.raises(ConfigError, match="reset_options"):
        small_config(SingleShown).environment(reset_options=wrong)


def test_a_later_change_of_the_dict_that_was_given_has_no_effect():
    given = {"nested": {"level": 7}}
    config = configured(SingleShown, reset_options=given)
    given["more"] = np.zeros(2)
    assert config.reset_options == OPTIONS
