"""Stacked frames and replay buffers: a piece is refused, with what to use instead, which works."""

from __future__ import annotations

import pytest

from marl_connectors import DQNConfig, FrameStacking, MADDPGConfig, MixedConfig, PPOConfig, SACConfig, VDNConfig
from marl_connectors.errors import ConfigError, ModuleError

CASES = [
    (DQNConfig, "CartPole-v1"),
    (SACConfig, "CartPole-v1"),
    (VDNConfig, "mpe2.simple_spread_v3"),
    (MADDPGConfig, "mpe2.simple_spread_v3"),
]


def small(config_class, env):
    config = config_class().environment(env).env_runners(num_env_workers=0)
    config.training(num_steps_sampled_before_learning_starts=20, train_batch_size_per_learner=16)
    return config.reporting(min_sample_timesteps_per_iteration=40)


@pytest.mark.parametrize(("config_class", "env"), CASES)
@pytest.mark.parametrize("pipelines", ["both", "learner", "env_to_module"])
def test_frame_stacking_is_refused_when_the_run_is_built(config_class, env, pipelines):
    config = small(config_class, env)
    if pipelines != "learner":
        config.env_runners(env_to_module_connector=lambda: FrameStacking(num_frames=3))
    if pipelines != "env_to_module":
        config.learners(learner_connector=lambda: FrameStacking(num_frames=3))
    with pytest.raises(ConfigError, match=rf"{config_class.__name__}: FrameStacking .*wrappers=\['frame_stack_v1:3'\]"):
        config.build_algo()


@pytest.mark.few(1)
@pytest.mark.parametrize(("config_class", "env"), CASES)
def test_the_wrapper_that_the_error_names_works(config_class, env):
    config = small(config_class, env)
    plain = small(config_class, env).build_algo()
    with config.environment(wrappers=["frame_stack_v1:3"]).build_algo() as algo, plain:
        for module_id, module in algo.rl_module.items():
            (size,) = plain.get_module(module_id).observation_space.shape
            assert module.observation_space.shape == (3 * size,)
        assert algo.train()["learners"]


def test_a_part_of_a_mixed_run_is_refused_too():
    dqn = DQNConfig().learners(learner_connector=lambda: FrameStacking(num_frames=2))
    parts = {"agent_0": PPOConfig(), "*": dqn}
    config = MixedConfig().environment("mpe2.simple_spread_v3").multi_agent(policies="independent").algorithms(parts)
    config.env_runners(num_env_workers=0, env_to_module_connector=lambda: FrameStacking(num_frames=2))
    with pytest.raises(ConfigError, match=r"DQNConfig: FrameStacking .*frame_stack_v1:2"):
        config.build_algo()


@pytest.mark.parametrize(("config_class", "env"), [CASES[1], CASES[3]])
def test_modules_without_memory_name_the_wrapper(config_class, env):
    config = small(config_class, env).rl_module(model_config={"use_gru": True})
    with pytest.raises(ModuleError, match=r"use_lstm and use_gru .*wrappers=\['frame_stack_v1:4'\]"):
        config.build_algo()
