"""LunarLander-v3: a lander comes to rest on the surface of the moon."""

from __future__ import annotations

from typing import Any

from marl_connectors.callbacks import Success
from marl_connectors.zoo.zoo_task import Expected, ZooTask


def landed(env: Any, episode: Any) -> float:
    """Returns 1 if the lander has come to rest on its legs."""
    return float(not env.lander.awake and not env.game_over)


TASK = ZooTask(
    name="LunarLander-v3",
    env="LunarLander-v3",
    summary="A lander comes to rest on the surface of the moon.",
    needs="gymnasium[box2d]",
    settings={
        "steps": 1_500_000,
        "num_envs": 16,
        "hidden": [128, 128],
        "training": {
            "lr": 1e-3,
            "gamma": 0.999,
            "lambda_": 0.98,
            "train_batch_size_per_learner": 16_384,
            "minibatch_size": 512,
            "num_epochs": 6,
        },
    },
    success=Success("landings", landed),
    expected=Expected(
        mean_return=261.4,
        std=22.5,
        num_seeds=3,
        minutes=3.6,
        random_return=-176.7,
        success=0.96,
        published=242.0,
        source="RL Baselines3 Zoo, PPO, 1,000,000 steps on LunarLander-v2",
    ),
)
