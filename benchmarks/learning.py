"""What PPO and MAPPO reach, over three seeds.

Prints a table row for each task and writes its learning curves to ``results/learning_<task>.jsonl`` (an object a run).
The figure is the mean return of an agent over the newest 100 episodes with sampled actions, at its best within the
budget.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from learning_tasks import TASKS, Task

RESULTS = Path(__file__).parent / "results"


def train(task: Task, seed: int, *, stop_at_target: bool) -> dict[str, Any]:
    """One run: its curve, its best mean return, and when it first reached the target."""
    algo = task.config().debugging(seed=seed).build_algo()
    began, curve, reached = time.perf_counter(), [], None
    while algo.env_runner.num_agent_steps < task.steps:
        result = algo.train()
        by_module = result["env_runners"]["module_episode_returns"]
        modules = [each for m, each in by_module.items() if task.modules is None or m in task.modules]
        if not modules or result["env_runners"]["num_episodes"] < 100:
            continue
        mean = sum(each["mean"] for each in modules) / len(modules)
        curve.append((result["num_agent_steps_sampled_lifetime"], round(mean, 3)))
        if reached is None and mean >= task.target:
            reached = curve[-1][0]
            if stop_at_target:
                break
    algo.stop()
    best = max(mean for _, mean in curve)
    return {"seed": seed, "best": best, "reached_at": reached, "seconds": time.perf_counter() - began, "curve": curve}


def main() -> None:
    """Runs the tasks and prints their table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(TASKS), action="append")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--stop-at-target", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    print("| task | steps | target | best of each seed | target reached after | seconds |\n" + 6 * "| --- " + "|")
    for name in args.only or TASKS:
        task = TASKS[name]
        runs = [train(task, seed, stop_at_target=args.stop_at_target) for seed in range(args.seeds)]
        with (RESULTS / f"learning_{name}.jsonl").open("w") as file:
            file.writelines(json.dumps({"task": name, **run}) + "\n" for run in runs)
        best = ", ".join(f"{run['best']:.1f}" for run in runs)
        reached = ", ".join(f"{run['reached_at']:,}" if run["reached_at"] else "never" for run in runs)
        seconds = ", ".join(f"{run['seconds']:.0f}" for run in runs)
        print(f"| {name} | {task.steps:,} | {task.target} | {best} | {reached} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
