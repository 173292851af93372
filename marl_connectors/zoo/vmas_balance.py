"""vmas/balance: four agents carry a ball on a plank to its goal."""

from __future__ import annotations

from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="vmas/balance",
    env="vmas/balance",
    summary="Four agents carry a ball on a plank to a goal above them, and must not drop it.",
    needs="vmas",
    settings={
        "algo": "ppo",
        "policies": "shared",
        "steps": 2_000_000,
        "num_envs": 100,
        "env_config": {"n_agents": 4, "max_steps": 200},
        "hidden": [128, 128],
        "activation": "tanh",
        "model": {"free_log_std": True},
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 5e-4], [8_000_000, 0.0]],  # it falls to three quarters
            "gamma": 0.99,
            "train_batch_size_per_learner": 40_000,
            "minibatch_size": 4000,
            "num_epochs": 10,
            "entropy_coeff": 0.0,
        },
    },
    expected=Expected(mean_return=111.7, std=5.0, num_seeds=3, minutes=8.5, random_return=-10.3),
)
