"""Target networks are made once, stay out of training, follow as told, and are saved."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from helpers.envs.scripted_envs import small_config
from marl_connectors import (
    Algorithm,
    Columns,
    DefaultPPORLModule,
    MultiRLModuleSpec,
    RLModuleSpec,
    TargetNetworkAPI,
    update_target_networks,
)
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.errors import ModuleError
from marl_connectors.rl_module.apis import make_target_network


class Followed(DefaultPPORLModule, TargetNetworkAPI):
    def make_target_networks(self):
        self.slow = copy.deepcopy(self.pi)
        self.slow.register_buffer("mean", torch.zeros(1))
        self.pi.register_buffer("mean", torch.full((1,), 3.0))

    def get_target_network_pairs(self):
        return [(self.pi, self.slow)]

    def forward_target(self, batch):
        return {Columns.ACTION_DIST_INPUTS: self.slow(self.encoder(batch[Columns.OBS]))}


class Following(PPOLearner):
    def after_gradient_based_update(self, *, timesteps):
        update_target_networks(self.module, tau=0.25)


def followed(learner_class=PPOLearner):
    config = small_config("marl_envs.match_v0", env_config={"n_agents": 2, "n_actions": 3, "ep_len": 5})
    config.training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=2, lr=0.03)
    specs = {"agent_0": RLModuleSpec(Followed), "agent_1": RLModuleSpec(DefaultPPORLModule)}
    config.rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs), model_config={"fcnet_hiddens": [4]})
    return config.multi_agent(policies="independent").learners(learner_class=learner_class)


def weights(network: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in network.parameters()])


def test_targets_are_made_as_copies_and_no_optimizer_moves_them():
    algo = followed().build_algo()
    module = algo.get_module("agent_0")
    before = weights(module.slow)
    assert torch.equal(before, weights(module.pi)) and not any(p.requires_grad for p in module.slow.parameters())
    algo.train()
    assert torch.equal(before, weights(module.slow)) and not torch.equal(before, weights(module.pi))
    algo.stop()


def test_targets_follow_by_tau_after_each_update_and_are_in_checkpoints(tmp_path):
    algo = followed(Following).build_algo()
    module = algo.get_module("agent_0")
    for _ in range(2):
        before = weights(module.slow)
        algo.train()
        torch.testing.assert_close(weights(module.slow), 0.25 * weights(module.pi) + 0.75 * before)
    assert module.slow.mean == 3.0
    algo.save_to_path(str(tmp_path / "run"))
    again = Algorithm.from_checkpoint(str(tmp_path / "run"))
    assert torch.equal(weights(again.get_module("agent_0").slow), weights(module.slow))
    algo.train(), again.train()
    assert torch.equal(weights(again.get_module("agent_0").slow), weights(module.slow))
    algo.stop(), again.stop()


def test_a_module_for_acting_only_has_none():
    spaces = {"observation_space": followed().build_algo().get_module("agent_0").observation_space}
    action_space = followed().build_algo().get_module("agent_0").action_space
    spec = RLModuleSpec(Followed, inference_only=True, action_space=action_space, model_config={}, **spaces)
    assert not hasattr(spec.build(), "slow")


def test_a_whole_copy_by_default_and_errors_say_what_is_wrong():
    module = followed().build_algo().get_module("agent_0")
    nn.init.ones_(module.pi.layers[0].weight)
    update_target_networks(module)
    assert torch.equal(weights(module.pi), weights(module.slow))
    with pytest.raises(ModuleError, match=r"(?s)\btau\b.*\b2\b"):
        update_target_networks(module, tau=2)
    module.slow = nn.Linear(1, 1)
    with pytest.raises(ModuleError, match=r"(?s)Followed.*get_target_network_pairs"):
        update_target_networks(module)


def test_a_target_network_is_a_copy_that_is_not_trained():
    network = nn.Linear(2, 2)
    target = make_target_network(network)
    assert torch.equal(target.weight, network.weight) and target.weight is not network.weight
    assert network.weight.requires_grad and not any(p.requires_grad for p in target.parameters())
