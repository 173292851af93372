"""The same training on a GPU."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from helpers.envs.spaces_env import SpacesEnv
from marl_connectors import Algorithm, PPOConfig, load_policy
from marl_connectors.algorithms.ppo.learner import PPOLearner
from marl_connectors.errors import LearnerError
from marl_connectors.transfers import all_moved, all_on_host
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


@pytest.mark.parametrize("autocast_dtype", [None, "bfloat16"])
def test_a_stacked_update_on_the_gpu_equals_one_on_the_cpu(autocast_dtype):
    on_gpu, on_cpu = build("independent", 1), build("independent", 0)
    episodes = on_cpu.env_runner.sample()
    for episode in episodes[::2]:
        del episode.agent_episodes["agent_1"]  # so that modules have different numbers of rows
    if autocast_dtype:
        on_gpu = on_gpu.config.copy().learners(autocast_dtype=autocast_dtype).build_algo()
    results = [algo.learner.update(episodes=episodes) for algo in (on_gpu, on_cpu)]
    for module_id, figures in results[0].items():
        assert figures == pytest.approx(results[1][module_id], abs=0.05 if autocast_dtype else 1e-3, rel=1e-2)


@pytest.mark.parametrize("policies", ["shared", "independent"])
@pytest.mark.parametrize("memory", [{}, {"use_lstm": True, "lstm_cell_size": 8}])
def test_a_sampling_step_copies_once_to_the_gpu_and_once_from_it(policies, memory):
    config = build(policies, 1).config.copy()
    runner = config.rl_module(model_config={"fcnet_hiddens": [32], **memory}).build_algo().env_runner
    runner.sample(num_timesteps=40)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        runner.sample(num_timesteps=40)  # ten vector steps of four copies
    names = [event.name for event in profile.events()]
    assert sum("Memcpy HtoD" in name for name in names) == 10
    assert sum("Memcpy DtoH" in name for name in names) == 10
    assert all("Pinned" in name for name in names if "Memcpy HtoD" in name or "Memcpy DtoH" in name)


@pytest.mark.parametrize("shapes", [[(3,)], [(0, 2), (5, 7), ()]])
def test_packed_copies_arrive_from_the_gpu_as_they_went(shapes):
    rng = np.random.default_rng(0)
    for dtype in (np.bool_, np.uint8, np.int64, np.float32):
        arrays = [rng.integers(0, 2, shape).astype(dtype) for shape in shapes]
        there = all_moved(arrays, torch.device("cuda"))
        assert all(tensor.is_cuda for tensor in there)
        for array, back in zip(arrays, all_on_host([*there, torch.ones(3, device="cuda").bfloat16()]), strict=False):
            np.testing.assert_array_equal(back.numpy(), array)


def test_the_pinned_buffer_is_not_written_to_while_a_copy_reads_it():
    copies = [all_moved([np.full(1_000_000, i, np.float32)], torch.device("cuda"))[0] for i in range(20)]
    assert [int(tensor.min()) for tensor in copies] == [int(tensor.max()) for tensor in copies] == list(range(20))


def test_a_step_that_is_not_finite_is_not_taken_on_the_gpu():
    class Exploding(PPOLearner):
        count = 0

        def compute_loss_for_stacked_modules(self, **given):
            self.count += 1
            losses = super().compute_loss_for_stacked_modules(**given)
            return losses * float("nan") if self.count == 5 else losses

    algo = build("independent", 1).config.copy().learners(learner_class=Exploding).build_algo()
    with pytest.raises(LearnerError, match=r"(total_loss|gradients_global_norm)"):
        algo.train()
    for module in algo.rl_module.values():
        assert all(parameter.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("policies", ["shared", "independent"])
@pytest.mark.parametrize("memory", [{}, {"use_lstm": True, "lstm_cell_size": 8}, {"use_gru": True, "gru_cell_size": 8}])
def test_default_modules_for_all_spaces_are_on_the_gpu_what_they_are_on_the_cpu(policies, memory):
    camera = spaces.Box(0, 255, (9, 9, 3), np.uint8)
    seen = spaces.Dict({"camera": camera, "gear": spaces.Discrete(4, start=1), "bits": spaces.MultiBinary(2)})
    done = spaces.Tuple([spaces.MultiDiscrete([3, 2]), spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.MultiBinary(2)])
    values = []
    for num_gpus in (0, 1):
        for box in ("squashed_gaussian", "beta"):
            model_config = {"fcnet_hiddens": [8], "action_distribution": box, "max_seq_len": 4, **memory}
            algo = (
                PPOConfig()
                .environment(SpacesEnv, env_config={"observation_space": seen, "action_space": done})
                .multi_agent(policies=policies)
                .env_runners(num_envs_per_env_runner=2)
                .learners(num_gpus_per_learner=num_gpus)
                .rl_module(model_config=model_config)
                .training(lr=1e-3, train_batch_size_per_learner=40, minibatch_size=None, num_epochs=1)
                .debugging(seed=0)
                .build_algo()
            )
            learned = next(iter(algo.train()["learners"].values()))
            values.append([learned["entropy"], learned["vf_loss"]])
            assert abs(learned["mean_kl_loss"]) < 1e-5
            algo.stop()
    np.testing.assert_allclose(values[:2], values[2:], rtol=0.05)


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
