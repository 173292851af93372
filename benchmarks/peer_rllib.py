"""Does the work of ``yardstick.py`` with RLlib 2.60, in one process: ``python benchmarks/peer_rllib.py sample null``.

It needs ``ray[rllib]==2.60.0``.
"""

from __future__ import annotations

import json
import logging
import os
import sys

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")

import ray
import torch
import yardstick as y
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env


def build(name: str, independent: bool):
    """Returns RLlib's PPO with the yardstick's settings."""
    register_env("env", lambda _: ParallelPettingZooEnv(y.make_parallel(name)))
    agents = list(y.make_parallel(name).possible_agents)
    module_ids = agents if independent else ["shared"]
    length = y.fragment_length(name)
    model_config = DefaultModelConfig(
        fcnet_hiddens=[y.HIDDEN, y.HIDDEN], fcnet_activation="tanh", vf_share_layers=False
    )
    specs = {module_id: RLModuleSpec(model_config=model_config) for module_id in module_ids}
    config = (
        PPOConfig()
        .environment("env")
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=y.NUM_ENVS[name],
            rollout_fragment_length=length,
            batch_mode="truncate_episodes",
        )
        .learners(num_learners=0)
        .multi_agent(
            policies=set(module_ids),
            policy_mapping_fn=lambda agent_id, episode, **kwargs: agent_id if independent else "shared",
        )
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
        .training(
            train_batch_size_per_learner=length * y.NUM_ENVS[name],
            minibatch_size=y.MINIBATCH // len(agents) if independent else y.MINIBATCH,
            num_epochs=y.EPOCHS,
            lr=y.LR,
            gamma=y.GAMMA,
            lambda_=y.LAMBDA,
            clip_param=y.CLIP,
            entropy_coeff=y.ENTROPY_COEFF,
            vf_loss_coeff=y.VF_COEFF,
            grad_clip=y.GRAD_CLIP,
            use_kl_loss=False,
            vf_clip_param=1e6,
        )
        .debugging(log_level="ERROR", seed=0)
    )
    return config.build_algo()


def main() -> None:
    """``peer_rllib.py sample|train|train_independent null|spread|... [iterations]``."""
    ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    mode, name = sys.argv[1:3]
    algo = build(name, mode == "train_independent")
    torch.set_num_threads(1)
    env_steps = y.fragment_length(name) * y.NUM_ENVS[name]

    def iteration() -> int:
        if mode == "sample":
            return sum(episode.agent_steps() for episode in algo.env_runner.sample(num_timesteps=env_steps))
        algo.train()
        return env_steps * y.NUM_AGENTS[name]

    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print(json.dumps({"agent_steps_per_cpu_second": y.steps_per_second(iteration, iterations)}))


if __name__ == "__main__":
    main()
