"""The same work as ``yardstick.py`` does, by the toolkit: ``python benchmarks/ours.py sample null``."""

from __future__ import annotations

import json
import os
import sys

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import torch
import yardstick as y

from marl_connectors import PPOConfig


def build(name: str, independent: bool):
    """The algorithm with the yardstick's settings."""
    if name == "spread":
        env, env_config = "mpe2.simple_spread_v3", {"N": 3, "max_cycles": 25, "continuous_actions": False}
    elif name == "pursuit":
        env, env_config = "pettingzoo.sisl.pursuit_v5", {"max_cycles": 500}
    else:
        env, env_config = "marl_envs.null_v0", {"n_agents": y.NUM_AGENTS[name]}
    length = y.fragment_length(name)
    return (
        PPOConfig()
        .environment(env, env_config=env_config)
        .env_runners(num_envs_per_env_runner=y.NUM_ENVS[name], rollout_fragment_length=length)
        .learners(num_gpus_per_learner=0)
        .multi_agent(policies="independent" if independent else "shared")
        .rl_module(model_config={"fcnet_hiddens": [y.HIDDEN, y.HIDDEN], "vf_share_layers": False})
        .training(
            train_batch_size_per_learner=length * y.NUM_ENVS[name],
            minibatch_size=y.MINIBATCH // y.NUM_AGENTS[name] if independent else y.MINIBATCH,
            num_epochs=y.EPOCHS,
            lr=y.LR,
            gamma=y.GAMMA,
            lambda_=y.LAMBDA,
            clip_param=y.CLIP,
            entropy_coeff=y.ENTROPY_COEFF,
            vf_loss_coeff=y.VF_COEFF,
            grad_clip=y.GRAD_CLIP,
            use_kl_loss=False,
            vf_clip_param=float("inf"),
        )
        .debugging(seed=0)
        .build_algo()
    )


def main() -> None:
    """``ours.py sample|train|train_independent null|null_1000_agents|...|pursuit [iterations]``."""
    torch.set_num_threads(1)
    mode, name = sys.argv[1:3]
    algo = build(name, mode == "train_independent")
    agents = y.NUM_AGENTS[name]

    def iteration() -> int:
        if mode == "sample":
            return sum(episode.agent_steps() for episode in algo.env_runner.sample())
        algo.train()
        return y.fragment_length(name) * y.NUM_ENVS[name] * agents

    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print(json.dumps({"agent_steps_per_cpu_second": y.steps_per_second(iteration, iterations)}))


if __name__ == "__main__":
    main()
