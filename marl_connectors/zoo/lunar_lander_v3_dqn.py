"""LunarLander-v3 with DQN: a lander comes to rest on the surface of the moon."""

from __future__ import annotations

from marl_connectors.callbacks import Success
from marl_connectors.zoo.lunar_lander_v3 import landed
from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="LunarLander-v3/dqn",
    env="LunarLander-v3",
    summary="A lander comes to rest on the surface of the moon.",
    needs="gymnasium[box2d]",
    settings={
        "algo": "dqn",
        "steps": 500_000,
        "num_envs": 8,
        "hidden": [128, 128],
        "activation": "relu",
        "anneal_lr": True,
        "training": {
            "lr": 1e-3,
            "train_batch_size_per_learner": 128,
            "training_intensity": 16.0,
            "target_network_update_freq": 500,
            "epsilon": [[0, 1.0], [50_000, 0.02]],
            "num_steps_sampled_before_learning_starts": 5000,
        },
    },
    success=Success("landings", landed),
    expected=Expected(
        mean_return=272.8,
        std=5.7,
        num_seeds=3,
        minutes=6.6,
        random_return=-186.6,
        success=0.93,
    ),
)
