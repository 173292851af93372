"""PPO as the class of an algorithm."""

from __future__ import annotations

import pytest

from marl_connectors import MAPPO, PPO, Algorithm, MAPPOConfig, PPOConfig
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.errors import ConfigError


class OwnPPO(PPO):
    """A user's subclass."""


@pytest.mark.parametrize(
    ("config", "expected"), [(PPOConfig(), PPO), (MAPPOConfig(), MAPPO), (PPOConfig(algo_class=OwnPPO), OwnPPO)]
)
def test_a_config_names_the_class_of_its_algorithm(config, expected):
    assert config.algo_class is expected
    assert config.copy().algo_class is expected


@pytest.mark.parametrize(("algorithm", "config"), [(PPO, PPOConfig), (MAPPO, MAPPOConfig), (OwnPPO, PPOConfig)])
def test_an_algorithm_has_a_default_config(algorithm, config):
    assert type(algorithm.get_default_config()) is config


def test_the_default_config_of_an_algorithm_builds_that_algorithm():
    assert Algorithm.get_default_config().algo_class is Algorithm
    assert type(Algorithm.get_default_config()) is AlgorithmConfig


@pytest.mark.parametrize("how", ["config", "dict", "env"])
def test_an_algorithm_is_built_from_a_config_a_dict_or_an_environment(how):
    built = {
        "config": lambda: PPO(config=PPOConfig().environment("CartPole-v1").training(gamma=0.9)),
        "dict": lambda: PPO(config={"env": "CartPole-v1", "gamma": 0.9}),
        "env": lambda: PPO(config={"gamma": 0.9}, env="CartPole-v1"),
    }[how]()
    assert built.config.env == "CartPole-v1" and built.config.gamma == 0.9
    assert type(built) is PPO and type(built.config) is PPOConfig
    built.stop()


def test_the_config_that_an_algorithm_gets_stays_as_it_is():
    config = PPOConfig()
    PPO(config, env="CartPole-v1").stop()
    assert config.env is None


def test_an_unknown_setting_in_a_dict_is_named():
    with pytest.raises(ConfigError, match=r"(?s)'gama'.*'gamma'"):
        PPO(config={"gama": 0.9}, env="CartPole-v1")


def test_a_checkpoint_leads_to_the_class_that_made_it(tmp_path):
    with_steps = PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=32, minibatch_size=32)
    algo = with_steps.build_algo()
    algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    for cls, expected in ((Algorithm, PPO), (PPO, PPO), (OwnPPO, OwnPPO)):
        restored = cls.from_checkpoint(tmp_path / "checkpoint")
        assert type(restored) is expected
        restored.stop()
