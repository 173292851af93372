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

from marl_connectors import MAPPOConfig, PPOConfig, ScaleRewards

RESULTS = Path(__file__).parent / "results"
COMMON = {
    "gamma": 0.99,
    "lambda_": 0.95,
    "clip_param": 0.2,
    "vf_clip_param": 1e6,
    "vf_loss_coeff": 0.5,
    "entropy_coeff": 0.01,
    "grad_clip": 0.5,
    "use_kl_loss": False,
}
SPEAKER_LISTENER = {
    "env": "mpe2.simple_speaker_listener_v4",
    "env_config": {"max_cycles": 25},
    "policies": "independent",
    "target": -10.0,
    "steps": 1_500_000,
    "num_envs": 32,
    "reward_scale": 0.1,
    "model": {"fcnet_hiddens": [128, 128], "fcnet_activation": "relu", "vf_share_layers": False},
    "training": {
        "lr": 1e-3,
        "gamma": 0.9,
        "train_batch_size_per_learner": 1600,
        "num_epochs": 10,
        "minibatch_size": 200,
        "grad_clip": None,
    },
}
SPREAD = {"N": 3, "max_cycles": 25, "continuous_actions": False}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": "CartPole-v1",
        "target": 450.0,
        "steps": 100_000,
        "training": {"lr": 1e-3, "train_batch_size_per_learner": 2048, "num_epochs": 10, "minibatch_size": 256},
    },
    "spread_shared": {
        "env": "mpe2.simple_spread_v3",
        "env_config": SPREAD,
        "policies": "shared",
        "target": -20.0,
        "steps": 1_000_000,
        "training": {"lr": 3e-4, "train_batch_size_per_learner": 4096, "num_epochs": 8, "minibatch_size": 512},
    },
    "spread_independent": {
        "env": "mpe2.simple_spread_v3",
        "env_config": SPREAD,
        "policies": "independent",
        "target": -22.0,
        "steps": 1_000_000,
        "training": {"lr": 3e-4, "train_batch_size_per_learner": 4096, "num_epochs": 8, "minibatch_size": 512},
    },
}


TASKS |= {
    "spread_mappo": {**TASKS["spread_shared"], "algo": MAPPOConfig},
    "speaker_listener_independent": SPEAKER_LISTENER,
    "speaker_listener_mappo": {**SPEAKER_LISTENER, "algo": MAPPOConfig},
}


def train(task: dict[str, Any], seed: int, *, stop_at_target: bool) -> dict[str, Any]:
    """One run: its curve, its best mean return, and when it first reached the target."""
    scale = task.get("reward_scale", 1.0)
    algo = (
        task.get("algo", PPOConfig)()
        .environment(task["env"], env_config=task.get("env_config", {}))
        .multi_agent(policies=task.get("policies", "shared"), count_steps_by="agent_steps")
        .env_runners(num_envs_per_env_runner=task.get("num_envs", 8))
        .rl_module(model_config=task.get("model", {"fcnet_hiddens": [64, 64], "vf_share_layers": False}))
        .learners(learner_connector=lambda *_: [] if scale == 1.0 else [ScaleRewards(scale=scale)])
        .training(**{**COMMON, **task["training"]})
        .debugging(seed=seed)
        .build_algo()
    )
    began, curve, reached = time.perf_counter(), [], None
    while algo.env_runner.num_agent_steps < task["steps"]:
        result = algo.train()
        modules = result["env_runners"]["module_episode_returns"].values()
        if not modules or result["env_runners"]["num_episodes"] < 100:
            continue
        mean = sum(each["mean"] for each in modules) / len(modules)
        curve.append((result["num_agent_steps_sampled_lifetime"], round(mean, 3)))
        if reached is None and mean >= task["target"]:
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
        print(f"| {name} | {task['steps']:,} | {task['target']} | {best} | {reached} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
