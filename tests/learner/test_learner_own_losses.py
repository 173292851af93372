"""Modules that bring their own loss are trained by it, others beside them by the algorithm's."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from helpers.envs.scripted_envs import small_config
from marl_connectors import Columns, DefaultPPORLModule, MultiRLModuleSpec, RLModuleSpec, SelfSupervisedLossAPI
from marl_connectors.errors import LearnerError
from marl_connectors.rl_module.layers import MLP


class Predicting(DefaultPPORLModule, SelfSupervisedLossAPI):
    """Predicts its own observation; stackable, so that nothing but its loss keeps it out of stacks."""

    stackable = True

    def setup(self):
        super().setup()
        self.predictor = MLP(3, (3,), activate_last=False)

    def compute_self_supervised_loss(self, *, learner, module_id, config, batch, fwd_out):
        assert learner.module[module_id] is self and fwd_out[Columns.ACTION_DIST_INPUTS].shape == (len(batch["obs"]), 3)
        loss = config.vf_loss_coeff * F.mse_loss(self.predictor(batch[Columns.OBS]), batch[Columns.OBS])
        learner.log_terms([module_id], {"twice": 2 * loss})
        return loss


def test_a_loss_of_the_modules_own_takes_the_place_of_the_algorithms():
    config = small_config("marl_envs.match_v0", env_config={"n_agents": 3, "n_actions": 3, "ep_len": 5})
    config.multi_agent(policies="independent")
    config.training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=4, lr=0.03, use_kl_loss=True)
    specs = {f"agent_{i}": RLModuleSpec(Predicting if i else DefaultPPORLModule) for i in range(3)}
    config.rl_module(
        rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs),
        model_config={"fcnet_hiddens": [4]},
        algorithm_config_overrides_per_module={"agent_2": {"vf_loss_coeff": 0.0}},
    )
    algo = config.build_algo()
    before = algo.rl_module.get_state()
    figures = [algo.train()["learners"] for _ in range(3)]
    after = algo.rl_module.get_state()
    own = [entry["agent_1"] for entry in figures]
    assert own[-1]["total_loss"] < 0.5 * own[0]["total_loss"]
    assert abs(own[0]["twice"] - 2 * own[0]["total_loss"]) < 1e-6 and "policy_loss" not in own[0]
    assert "policy_loss" in figures[0]["agent_0"]
    assert figures[0]["agent_2"]["total_loss"] == 0.0
    for module_id, moved in (("agent_0", True), ("agent_1", False)):
        assert torch.equal(before[module_id]["pi.layers.0.weight"], after[module_id]["pi.layers.0.weight"]) != moved
    for name, value in after["agent_2"].items():
        assert torch.equal(value, before["agent_2"][name])


class Silent(Predicting):
    def compute_self_supervised_loss(self, **given):
        return None


def test_a_loss_that_is_none_is_said_to_be_the_modules():
    config = small_config("marl_envs.match_v0", env_config={"n_agents": 1, "n_actions": 3, "ep_len": 5})
    with pytest.raises(LearnerError, match=r"(?s)Silent.*compute_self_supervised_loss"):
        config.multi_agent(policies="independent").rl_module(rl_module_spec=RLModuleSpec(Silent)).build_algo().train()
