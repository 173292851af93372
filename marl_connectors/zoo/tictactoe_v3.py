"""tictactoe_v3: two players draw crosses and circles, by self-play."""

from __future__ import annotations

from marl_connectors.callbacks import Success
from marl_connectors.zoo.games import games_won
from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="tictactoe_v3",
    env="pettingzoo.classic.tictactoe_v3",
    summary="Two players draw crosses and circles. Both learn with one policy, by self-play.",
    needs="pettingzoo[classic]",
    settings={
        "policies": "shared",
        "eval_opponent": "random",
        "steps": 200_000,
        "num_envs": 32,
        "hidden": [128, 128],
        "activation": "relu",
        "anneal_lr": True,
        "eval_episodes": 200,
        "model": {"conv_filters": []},
        "training": {
            "lr": 1e-3,
            "train_batch_size_per_learner": 4000,
            "minibatch_size": 500,
            "num_epochs": 6,
            "entropy_coeff": 0.1,
        },
    },
    success=Success("games won against random", games_won),
    success_needs_opponent=True,
    expected=Expected(
        mean_return=0.91,
        std=0.05,
        num_seeds=3,
        minutes=1.1,
        random_return=0.01,
        success=0.91,
    ),
)
