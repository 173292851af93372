"""Pendulum-v1 with SAC: a motor swings a pendulum up and holds it there."""

from __future__ import annotations

from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="Pendulum-v1",
    env="Pendulum-v1",
    summary="A motor swings a pendulum up and holds it there.",
    settings={
        "algo": "sac",
        "steps": 15_000,
        "num_envs": 1,
        "hidden": [64, 64],
        "training": {
            "actor_lr": 1e-3,
            "critic_lr": 1e-3,
            "alpha_lr": 1e-3,
            "training_intensity": 256.0,
            "num_steps_sampled_before_learning_starts": 500,
        },
    },
    expected=Expected(mean_return=-150.0, std=10.0, num_seeds=3, minutes=2.0, random_return=-1200.0),
)
