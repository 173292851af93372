"""The same training on a GPU."""

import numpy as np
import pytest
import torch

from marl_connectors import Algorithm, PPOConfig, load_policy
from marl_envs import match_v0

pytestmark = pytest.mark.gpu


def build(policies: str, num_gpus: int) -> Algorithm:
    return (
        PPOConfig()
        .environment("marl_envs.match_v0")
        .multi_agent(policies=policies)
        .env_runners(num_envs_per_env_runner=4)
        .learners(num_gpus_per_learner=num_gpus)
        .rl_module(model_config={"fcnet_hiddens": [32, 32], "vf_share_layers": False})
        .training(lr=3e-3, train_batch_size_per_learner=400, minibatch_size=200, num_epochs=6)
        .debugging(seed=0)
        .build_algo()
    )


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_modules_live_on_the_gpu_and_learn_what_they_learn_on_the_cpu(policies):
    on_gpu, on_cpu = build(policies, 1), build(policies, 0)
    assert all(p.is_cuda for module in on_gpu.rl_module.values() for p in module.parameters())
    first = on_gpu.train()["env_runners"]["episode_return_mean"]
    on_cpu.train()
    for _ in range(14):
        results = [algo.train()["env_runners"]["episode_return_mean"] for algo in (on_gpu, on_cpu)]
    assert results[0] > 1.5 * first
    assert results[0] == pytest.approx(results[1], rel=0.1)


def test_a_checkpoint_goes_on_on_the_gpu(tmp_path):
    algo = build("independent", 1)
    algo.train()
    algo.save_to_path(tmp_path / "checkpoint")
    again = Algorithm.from_checkpoint(tmp_path / "checkpoint")
    algo.train()
    again.train()
    for module_id, module in algo.rl_module.items():
        for name, value in module.state_dict().items():
            torch.testing.assert_close(again.rl_module[module_id].state_dict()[name], value)


def test_a_policy_acts_on_either_device_as_the_run_does(tmp_path):
    algo = build("independent", 1)
    algo.train()
    saved = algo.save_to_path(tmp_path / "checkpoint")
    seen = match_v0.parallel_env().observation_space("agent_0")
    batch = np.random.default_rng(0).random((50, *seen.shape), np.float32)
    on_cpu, on_gpu = load_policy(saved), load_policy(saved, device="cuda")
    assert all(p.is_cuda for module in on_gpu.rl_module.values() for p in module.parameters())
    for agent_id in on_cpu.agent_ids:
        alike = on_gpu(batch, agent_id) == on_cpu(batch, agent_id)
        assert alike.mean() > 0.9, "the devices round differently, which matters only where two actions are as good"
