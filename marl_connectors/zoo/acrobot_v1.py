"""Acrobot-v1: a double pendulum swings its end above a line."""

from __future__ import annotations

import math
from typing import Any

from marl_connectors.callbacks import Success
from marl_connectors.zoo.zoo_task import Expected, ZooTask


def reached_the_line(env: Any, episode: Any) -> float:
    """Returns 1 if the pendulum's end is above the line, one link's length above the axis."""
    first, second, *_ = env.state
    return float(-math.cos(first) - math.cos(first + second) > 1.0)


TASK = ZooTask(
    name="Acrobot-v1",
    env="Acrobot-v1",
    summary="A double pendulum swings its end above a line.",
    settings={
        "steps": 500_000,
        "num_envs": 16,
        "training": {
            "lr": 1e-3,
            "train_batch_size_per_learner": 4096,
            "minibatch_size": 512,
            "num_epochs": 10,
        },
    },
    success=Success("lines reached", reached_the_line),
    expected=Expected(
        mean_return=-71.4,
        std=3.7,
        num_seeds=3,
        minutes=0.9,
        random_return=-497.5,
        success=1.0,
        published=-73.5,
        source="RL Baselines3 Zoo, PPO, 1,000,000 steps",
    ),
)
