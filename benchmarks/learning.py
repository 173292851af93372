"""Measures the returns of PPO and MAPPO on the tasks of ``learning_tasks.py``, over three seeds.

Each run becomes a line of ``results/learning_<task>.jsonl`` and replaces an earlier one with the same seed.
``learning_curves.py`` makes a table and a picture of them. A return is the mean return of an agent over the newest 100
episodes with sampled actions. After training, 100 episodes are played without exploration.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import torch
from learning_results import Run, save_runs, saved_runs
from learning_tasks import TASKS, Task

EPISODES = 100


def mean_return(results: dict[str, Any], task: Task) -> float:
    """Returns the mean return of an agent over the modules that count; NaN before their first episode has ended."""
    modules = results["module_episode_returns"]
    counting = [each["mean"] for m, each in modules.items() if task.modules is None or m in task.modules]
    return sum(counting) / len(counting) if counting else float("nan")


def train(name: str, seed: int, *, stop_at_target: bool) -> Run:
    """Trains within the task's budget of steps, and returns the run."""
    task = TASKS[name]
    algo = task.config().debugging(seed=seed).build_algo()
    random = mean_return(algo.random_play(num_episodes=EPISODES), task)
    began, curve, reached = time.perf_counter(), [], None
    while algo.env_runner.num_agent_steps < task.steps and not (stop_at_target and reached):
        result = algo.train()
        if result["env_runners"]["num_episodes"] < EPISODES:
            continue
        mean = mean_return(result["env_runners"], task)
        curve.append((result["num_agent_steps_sampled_lifetime"], round(mean, 3)))
        if reached is None and mean >= task.target:
            reached = curve[-1][0]
    seconds = time.perf_counter() - began
    played = algo.evaluate(num_episodes=EPISODES)
    algo.stop()
    return Run(
        task=name,
        seed=seed,
        random=round(random, 3),
        best=max(mean for _, mean in curve),
        reached_at=reached,
        evaluation=round(mean_return(played, task), 3),
        won=played.get("won"),
        seconds=round(seconds, 1),
        curve=curve,
    )


def main() -> None:
    """Runs the selected tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(TASKS), action="append")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--stop-at-target", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.only or TASKS:
        for seed in args.seeds:
            run = train(name, seed, stop_at_target=args.stop_at_target)
            save_runs(name, {**saved_runs(name), seed: run})
            print({key: value for key, value in run.items() if key != "curve"}, flush=True)


if __name__ == "__main__":
    main()
