"""Policies with a memory learn what others cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.envs.memory_env import RecallEnv
from helpers.modules.recurrent_modules import GRUModule, LSTMModule
from marl_connectors import PPOConfig, RLModuleSpec


class Reservoir(GRUModule):
    """Only the heads learn; what they read is random features of all steps since the beginning."""

    def setup(self):
        super().setup()
        self.rnn.requires_grad_(False)


class ForgetfulReservoir(Reservoir):
    """Its training sequences begin without the states that the agents were in."""

    def _forward_train(self, batch, **kwargs):
        nothing = {"h": torch.zeros_like(batch["state_in"]["h"])}
        return super()._forward_train({"obs": batch["obs"], "state_in": nothing}, **kwargs)


def returns(module_class, *, max_seq_len=20, size=16, lr=0.01):
    """The mean return of both agents together, at the end of training: chance is 1, the best is 2."""
    config = PPOConfig().environment(RecallEnv).multi_agent(policies="shared")
    if module_class is None:
        config.rl_module(model_config={"fcnet_hiddens": (16,)})
    else:
        model = {"max_seq_len": max_seq_len, "size": size}
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class, model_config=model))
    config.env_runners(num_envs_per_env_runner=32, rollout_fragment_length=32).training(
        train_batch_size_per_learner=1024,
        minibatch_size=512,
        num_epochs=4,
        lr=lr,
        gamma=1.0,
        lambda_=1.0,
        entropy_coeff=0.01,
        use_kl_loss=False,
        grad_clip=1.0,
    )
    algo = config.debugging(seed=0).build_algo()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = [algo.train()["env_runners"]["episode_return_mean"] for _ in range(16)]
    finally:
        torch.set_num_threads(threads)
    return float(np.mean(found[-3:]))


@pytest.mark.learning
@pytest.mark.parametrize("module_class", [GRUModule, LSTMModule])
def test_a_recurrent_policy_recalls_a_cue(module_class):
    assert returns(module_class) > 1.9


@pytest.mark.learning
def test_a_policy_without_a_memory_stays_at_chance():
    assert returns(None) < 1.2


@pytest.mark.learning
def test_sequences_shorter_than_the_delay_are_enough_for_heads_because_states_are_carried():
    # No gradient reaches from the answer back to the cue, so the cell itself has nothing to learn from.
    assert returns(Reservoir, max_seq_len=2, size=32, lr=0.03) > 1.9
    assert returns(ForgetfulReservoir, max_seq_len=2, size=32, lr=0.03) < 1.2
