"""Runs with observations of every type of numbers, and with ones that are empty."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_connectors import DQNConfig, MAPPOConfig, MeanStdFilter, PPOConfig, SACConfig, load_policy
from marl_connectors.errors import ConfigError

HALF = spaces.Box(-1, 1, (3,), np.float16)
NOTHING = spaces.Box(-1, 1, (0,), np.float32)
SPACES = {
    "half": HALF,
    "double": spaces.Box(-1, 1, (3,), np.float64),
    "picture": spaces.Box(0, 1, (8, 8, 1), np.float16),
    "nothing": NOTHING,
    "both": spaces.Tuple([HALF, NOTHING]),
}


def config_of(config_class, space, action_space, **env_runners):
    env = {"agents": "ab", "spaces_of": dict.fromkeys("ab", (space, action_space))}
    config = config_class().environment(lambda config: Sampled(**env)).multi_agent(policies="shared")
    config.rl_module(model_config={"fcnet_hiddens": [4]}).env_runners(num_envs_per_env_runner=2, **env_runners)
    config.training(train_batch_size_per_learner=16)
    if config_class in (DQNConfig, SACConfig):
        config.training(num_steps_sampled_before_learning_starts=16)
    else:
        config.training(minibatch_size=8, num_epochs=1)
    return config.debugging(seed=0)


class Sampled(LifeEnv):
    """Observes samples of the spaces."""

    def _observe(self, agent):
        space = self.observation_space(agent)
        space.seed(int(self.rng.integers(1000)))
        return space.sample(), {}


def check_run(config, space, folder):
    with config.build_algo() as algo:
        for _ in range(3):
            algo.train()
        assert all(torch.isfinite(values).all() for values in algo.rl_module["default_policy"].parameters())
        policy = load_policy(algo.save_to_path(folder / "checkpoint"), config=config)
    space.seed(0)
    assert policy(space.sample(), "a") is not None


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PPOConfig, MAPPOConfig, DQNConfig])
@pytest.mark.parametrize("name", ["half", "double", "picture", "both"])
def test_observations_may_have_any_type_of_numbers(algorithm, name, tmp_path):
    check_run(config_of(algorithm, SPACES[name], spaces.Discrete(3)), SPACES[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [PPOConfig, DQNConfig])
def test_observations_may_have_no_numbers(algorithm, tmp_path):
    check_run(config_of(algorithm, NOTHING, spaces.Discrete(3)), NOTHING, tmp_path)


def test_critics_of_joint_observations_need_numbers():
    with pytest.raises(ConfigError, match=r"(?s)Box\(0,\).*float32"):
        config_of(MAPPOConfig, NOTHING, spaces.Discrete(3)).build_algo()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["half", "nothing"])
def test_critics_of_actions_accept_them_too(name, tmp_path):
    check_run(config_of(SACConfig, SPACES[name], spaces.Box(-1, 1, (2,))), SPACES[name], tmp_path)


def test_a_filter_accepts_half_precision(tmp_path):
    config = config_of(PPOConfig, HALF, spaces.Discrete(3), env_to_module_connector=lambda *args: MeanStdFilter())
    check_run(config, HALF, tmp_path)


def test_half_precision_is_computed_like_the_same_numbers_in_float32():
    probabilities = []
    for dtype in (np.float16, np.float32):
        space = spaces.Box(-1, 1, (3,), dtype)
        with small_config(
            lambda config, space=space: Sampled(spaces_of={"a": (space, spaces.Discrete(3))}, agents="a")
        ).build_algo() as a:
            module = a.rl_module["default_policy"]
            batch = {"obs": torch.tensor([[0.5, -0.25, 0.125]], dtype=getattr(torch, np.dtype(dtype).name))}
            probabilities.append(module.forward_inference(batch)["action_dist_inputs"])
    assert torch.equal(*probabilities)


def test_another_default_type_of_torch_is_refused_before_anything_is_built(tmp_path):
    config = small_config("CartPole-v1")
    with config.build_algo() as algo:
        path = algo.save_to_path(tmp_path / "checkpoint")
    torch.set_default_dtype(torch.float64)
    try:
        for build in (config.build_algo, lambda: load_policy(path)):
            with pytest.raises(
                ConfigError, match=r"get_default_dtype\(\) is torch.float64.*set_default_dtype\(torch.float32"
            ):
                build()
    finally:
        torch.set_default_dtype(torch.float32)
