"""MixedConfig: which settings belong to the run, and which to the algorithms."""

from __future__ import annotations

import pytest

from helpers.envs.scripted_envs import LifeEnv
from marl_connectors import (
    BCConfig,
    DQNConfig,
    MAPPOConfig,
    MixedConfig,
    MultiRLModule,
    MultiRLModuleSpec,
    PPOConfig,
    RLModuleSpec,
)
from marl_connectors.algorithms.config.state import config_from_state, config_to_state
from marl_connectors.errors import CheckpointError, ConfigError, ModuleError
from marl_connectors.names import Names


def mixed(algorithms):
    config = MixedConfig().environment(LifeEnv, disable_env_checking=True).multi_agent(policies="independent")
    return config.algorithms(algorithms).env_runners(num_envs_per_env_runner=3)


def test_a_module_has_the_settings_of_its_algorithm_and_of_the_run():
    config = mixed({"a": PPOConfig().training(lr=0.1), "*": DQNConfig().training(n_step=3)}).debugging(seed=5)
    own, other = config.get_config_for_module("a"), config.get_config_for_module("b")
    assert (type(own), own.lr, own.num_envs, own.seed, own.env) == (PPOConfig, 0.1, 3, 5, LifeEnv)
    assert (type(other), other.n_step, other.lr, other.num_envs) == (DQNConfig, 3, DQNConfig.lr, 3)
    assert config.get_config_for_module("c") is other
    assert config.algorithm_of("anything") == "*"


def test_the_first_pattern_that_fits_counts():
    config = mixed({"red_1": PPOConfig(), "red*": DQNConfig(), "*": PPOConfig().training(lr=0.5)})
    patterns = {m: config.algorithm_of(m) for m in ("red_1", "red_2", "blue")}
    assert patterns == {"red_1": "red_1", "red_2": "red*", "blue": "*"}


def test_modules_can_have_overrides_of_their_algorithms_settings():
    config = mixed({"a": PPOConfig(), "*": DQNConfig()})
    config.rl_module(algorithm_config_overrides_per_module={"a": {"clip_param": 0.1}, "b": {"tau": 0.5}})
    config.validate()
    assert config.get_config_for_module("a").clip_param == 0.1
    assert (config.get_config_for_module("b").tau, config.get_config_for_module("c").tau) == (0.5, 1.0)
    with pytest.raises(ConfigError, match="'clip_param'"):
        config.rl_module(algorithm_config_overrides_per_module={"b": {"clip_param": 0.1}})


def test_an_algorithm_has_the_runs_model_config_unless_it_has_its_own():
    config = mixed({"a": PPOConfig().rl_module(model_config={"fcnet_hiddens": [3]}), "*": DQNConfig()})
    config.rl_module(model_config={"fcnet_hiddens": [5]})
    assert config.get_config_for_module("a").model_config == {"fcnet_hiddens": [3]}
    assert config.get_config_for_module("b").model_config == {"fcnet_hiddens": [5]}


def test_the_config_of_a_run_and_the_configs_of_its_learners_change_together():
    config = mixed({"a": PPOConfig(), "*": DQNConfig()})
    own = config.get_config_for_module("a")
    config.freeze()
    with pytest.raises(ConfigError, match="frozen"):
        own.lr = 1.0
    config.change(**{**config.to_dict(), "policies_to_train": ["a"]})
    assert own.policies_to_train == ["a"]
    assert config.get_config_for_module("a") is own


def test_an_iteration_is_as_long_as_the_largest_train_batch():
    small, large = ({"train_batch_size_per_learner": size} for size in (10, 20))
    algorithms = {"a": PPOConfig().training(**small), "b": PPOConfig().training(**large), "*": DQNConfig()}
    assert mixed(algorithms).total_train_batch_size == 20
    only_replay = mixed({"*": DQNConfig().training(**large)}).reporting(min_sample_timesteps_per_iteration=70)
    assert only_replay.total_train_batch_size == 70


def test_settings_in_the_wrong_place_are_named():
    with pytest.raises(ConfigError, match=r"(?s)'a'.*PPOConfig.*num_envs_per_env_runner"):
        mixed({"a": PPOConfig().environment(LifeEnv).env_runners(num_envs_per_env_runner=2)})
    with pytest.raises(ConfigError, match=r"(?s)\blr\b.*PPOConfig\(\).*\.training\(lr=\.\.\.\)"):
        mixed({"*": PPOConfig()}).training(lr=0.1)
    config = mixed({"*": PPOConfig()})
    config.gamma = 0.5
    with pytest.raises(ConfigError, match=r"\bgamma\b"):
        config.validate()
    with pytest.raises(ConfigError, match="MixedConfig"):
        mixed({"a": MixedConfig()})
    with pytest.raises(ConfigError, match="pattern"):
        mixed(PPOConfig())
    with pytest.raises(ConfigError, match=r"(?s)'a'.*\b3\b"):
        mixed({"a": 3})


def test_what_a_mixed_run_cannot_do_is_named():
    with pytest.raises(ConfigError, match="MixedConfig: no algorithms"):
        mixed({}).validate()
    with pytest.raises(ConfigError, match="num_learners=2"):
        mixed({"*": PPOConfig()}).learners(num_learners=2).validate()
    with pytest.raises(ConfigError, match="input_"):
        mixed({"*": PPOConfig()}).offline_data(input_="somewhere").validate()
    with pytest.raises(ConfigError, match=r"fn\(module_id\)"):
        mixed({"*": PPOConfig()}).multi_agent(policies_to_train=lambda module_id, batch: True)
    with pytest.raises(ConfigError, match="BC"):
        mixed({"*": BCConfig()})
    with pytest.raises(ConfigError, match=r"(?s)'a'.*MAPPOConfig.*use_critic"):
        mixed({"a": MAPPOConfig().training(use_critic=False)}).validate()


class Joint(MultiRLModule):
    def _forward(self, batch, **kwargs):
        return super()._forward(batch, **kwargs)


def test_modules_that_are_computed_together_need_one_algorithm():
    config = mixed({"a": PPOConfig(), "*": PPOConfig()})
    with pytest.raises(ModuleError, match=r"(?s)Joint.*computes"):
        config.rl_module(rl_module_spec=MultiRLModuleSpec(Joint, rl_module_specs=RLModuleSpec())).build_algo()


def test_checkpoints_keep_the_algorithms():
    config = mixed({"a": PPOConfig().training(lr=[[0, 1.0], [5, 0.1]]), "*": DQNConfig().training(n_step=3)})
    kept = config_from_state(config_to_state(config))
    assert list(kept.algorithm_configs) == ["a", "*"]
    for pattern, own in config.algorithm_configs.items():
        assert type(kept.algorithm_configs[pattern]) is type(own)
        assert kept.algorithm_configs[pattern].to_dict() == own.to_dict()


class Mine(PPOConfig):
    pass


def test_checkpoints_name_only_configs_that_are_trusted():
    state = config_to_state(mixed({"a": Mine()}))
    assert type(config_from_state(state).algorithm_configs["a"]) is Mine
    with pytest.raises(CheckpointError, match="test_config"):
        config_from_state(state, names=Names(trusted=False), skip=("env",))
    state.settings["algorithm_configs"] = [["a"]]
    with pytest.raises(CheckpointError, match="'algorithm_configs'"):
        config_from_state(state)
    state = config_to_state(mixed({"a": PPOConfig()}))
    state.settings["algorithm_configs"][0][1]["settings"]["lr"] = "much"
    with pytest.raises(CheckpointError, match=r"\blr\b"):
        config_from_state(state)
