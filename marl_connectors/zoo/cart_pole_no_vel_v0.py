"""cart_pole_no_vel_v0: a pole is balanced without seeing velocities, which needs a memory."""

from __future__ import annotations

from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="cart_pole_no_vel_v0",
    env="marl_envs.cart_pole_no_vel_v0",
    summary="A pole is balanced on a cart without seeing velocities, which only a policy with a memory can do.",
    settings={
        "policies": "shared",
        "steps": 200_000,
        "num_envs": 8,
        "hidden": [64],
        "activation": "tanh",
        "anneal_lr": True,
        "model": {"use_lstm": True, "lstm_cell_size": 64, "max_seq_len": 32},
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": 2e-3,
            "gamma": 0.98,
            "lambda_": 0.9,
            "train_batch_size_per_learner": 2048,
            "minibatch_size": 512,
            "num_epochs": 10,
            "entropy_coeff": 0.0,
        },
    },
    expected=Expected(
        mean_return=499.2,
        std=1.5,
        num_seeds=3,
        minutes=1.3,
        random_return=22.5,
        published=500.0,
        source="RL Baselines3 Zoo, recurrent PPO; 500 is the largest possible return",
    ),
)
