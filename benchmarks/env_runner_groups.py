"""Sampling with remote env runners, beside one env runner in this process, with the same number of sub-environments.

    python benchmarks/env_runner_groups.py --env mpe2.simple_spread_v3 --num-envs 16 --agent-steps 8192 --reps 9

The runs take turns, so that a busy machine slows down all of them. Ratios are the medians of the turns' ratios. The
driver's share is the CPU time of this process (with Ray's threads in it) of the time that a sample takes.

``separate processes`` are as many processes as env runners, without Ray. They begin together, and each samples its part
and keeps it to itself. This is what the machine gives: two cores that share a cache, or a core, are less than twice as
fast as one.
"""

from __future__ import annotations

import argparse
import multiprocessing
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
    group.send_weights()
    found = group.sample()
    found.episodes()
    return time.perf_counter() - began, time.process_time() - cpu, found.agent_steps


def sample_when_asked(connection, *arguments) -> None:
    """Samples in this process, once for each message."""
    algo = build(*arguments)
    sample(algo)
    connection.send("ready")
    while connection.recv():
        sample(algo)
        connection.send("done")


class SeparateProcesses:
    """Processes without Ray that sample their parts at the same time."""

    def __init__(self, env: str, num_envs: int, agent_steps: int, number: int):
        self._connections = []
        context = multiprocessing.get_context("spawn")
        for _ in range(number):
            own, other = context.Pipe()
            arguments = other, env, num_envs // number, agent_steps // number, 0
            context.Process(target=sample_when_asked, args=arguments, daemon=True).start()
            self._connections.append(own)
        self._wait()

    def _wait(self) -> None:
        for connection in self._connections:
            connection.recv()

    def seconds(self) -> float:
        """The seconds in which all of them sample."""
        began = time.perf_counter()
        for connection in self._connections:
            connection.send(True)
        self._wait()
        return time.perf_counter() - began

    def end(self) -> None:
        """Ends the processes."""
        for connection in self._connections:
            connection.send(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="mpe2.simple_spread_v3")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--agent-steps", type=int, default=8192)
    parser.add_argument("--numbers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--reps", type=int, default=9)
    given = parser.parse_args()
    size = given.env, given.num_envs, given.agent_steps
    algos = {n: build(*size, n) for n in (0, *given.numbers)}
    separate = {n: SeparateProcesses(*size, n) for n in given.numbers}
    try:
        for algo in algos.values():
            sample(algo)
        found = [
            ({n: sample(algo) for n, algo in algos.items()}, {n: own.seconds() for n, own in separate.items()})
            for _ in range(given.reps)
        ]
    finally:
        for algo in algos.values():
            algo.stop()
        for own in separate.values():
            own.end()

    alone = [ours[0][0] for ours, _ in found]
    print(f"{given.env}, {given.num_envs} sub-environments, {found[0][0][0][2]} agent steps a sample")
    print(f"in this process: {statistics.median(alone):.3f} s")
    for n in given.numbers:
        seconds = statistics.median(ours[n][0] for ours, _ in found)
        speed = statistics.median(one / ours[n][0] for one, (ours, _) in zip(alone, found, strict=True))
        most = statistics.median(one / plain[n] for one, (_, plain) in zip(alone, found, strict=True))
        share = statistics.median(ours[n][1] / ours[n][0] for ours, _ in found)
        print(
            f"{n} env runners: {seconds:.3f} s, {speed:.2f} times as fast as in this process, driver {share:.1%}; "
            f"{n} separate processes: {most:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
