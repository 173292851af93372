"""knights_archers_zombies_v11: two archers and two knights hold a line against zombies."""

from __future__ import annotations

from typing import Any

from marl_connectors.callbacks import Success
from marl_connectors.zoo.zoo_task import Expected, ZooTask


def time_held(env: Any, episode: Any) -> float:
    """Returns the share of the longest possible game for which no zombie got through and somebody was alive."""
    return env.frames / env.max_cycles


TASK = ZooTask(
    name="knights_archers_zombies_v11",
    env="pettingzoo.butterfly.knights_archers_zombies_v11",
    summary="Two archers and two knights kill zombies before one gets through to the bottom of the screen.",
    needs="pettingzoo[butterfly]",
    settings={
        "algo": "ppo",
        "policies": "shared",
        "steps": 1_000_000,
        "eval_explore": True,
        "num_envs": 16,
        "hidden": [128, 128],
        "activation": "relu",
        # Archers and knights have the same spaces, and observations do not say whose they are.
        "env_to_module": ["FlattenObservations", "MeanStdFilter:share_between_agents=true", "AgentIdEncoding"],
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 7e-4], [2_000_000, 0.0]],  # it falls to half
            "gamma": 0.99,
            "lambda_": 0.95,
            "train_batch_size_per_learner": 8192,
            "minibatch_size": 1024,
            "num_epochs": 8,
            "entropy_coeff": 0.003,
        },
    },
    success=Success("time the line was held", time_held),
    expected=Expected(mean_return=2.5, std=0.99, num_seeds=3, minutes=3.4, random_return=0.64, success=0.3),
)
