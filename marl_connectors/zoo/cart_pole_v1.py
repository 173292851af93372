"""CartPole-v1: a cart balances a pole for 500 steps."""

from __future__ import annotations

from typing import Any

from marl_connectors.callbacks import Success
from marl_connectors.zoo.zoo_task import Expected, ZooTask


def balanced(env: Any, episode: Any) -> float:
    """Returns 1 if the pole still stands at the end, and the cart is on its track."""
    position, _, angle, _ = env.state
    return float(abs(position) <= env.x_threshold and abs(angle) <= env.theta_threshold_radians)


TASK = ZooTask(
    name="CartPole-v1",
    env="CartPole-v1",
    summary="A cart balances a pole for 500 steps.",
    settings={
        "steps": 100_000,
        "num_envs": 8,
        "training": {
            "lr": 1e-3,
            "train_batch_size_per_learner": 2048,
            "minibatch_size": 256,
            "num_epochs": 10,
        },
    },
    success=Success("poles balanced to the end", balanced),
    expected=Expected(
        mean_return=500.0,
        std=0.0,
        num_seeds=3,
        minutes=0.2,
        random_return=22.5,
        success=1.0,
        published=500.0,
        source="RL Baselines3 Zoo, PPO, 100,000 steps; 500 is the largest possible return",
    ),
)
