"""connect_four_v3: two players drop discs until one of them has four in a row, by self-play."""

from __future__ import annotations

from marl_connectors.callbacks import Success
from marl_connectors.zoo.games import games_won
from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="connect_four_v3",
    env="pettingzoo.classic.connect_four_v3",
    summary="Two players drop discs until one of them has four in a row. Both learn with one policy, by self-play.",
    needs="pettingzoo[classic]",
    settings={
        "policies": "shared",
        "eval_opponent": "random",
        "steps": 400_000,
        "num_envs": 32,
        "hidden": [128],
        "activation": "relu",
        "model": {"conv_filters": [[32, 4, 1]]},
        "anneal_lr": True,
        "eval_episodes": 400,
        "training": {
            "lr": 1e-3,
            "train_batch_size_per_learner": 8000,
            "minibatch_size": 1000,
            "num_epochs": 6,
            "entropy_coeff": 0.1,  # so that many positions are seen, also those that only a weak opponent allows
        },
    },
    success=Success("games won against random", games_won),
    success_needs_opponent=True,
    expected=Expected(mean_return=0.96, std=0.03, num_seeds=3, minutes=2.7, random_return=-0.12, success=0.98),
)
