"""Torch modules as RLModules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from marl_connectors import Columns, PPOConfig, RLModuleSpec, TorchModule
from marl_connectors.errors import ModuleError

OBS, ACT = spaces.Box(-1.0, 1.0, (4,), np.float32), spaces.Discrete(3)


def mlp(observation_space, num_outputs):
    return nn.Sequential(nn.Linear(observation_space.shape[0], 8), nn.Tanh(), nn.Linear(8, num_outputs))


def make(**model_config):
    return TorchModule(OBS, ACT, model_config=model_config)


def test_both_modules_are_the_users_own_and_made_anew_for_each_rl_module():
    one, other = make(policy=mlp, value=mlp), make(policy=mlp, value=mlp)
    obs = torch.ones(5, 4)
    assert torch.equal(one.forward_train({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS], one.policy(obs))
    torch.testing.assert_close(one.compute_values({Columns.OBS: obs}), one.value(obs)[:, 0])
    assert one.policy[2].out_features == 3 and one.value[2].out_features == 1
    assert one.policy is not other.policy


def test_the_number_of_outputs_follows_from_the_distribution():
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    module = TorchModule(OBS, box, model_config={"policy": mlp, "action_distribution": "beta"})
    assert module.policy[2].out_features == 4
    assert module.get_exploration_action_dist_cls().__name__ == "TorchBeta"


def test_it_learns_and_is_saved_with_the_rest(tmp_path):
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .rl_module(rl_module_spec=RLModuleSpec(TorchModule, model_config={"policy": mlp, "value": mlp}))
        .training(train_batch_size_per_learner=64, num_epochs=2)
        .debugging(seed=0)
    )
    algo = config.build_algo()
    before = algo.get_module().policy[0].weight.detach().clone()
    algo.train()
    assert not torch.equal(algo.get_module().policy[0].weight, before)
    path, other = algo.save_to_path(tmp_path / "c"), config.build_algo()
    other.restore_from_path(path)
    assert torch.equal(other.get_module().value[2].bias, algo.get_module().value[2].bias)
    algo.stop()
    other.stop()


@pytest.mark.parametrize(
    ("model_config", "message"),
    [
        ({"value": mlp}, "'policy'"),
        ({"policy": mlp, "valeu": mlp}, r"(?s)'valeu'.*'value'"),
        ({"policy": nn.Linear(4, 3)}, r"(?s)'policy'.*Linear"),
        ({"policy": lambda space, n: None}, r"(?s)'policy'.*NoneType"),
    ],
)
def test_what_makes_no_module_is_named(model_config, message):
    with pytest.raises(ModuleError, match=message):
        make(**model_config)


def test_a_critic_that_is_missing_is_named():
    with pytest.raises(ModuleError, match="value"):
        make(policy=mlp).compute_values({Columns.OBS: torch.ones(1, 4)})
