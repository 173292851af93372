"""Measures how much faster sampling is with worker processes, by wall-clock time.

The runs with different numbers of workers take turns of a fraction of a second, and each round gives one ratio. Other
processes distort the ratios, because workers only gain by using idle cores. So rounds without other processes are
counted separately.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # waiting threads would take cores from the workers

import torch

from marl_connectors import PPOConfig

ENVS = {
    "null": ("marl_envs.null_v0", {}, 100),
    "spread": ("mpe2.simple_spread_v3", {"max_cycles": 25}, 50),
    "pursuit": ("pettingzoo.sisl.pursuit_v5", {}, 5),
}
"""Name to environment, settings, and the number of vector steps of one turn with 16 sub-environments."""
CORES = len(os.sched_getaffinity(0))
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Turn:
    """The duration of a turn in seconds, and the shares of the cores that this benchmark and others used."""

    seconds: float
    own: float
    others: float


def build(name: str, num_envs: int, hiddens: int, workers: int):
    """Returns the runner of PPO with two hidden layers."""
    env, env_config, _ = ENVS[name]
    config = PPOConfig().environment(env, env_config=env_config).multi_agent(policies="shared")
    config.env_runners(num_envs_per_env_runner=num_envs, num_env_workers=workers)
    config.env_runners(rollout_fragment_length=64).learners(num_gpus_per_learner=0)
    config.rl_module(model_config={"fcnet_hiddens": [hiddens, hiddens]})
    return config.debugging(seed=0).build_algo().env_runner


def machine_seconds() -> float:
    """Returns the CPU time that all processes of the machine have used."""
    user, nice, system, _idle, _iowait, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(interrupts)) / TICKS


def own_seconds(pids: list[int]) -> float:
    """Returns the CPU time that some processes have used."""
    return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) * 1e-9


def take_turn(runner, num_timesteps: int, pids: list[int]) -> Turn:
    """Samples, and returns the time that it took."""
    machine, own, began = machine_seconds(), own_seconds(pids), time.perf_counter()
    runner.sample(num_timesteps=num_timesteps)
    seconds, own = time.perf_counter() - began, own_seconds(pids) - own
    others = max(machine_seconds() - machine - own, 0.0)
    return Turn(seconds, own / seconds, others / seconds)


def wait_for_quiet(patience_s: float) -> None:
    """Returns when the cores have been idle for a tenth of a second, at the latest after ``patience_s``."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        before = machine_seconds()
        time.sleep(0.1)
        if (machine_seconds() - before) * TICKS < 1.5:
            return


def measure(name: str, num_envs: int, args: argparse.Namespace) -> None:
    """Prints a table row for each number of workers."""
    runners = {workers: build(name, num_envs, args.hiddens, workers) for workers in args.workers}
    pids = [os.getpid()]
    for runner in runners.values():
        pids += [worker.pid for worker in getattr(runner.vector_env, "workers", [])]
    steps = max(1, round(ENVS[name][2] * 16 / num_envs))
    rounds: list[dict[int, Turn]] = []
    for _ in range(args.rounds + 1):
        wait_for_quiet(args.patience)
        rounds.append({workers: take_turn(runner, num_envs * steps, pids) for workers, runner in runners.items()})
    del rounds[0]
    quiet = [turns for turns in rounds if all(turn.others < 0.05 * CORES for turn in turns.values())]
    first = args.workers[0]
    for workers, runner in runners.items():
        runner.close()
        milliseconds = 1e3 * statistics.median(turns[workers].seconds for turns in rounds) / steps
        cores = statistics.median(turns[workers].own for turns in rounds)
        cells = [name, num_envs, workers, f"{milliseconds:.2f}", f"{cores:.2f}", *_ratios(rounds, workers, first)]
        print("| " + " | ".join(map(str, [*cells, *_ratios(quiet, workers, first)])) + " |", flush=True)


def _ratios(rounds: list[dict[int, Turn]], workers: int, first: int) -> list[str]:
    """Returns the number of rounds, and the median and the range of their ratios, as table cells."""
    if not rounds:
        return ["0", ""]
    ratios = sorted(turns[first].seconds / turns[workers].seconds for turns in rounds)
    return [str(len(ratios)), f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"]


def main() -> None:
    """Prints a table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="+", choices=sorted(ENVS), default=["spread", "pursuit"])
    parser.add_argument("--num-envs", nargs="+", type=int, default=[8, 16], help="numbers of sub-environments")
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2], help="ratios are to the first")
    parser.add_argument("--hiddens", type=int, default=64, help="size of both hidden layers")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--patience", type=float, default=2.0, help="seconds to wait for idle cores before each round")
    args = parser.parse_args()
    print(
        "| environment | sub-environments | workers | ms a vector step | cores used | rounds | times as fast | quiet "
        "rounds | |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in args.envs:
        for num_envs in args.num_envs:
            measure(name, num_envs, args)
    print(f"{CORES} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
