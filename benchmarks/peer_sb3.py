"""Does the work of ``yardstick.py`` with SB3 and SuperSuit: ``python benchmarks/peer_sb3.py sample null``.

It needs ``stable-baselines3`` and ``supersuit``. All agents share one policy, so there is no ``train_independent``.
"""

from __future__ import annotations

import json
import os
import sys

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import supersuit
import torch
import yardstick as y
from stable_baselines3 import PPO


def build(name: str) -> PPO:
    """Returns SB3's PPO with the yardstick's settings."""
    env = y.make_parallel(name)
    vec_env = supersuit.pettingzoo_env_to_vec_env_v1(env)
    vec_env = supersuit.concat_vec_envs_v1(vec_env, y.NUM_ENVS[name], num_cpus=0, base_class="stable_baselines3")
    return PPO(
        "MlpPolicy",
        vec_env,
        n_steps=y.fragment_length(name),
        batch_size=y.MINIBATCH,
        n_epochs=y.EPOCHS,
        learning_rate=y.LR,
        gamma=y.GAMMA,
        gae_lambda=y.LAMBDA,
        clip_range=y.CLIP,
        ent_coef=y.ENTROPY_COEFF,
        vf_coef=y.VF_COEFF,
        max_grad_norm=y.GRAD_CLIP,
        policy_kwargs={"net_arch": [y.HIDDEN, y.HIDDEN]},
        device="cpu",
    )


def main() -> None:
    """``peer_sb3.py sample|train null|spread|... [iterations]``."""
    torch.set_num_threads(1)
    mode, name = sys.argv[1:3]
    model, length = build(name), y.fragment_length(name)
    agent_steps = length * y.NUM_ENVS[name] * y.NUM_AGENTS[name]
    _, callback = model._setup_learn(10**12, None, True, "run", False)

    def iteration() -> int:
        model.collect_rollouts(model.env, callback, model.rollout_buffer, n_rollout_steps=length)
        if mode == "train":
            model.train()
        return agent_steps

    iterations = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    print(json.dumps({"agent_steps_per_cpu_second": y.steps_per_second(iteration, iterations)}))


if __name__ == "__main__":
    main()
