"""leduc_holdem_v4: two players bet on one card each and one on the table, by self-play."""

from __future__ import annotations

from marl_connectors.callbacks import Success
from marl_connectors.zoo.games import games_won
from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="leduc_holdem_v4",
    env="pettingzoo.classic.leduc_holdem_v4",
    summary="Two players bet on one card each and one on the table. Both learn with one policy, by self-play.",
    needs="pettingzoo[classic]",
    settings={
        "policies": "shared",
        "eval_opponent": "random",
        "steps": 200_000,
        "num_envs": 32,
        "hidden": [64, 64],
        "anneal_lr": True,
        "eval_episodes": 1000,
        "training": {
            "lr": 1e-3,
            "train_batch_size_per_learner": 8000,
            "minibatch_size": 1000,
            "num_epochs": 6,
            "entropy_coeff": 0.05,
        },
    },
    success=Success("games won against random", games_won),
    success_needs_opponent=True,
    expected=Expected(mean_return=0.93, std=0.04, num_seeds=3, minutes=3.7, random_return=0.0, success=0.69),
)
