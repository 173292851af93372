"""CartPole-v1 with DQN: a cart balances a pole for 500 steps."""

from __future__ import annotations

from marl_connectors.callbacks import Success
from marl_connectors.zoo.cart_pole_v1 import balanced
from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="CartPole-v1/dqn",
    env="CartPole-v1",
    summary="A cart balances a pole for 500 steps.",
    settings={
        "algo": "dqn",
        "steps": 120_000,
        "num_envs": 8,
        "hidden": [128, 128],
        "activation": "relu",
        "anneal_lr": True,
        "training": {
            "lr": 1e-3,
            "train_batch_size_per_learner": 128,
            "training_intensity": 64.0,
            "n_step": 1,
            "target_network_update_freq": 250,
            "epsilon": [[0, 1.0], [10_000, 0.04]],
        },
    },
    success=Success("poles balanced to the end", balanced),
    expected=Expected(
        mean_return=500.0,
        std=0.0,
        num_seeds=3,
        minutes=2.0,
        random_return=22.5,
        success=1.0,
        published=500.0,
        source="RL Baselines3 Zoo, DQN, 50,000 steps; 500 is the largest possible return",
    ),
)
