"""What PPO's learner remembers, and which modules it updates as one."""

from __future__ import annotations

from helpers.envs.scripted_envs import LifeEnv, small_config
from marl_envs import match_v0


def test_the_kl_penalty_of_each_module_is_part_of_the_state():
    learner = small_config(LifeEnv).training(use_kl_loss=True, kl_coeff=0.2).build_algo().learner
    assert learner.kl_coeff("default_policy") == 0.2
    learner.set_state({**learner.get_state(), "kl_coeffs": {"default_policy": 0.45}})
    assert learner.kl_coeff("default_policy") == 0.45
    assert learner.get_state()["kl_coeffs"] == {"default_policy": 0.45}


def test_modules_with_and_without_a_penalty_for_moving_too_far_are_not_updated_as_one():
    config = small_config(match_v0.parallel_env, env_config={"n_agents": 3}).multi_agent(policies="independent")
    config.training(use_kl_loss=True)
    config.rl_module(algorithm_config_overrides_per_module={"agent_1": {"use_kl_loss": False}})
    algo = config.build_algo()
    batch = algo.learner.make_batch(algo.env_runner.sample())
    together = {tuple(step.sizes) for step in algo.learner._steps(batch)}
    assert together == {("agent_0", "agent_2"), ("agent_1",)}
