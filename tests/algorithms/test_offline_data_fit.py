"""Recorded episodes that do not fit a run are errors that name file, episode, agent and step."""

import gymnasium as gym
import numpy as np
import pytest

from marl_connectors import (
    BCConfig,
    EpisodeWriter,
    MARWILConfig,
    MeanStdFilter,
    PPOConfig,
    SingleAgentEpisode,
    SingleAgentObservationPreprocessor,
)
from marl_connectors.errors import ConfigError, OfflineDataError

ENV = gym.make("CartPole-v1")


class Halved(SingleAgentObservationPreprocessor):
    """Writes other observations to episodes."""

    def preprocess(self, observation):
        return observation / np.float32(2)


def episode(size=4, dtype=np.float32, actions=(0, 1), rewards=(1.0, 1.0), typed=False, **changes):
    obs = [np.full(size, i, dtype) for i in range(3)]
    for i, value in changes.pop("obs", {}).items():
        obs[i][0] = value
    both = {"observation_space": ENV.observation_space, "action_space": ENV.action_space} if typed else {}
    return SingleAgentEpisode(
        id_="bad", observations=obs, actions=list(actions), rewards=list(rewards), len_lookback_buffer=0, **both
    )


def train(folder, cls=BCConfig, env="CartPole-v1", **settings):
    config = cls().environment(env).offline_data(input_=str(folder)).training(train_batch_size_per_learner=4)
    with config.env_runners(num_env_workers=0, **settings).debugging(seed=0).build_algo() as algo:
        return algo.train()


def written(folder, *episodes):
    with EpisodeWriter(folder) as writer:
        writer.write([episode(typed=True), *episodes])
    return folder


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (episode(size=3), r"\(3,\).*Box\(4,\).*float32"),
        (episode(dtype=np.float64), "float64"),
        (episode(actions=[0.0, 1.0]), r"float64.*Discrete\(2\)"),
        (episode(actions=[np.zeros(2)] * 2), r"\(2,\)"),
        (episode(actions=[0, 7], typed=True), r"step 1.*\b7\b.*\[0, 1\]"),
        (episode(actions=[0, -1]), r"step 1.*-1.*\[0, 1\]"),
        (episode(obs={1: np.nan}, typed=True), r"step 1.*\bobs\b.*\bnan\b"),
        (episode(obs={2: -np.inf}), r"step 2.*\bobs\b"),
    ],
)
def test_values_that_do_not_fit_are_named_with_file_and_episode(own, why, tmp_path):
    written(tmp_path, own)
    with pytest.raises(OfflineDataError, match=rf"(?s)episodes-000000\.episodes.*'bad'.*{why}"):
        train(tmp_path)


def test_data_without_spaces_that_fit_are_read(tmp_path):
    written(tmp_path, episode(), episode(obs={1: 99.0}))  # environments leave their bounds, too
    assert train(tmp_path)["offline_data"]["num_agent_steps_read_lifetime"] == 4


def recorded(folder, **settings):
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=40).debugging(seed=0)
    with config.env_runners(num_env_workers=0, **settings).build_algo() as algo:
        algo.record(folder, num_episodes=2)
    return folder


def test_data_behind_other_pieces_are_refused(tmp_path):
    raw, halved = recorded(tmp_path / "raw"), recorded(tmp_path / "halved", env_to_module_connector=lambda: Halved())
    train(halved, env_to_module_connector=lambda: Halved())
    with pytest.raises(OfflineDataError, match=r"\(Halved\)"):
        train(halved)
    with pytest.raises(OfflineDataError, match="Halved"):
        train(raw, env_to_module_connector=lambda: Halved())
    with pytest.raises(OfflineDataError, match=r"(?s)\(Halved\).*Halved.*Halved"):
        train(halved, MARWILConfig, env_to_module_connector=lambda: [Halved(), Halved()])


@pytest.mark.parametrize("cls", [BCConfig, MARWILConfig])
def test_a_filter_whose_statistics_nothing_updates_is_refused(cls, tmp_path):
    recorded(tmp_path, env_to_module_connector=lambda: MeanStdFilter())
    with pytest.raises(ConfigError, match=r"(?s)MeanStdFilter.*env_to_module_connector"):
        train(tmp_path, cls, env_to_module_connector=lambda: MeanStdFilter())
    with pytest.raises(OfflineDataError, match=r"\(MeanStdFilter\)"):
        train(tmp_path, cls)


def test_a_run_records_its_pieces(tmp_path):
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=40).debugging(seed=0)
    config.env_runners(num_env_workers=0, env_to_module_connector=lambda: MeanStdFilter())
    with config.copy().offline_data(output=tmp_path).build_algo() as algo:
        algo.train()
    with config.copy().offline_data(input_=tmp_path, input_order="as_recorded").build_algo() as algo:
        algo.train()
    with pytest.raises(OfflineDataError, match=r"\(MeanStdFilter\)"):
        train(tmp_path, PPOConfig)
