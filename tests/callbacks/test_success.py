"""The success of episodes: when it is measured, over which episodes its mean is, and when it cannot be measured."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest

from helpers.runs.fake_ray import use_fake_ray
from marl_connectors import Algorithm, PPOConfig
from marl_connectors.algorithms.config.state import ConfigState, config_from_state, config_to_state
from marl_connectors.callbacks import Success
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.names import Names
from marl_connectors.zoo.measures import balanced


class Counted(gym.Env):
    """Episode ``n`` of a sub-environment lasts two steps, and ``successes`` at its end is ``n % 2``."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config=None):
        self.episodes, self.t = 0, 0

    def reset(self, *, seed=None, options=None):
        self.episodes, self.t = self.episodes + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 0.0, self.t == 2, False, {}


def odd(env, episode):
    """1 for the first, third, ... episode."""
    assert env.t == 2, "the environment was reset before its success was measured"
    return env.episodes % 2


def config(env=Counted, measure=odd, num_envs=1):
    found = PPOConfig().environment(env, disable_env_checking=True).env_runners(num_env_workers=0)
    found.env_runners(num_envs_per_env_runner=num_envs).callbacks(on_episode_end=Success("odd", measure))
    return found.training(train_batch_size_per_learner=6, minibatch_size=6, num_epochs=1)


def test_training_has_the_mean_of_the_newest_episodes():
    algo = config().build_algo()
    assert algo.train()["env_runners"]["success"] == pytest.approx(2 / 3)  # of the episodes 1, 2 and 3
    assert algo.train()["env_runners"]["success"] == pytest.approx(3 / 6)
    algo.stop()


def test_the_mean_is_over_a_hundred_episodes():
    small = config(measure=lambda env, episode: env.episodes <= 50)
    algo = small.training(train_batch_size_per_learner=120).build_algo()
    found = [algo.train()["env_runners"]["success"] for _ in range(3)]
    algo.stop()
    assert found == [50 / 60, 30 / 100, 0.0]  # of the episodes 1 to 60, 21 to 120, 81 to 180


def test_an_evaluation_and_random_play_have_the_mean_of_all_their_episodes():
    algo = config(measure=lambda env, episode: env.episodes <= 30).build_algo()
    algo.train()
    assert algo.evaluate(num_episodes=150)["env_runners"]["success"] == pytest.approx(30 / 150)
    assert algo.random_play(num_episodes=40)["env_runners"]["success"] == pytest.approx(30 / 40)
    algo.stop()


def test_a_resumed_run_goes_on_with_the_same_mean(tmp_path):
    algo = config("CartPole-v1", balanced).training(train_batch_size_per_learner=100).build_algo()
    before = algo.train()["env_runners"]["success"]
    restored = Algorithm.from_checkpoint(algo.save_to_path(tmp_path / "checkpoint"))
    assert before == 0.0
    assert restored.train()["env_runners"]["success"] == algo.train()["env_runners"]["success"]
    algo.stop()
    restored.stop()


def test_a_measure_must_return_a_share():
    message = r"(?s)\(env, episode\).*3\.0"
    with pytest.raises(ConfigError, match=message):
        config(measure=lambda env, episode: 3).build_algo().env_runner.sample(num_episodes=1)


def test_episodes_for_which_the_measure_returns_none_do_not_count():
    algo = config(measure=lambda env, episode: 1.0 if env.episodes == 3 else None).build_algo()
    assert algo.train()["env_runners"]["success"] == 1.0
    assert "success" not in algo.random_play(num_episodes=2)["env_runners"]
    algo.stop()


def test_a_measure_gets_the_episode_that_has_ended():
    seen = []

    def measure(env, episode):
        seen.append((episode.is_done, episode.id_, len(episode), sorted(episode.get_terminateds())))
        return 1.0 if episode.module_for("agent_1") == "second" else 0.0

    of_agents = config("marl_envs.match_v0", measure).multi_agent(policy_mapping_fn="agent_0=first,agent_1=second")
    of_agents.environment(env_config={"n_agents": 2, "ep_len": 5})
    algo = of_agents.build_algo()
    assert algo.evaluate(num_episodes=2)["env_runners"]["success"] == 1.0
    algo.stop()
    assert seen == [(True, f"0-{number}", 5, ["__all__", "agent_0", "agent_1"]) for number in (0, 1)]


def test_the_measure_of_a_single_agent_gets_its_episode():
    algo = config(measure=lambda env, episode: len(episode) / 4).build_algo()
    assert algo.random_play(num_episodes=3)["env_runners"]["success"] == 2 / 4
    algo.stop()


def test_nothing_is_measured_in_worker_processes():
    algo = config("CartPole-v1", balanced).env_runners(num_env_workers=1).build_algo()
    results = algo.random_play(num_episodes=2)["env_runners"]
    algo.stop()
    assert results["num_episodes"] == 2 and "success" not in results


def test_nothing_is_measured_where_environments_reset_themselves():
    vector = config("CartPole-v1", balanced).env_runners(gym_env_vectorize_mode="vector_entry_point")
    algo = vector.build_algo()
    results = algo.random_play(num_episodes=2)["env_runners"]
    algo.stop()
    assert results["num_episodes"] == 2 and "success" not in results


def test_workers_are_not_started_by_themselves():
    algo = config("CartPole-v1", balanced, num_envs=8).env_runners(num_env_workers="auto").build_algo()
    assert "success" in algo.random_play(num_episodes=8)["env_runners"]
    algo.stop()


def test_remote_env_runners_measure_in_their_processes(monkeypatch):
    use_fake_ray(monkeypatch)
    remote = config(num_envs=1).env_runners(num_env_runners=2).training(train_batch_size_per_learner=12)
    algo = remote.build_algo()
    assert algo.train()["env_runners"]["success"] == pytest.approx(4 / 6)  # twice the episodes 1, 2 and 3
    algo.stop()


def described(measure):
    state = config_to_state(config("CartPole-v1", measure))
    return ConfigState(class_name=state.class_name, settings=json.loads(json.dumps(state.settings)))


def test_a_checkpoint_names_the_measure():
    restored = config_from_state(described(balanced), names=Names(trusted=False))
    assert restored.callbacks_on_episode_end == Success("odd", balanced)


@pytest.mark.parametrize("name", ["os:getcwd", "marl_connectors.checkpoints:load_state"])
def test_a_checkpoint_cannot_name_other_functions_of_the_library_or_of_python(name):
    state = described(balanced)
    success = state.settings["callbacks_on_episode_end"]["value"]
    success["measure"]["value"] = name
    with pytest.raises(CheckpointError, match="function"):
        config_from_state(state)
