"""Sampling with remote env runners, beside one env runner in this process, with the same number of sub-environments.

    python benchmarks/env_runner_groups.py --env mpe2.simple_spread_v3 --num-envs 16 --agent-steps 4096 --reps 9

The runs take turns, so that a busy machine slows down all of them. Ratios are the medians of the turns' ratios. The
driver's share is the CPU time of this process (with Ray's threads in it) of the time that a sample takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import torch

from marl_connectors import PPOConfig

torch.set_num_threads(1)


def build(env: str, num_envs: int, agent_steps: int, number: int):
    """An algorithm with this number of remote env runners."""
    config = (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=number, num_envs_per_env_runner=num_envs // max(1, number), num_env_workers=0)
        .multi_agent(count_steps_by="agent_steps")
        .training(train_batch_size_per_learner=agent_steps)
        .debugging(seed=0)
    )
    return config.build_algo()


def sample(algo) -> tuple[float, float, int]:
    """The seconds of a sample with all its episodes in this process, the driver's CPU seconds, and the agent steps."""
    began, cpu = time.perf_counter(), time.process_time()
    group = algo.env_runner_group
    group.begin_iteration()
    found = group.sample()
    found.episodes()
    return time.perf_counter() - began, time.process_time() - cpu, found.agent_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="mpe2.simple_spread_v3")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--agent-steps", type=int, default=4096)
    parser.add_argument("--numbers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--reps", type=int, default=9)
    given = parser.parse_args()
    algos = {n: build(given.env, given.num_envs, given.agent_steps, n) for n in given.numbers}
    try:
        for algo in algos.values():
            sample(algo)
        found = [{n: sample(algo) for n, algo in algos.items()} for _ in range(given.reps)]
    finally:
        for algo in algos.values():
            algo.stop()
    print(
        f"{given.env}, {given.num_envs} sub-environments, {found[0][0][2] if 0 in algos else ''} agent steps a sample"
    )
    for n in given.numbers:
        seconds = statistics.median(turn[n][0] for turn in found)
        speed = statistics.median(turn[0][0] / turn[n][0] for turn in found) if 0 in algos else float("nan")
        share = statistics.median(turn[n][1] / turn[n][0] for turn in found)
        print(f"{n} env runners: {seconds:.3f} s, {speed:.2f} times as fast as in this process, driver {share:.1%}")


if __name__ == "__main__":
    main()
