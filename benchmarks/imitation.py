"""Clones recorded policies: PPO experts are trained and recorded, and BC and MARWIL learn from the files alone.

For each task, one expert plays the recorded episodes with exploration. BC and MARWIL are trained with three seeds each,
and play evaluations without exploration, as the expert does. Games are recorded and evaluated against a player that
moves at random.

    python benchmarks/imitation.py            # all tasks, about 15 minutes on one core
    python benchmarks/imitation.py CartPole-v1

The results are written to benchmarks/results/imitation.json, and the curves to docs/images/imitation.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from PIL import Image

from marl_connectors import (
    AgentIdEncoding,
    AlgorithmConfig,
    BCConfig,
    MARWILConfig,
    NormalizeRewards,
    PPOConfig,
    RandomRLModule,
    RLModuleSpec,
)
from marl_connectors.policy_mapping import OneAgainst, SharedPolicy

RESULTS = Path(__file__).parent / "results" / "imitation.json"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "imitation.png"
SEEDS = (0, 1, 2)
POINTS = 10
"""The number of evaluations of a curve, besides the one before training."""
COLORS = {"BC": "C0", "MARWIL": "C1"}
PLAYER, OPPONENT = "shared", "random"


@dataclasses.dataclass(frozen=True)
class Task:
    """What is cloned, and with how much data.

    Attributes:
        env: The environment.
        hidden: The sizes of the hidden layers.
        expert_steps: The env steps that the expert is trained for.
        expert: PPO's settings.
        num_recorded: The number of recorded episodes.
        iterations: The number of train batches of BC and MARWIL.
        num_episodes: The number of episodes of an evaluation.
        players: For games, the agents.
    """

    env: str
    hidden: tuple[int, ...]
    expert_steps: int
    expert: dict[str, Any]
    num_recorded: int
    iterations: int
    num_episodes: int = 100
    players: tuple[str, ...] = ()

    @property
    def against_random(self) -> OneAgainst:
        """One of the players is the policy, another one in each game. The id of the game decides which."""
        return OneAgainst(SharedPolicy(PLAYER), self.players, OPPONENT)

    def configured(self, config: AlgorithmConfig, seed: int) -> Any:
        """Returns a config with the environment and the modules of the task."""
        config.environment(self.env).debugging(seed=seed).env_runners(num_envs_per_env_runner=16, num_env_workers=0)
        config.rl_module(model_config={"fcnet_hiddens": self.hidden, "fcnet_activation": "tanh", "conv_filters": []})
        if "spread" in self.env:
            config.env_runners(env_to_module_connector=lambda: AgentIdEncoding())
        if self.players:
            policies = {PLAYER: RLModuleSpec(), OPPONENT: RLModuleSpec(RandomRLModule)}
            # Experts learn by self-play. Clones learn from games against random moves, the side of the expert alone.
            mapping = SharedPolicy(PLAYER) if isinstance(config, PPOConfig) else self.against_random
            config.multi_agent(policies=policies, policy_mapping_fn=mapping, policies_to_train=[PLAYER])
            config.evaluation(evaluation_config={"policy_mapping_fn": self.against_random})
        return config


TASKS = {
    "CartPole-v1": Task(
        env="CartPole-v1",
        hidden=(64, 64),
        expert_steps=80_000,
        expert={"lr": 1e-3, "train_batch_size_per_learner": 2048, "minibatch_size": 256, "num_epochs": 10},
        num_recorded=100,
        iterations=200,
    ),
    "simple_spread_v3": Task(
        env="mpe2.simple_spread_v3",
        hidden=(64, 64),
        expert_steps=400_000,
        expert={
            "lr": 1e-3,
            "gamma": 0.95,
            "lambda_": 0.95,
            "train_batch_size_per_learner": 4800,
            "minibatch_size": 1200,
            "num_epochs": 8,
            "entropy_coeff": 0.01,
        },
        num_recorded=800,
        iterations=300,
    ),
    "tictactoe_v3": Task(
        env="pettingzoo.classic.tictactoe_v3",
        hidden=(128, 128),
        expert_steps=120_000,
        expert={
            "lr": 1e-3,
            "train_batch_size_per_learner": 4000,
            "minibatch_size": 500,
            "num_epochs": 6,
            "entropy_coeff": 0.05,
        },
        num_recorded=4_000,
        iterations=200,
        num_episodes=500,
        players=("player_1", "player_2"),
    ),
}


def evaluated(task: Task, algo: Any) -> float:
    """Returns the mean return of the policy with most likely actions."""
    return mean_return(algo.evaluate(num_episodes=task.num_episodes, explore=False, seed=1000)["env_runners"])


def mean_return(results: dict[str, Any]) -> float:
    """Returns the mean return of the agents that do not play at random."""
    if "module_episode_returns" not in results:  # a single agent
        return float(results["episode_return_mean"])
    returns = results["module_episode_returns"]
    return float(next(own["mean"] for module_id, own in returns.items() if module_id != OPPONENT))


def expert_of(task: Task, folder: Path) -> dict[str, Any]:
    """Trains the expert and records it. Returns its returns."""
    config = task.configured(PPOConfig(), seed=0).training(**task.expert)
    if "spread" in task.env:
        config.learners(learner_connector=lambda: NormalizeRewards())
    with config.build_algo() as algo:
        at_random = evaluated(task, algo)
        algo.fit(num_env_steps=task.expert_steps, progress=False)
        recorded = algo.record(folder, num_episodes=task.num_recorded, explore=True)
        return {
            "untrained": at_random,
            "expert": evaluated(task, algo),
            "recorded": mean_return(recorded["env_runners"]),
        }


def cloned(task: Task, cls: Any, folder: Path, seed: int) -> dict[str, Any]:
    """Trains one clone. Returns what it reaches."""
    config = task.configured(cls(), seed).offline_data(input_=str(folder), held_out_fraction=0.1)
    config.training(lr=1e-3, train_batch_size_per_learner=2000, minibatch_size=500)
    if cls is MARWILConfig:
        config.training(moving_average_sqd_adv_norm_update_rate=0.02, gamma=task.expert.get("gamma", 0.99))
        config.rl_module(
            model_config={
                "fcnet_hiddens": task.hidden,
                "fcnet_activation": "tanh",
                "conv_filters": [],
                "vf_share_layers": False,
            }
        )
    with config.build_algo() as algo:
        before = algo.evaluate_offline()["learners"]
        seconds, curve = 0.0, [(0, evaluated(task, algo))]
        for _ in range(POINTS):
            began = time.process_time()
            algo.fit(num_iterations=task.iterations // POINTS, progress=False)
            seconds += time.process_time() - began
            curve.append((algo.iteration, round(evaluated(task, algo), 3)))
        held_out = algo.evaluate_offline()["learners"]
        module_id = next(iter(held_out))
        return {
            "seed": seed,
            "return": curve[-1][1],
            "curve": curve,
            "held_out_logp": held_out[module_id]["mean_logp"],
            "held_out_logp_before": before[module_id]["mean_logp"],
            "cpu_seconds": round(seconds, 1),
        }


def measured(name: str) -> dict[str, Any]:
    """Returns the results of a task."""
    task = TASKS[name]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "data")
        found: dict[str, Any] = expert_of(task, folder)
        print(name, found, flush=True)
        for cls in (BCConfig, MARWILConfig):
            algorithm = cls.__name__.removesuffix("Config")
            found[algorithm] = [cloned(task, cls, folder, seed) for seed in SEEDS]
            returns = [own["return"] for own in found[algorithm]]
            print(name, algorithm, f"{np.mean(returns):.2f} ± {np.std(returns):.2f}", found[algorithm], flush=True)
    return {**found, "num_recorded": task.num_recorded, "iterations": task.iterations}


def table(results: dict[str, Any]) -> str:
    """Returns the results as a table for the docs."""
    lines = ["| task | untrained | expert, exploring | expert | BC | MARWIL |", "| --- | --- | --- | --- | --- | --- |"]
    for task, own in results.items():
        cells = [f"{own[name]:.2f}" for name in ("untrained", "recorded", "expert")]
        for algorithm in ("BC", "MARWIL"):
            returns = [one["return"] for one in own[algorithm]]
            cells.append(f"{np.mean(returns):.2f} ± {np.std(returns):.2f}")
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(axes: Axes, name: str, own: dict[str, Any]) -> None:
    """Draws the curves of a task's clones."""
    for algorithm, color in COLORS.items():
        for clone in own[algorithm]:
            first = clone["seed"] == SEEDS[0]
            axes.plot(*np.transpose(clone["curve"]), color=color, linewidth=1.0, label=algorithm if first else None)
    axes.axhline(own["expert"], color="black", linestyle="--", linewidth=0.8)
    axes.axhline(own["recorded"], color="grey", linestyle=":", linewidth=0.8)
    axes.set_title(name, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def draw_all(results: dict[str, Any]) -> None:
    """Writes the picture with the curves of all tasks."""
    figure, axes = plt.subplots(1, len(results), figsize=(2.6 * len(results), 2.2), layout="constrained", squeeze=False)
    for place, (name, own) in zip(axes.flat, results.items(), strict=True):
        draw(place, name, own)
    axes[0, 0].legend(fontsize=7, frameon=False)
    figure.supxlabel("train batches (dashed: the expert, dotted: the expert with exploration, as recorded)", fontsize=8)
    figure.supylabel("return without exploration", fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(32).save(PICTURE, optimize=True)


def main() -> None:
    """Measures the tasks that are named, and prints the table of all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.tasks:
        own = measured(name)
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[name] = own
        RESULTS.write_text(json.dumps({n: results[n] for n in TASKS if n in results}, indent=1) + "\n")
    results = json.loads(RESULTS.read_text())
    draw_all(results)
    print(table(results))


if __name__ == "__main__":
    main()
