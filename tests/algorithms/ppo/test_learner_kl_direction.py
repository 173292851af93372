"""The penalty is the divergence from the policy that acted to the policy as it is now."""

import math

import pytest
import torch

from marl_connectors import PPOConfig


def test_the_kl_term_is_from_the_policy_that_acted_to_the_policy_as_it_is():
    config = PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=32, use_kl_loss=True)
    learner = config.build_algo().learner
    old, new = [0.9, 0.1], [0.5, 0.5]
    batch = {
        "obs": torch.zeros(1, 4),
        "actions": torch.tensor([0]),
        "action_logp": torch.tensor([math.log(0.9)]),
        "action_dist_inputs": torch.tensor([old]).log(),
        "advantages": torch.zeros(1),
        "value_targets": torch.zeros(1),
    }
    learner.compute_loss_for_module(
        module_id="default_policy",
        config=learner.config,
        batch=batch,
        fwd_out={"action_dist_inputs": torch.tensor([new]).log()},
    )
    kl = learner._loss_statistics.last("mean_kl_loss")["default_policy"]
    # 0.9 ln(0.9 / 0.5) + 0.1 ln(0.1 / 0.5); the other way round it would be 0.511.
    assert kl == pytest.approx(0.3681, abs=1e-4)
