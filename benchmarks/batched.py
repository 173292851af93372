"""Compares sampling from a natively batched environment with the network alone: ``python benchmarks/batched.py``.

The environment is ``spread_v0``, by default with 1,000 sub-environments of 8 agents. The network is a 2x64 tanh MLP,
and a fragment is one episode of 50 steps. One process measures, on one thread, in turn and in CPU time: forward passes
for the rows of one vector step, the environment alone with given actions, and whole samples.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np
import torch

from marl_connectors import PPOConfig
from marl_envs import spread_v0

STEPS, AGENTS = 50, 8


def build(num_envs: int):
    """Returns the runner."""
    config = PPOConfig().environment("marl_envs.spread_v0:batched_env", env_config={"n_agents": AGENTS})
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=STEPS).debugging(seed=0)
    config.multi_agent(policies="shared").rl_module(model_config={"fcnet_hiddens": [64, 64], "vf_share_layers": False})
    return config.learners(num_gpus_per_learner=0).build_algo().env_runner


def rate(work, rows: int, times: int) -> float:
    """Returns rows per second of CPU time."""
    began = time.process_time()
    for _ in range(times):
        work()
    return rows * times / (time.process_time() - began)


def main() -> None:
    """Prints the medians of all rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-envs", type=int, default=1000, help="number of sub-environments (default 1000)")
    parser.add_argument("--reps", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runner, rows = build(args.sub_envs), args.sub_envs * AGENTS
    module = runner.rl_module["default_policy"]
    batch = {"obs": torch.from_numpy(np.random.default_rng(0).normal(size=(rows, 32)).astype(np.float32))}
    env = spread_v0.batched_env(num_envs=args.sub_envs, n_agents=AGENTS, ep_len=10**9)
    env.reset(list(range(args.sub_envs)))
    actions = np.random.default_rng(0).integers(0, 5, (args.sub_envs, AGENTS))
    work = {
        "network": (lambda: module.forward_exploration(batch), rows, STEPS),
        "environment": (lambda: env.step(actions), rows, STEPS),
        "sample": (runner.sample, rows * STEPS, 2),
    }
    for call, *_ in work.values():
        call()
    rates = [{name: rate(*what) for name, what in work.items()} for _ in range(args.reps)]
    for name in work:
        print(f"{name:12} {statistics.median(found[name] for found in rates) / 1e6:6.2f} M agent-steps/s")
    print(f"sample / network: {statistics.median(found['sample'] / found['network'] for found in rates):.2f}")


if __name__ == "__main__":
    main()
