"""pursuit_v5: eight pursuers catch thirty evaders on a grid, two at a time."""

from __future__ import annotations

from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="pursuit_v5",
    env="pettingzoo.sisl.pursuit_v5",
    summary="Eight pursuers on a grid catch thirty evaders, for which they have to surround them together.",
    needs="pettingzoo[sisl]",
    settings={
        "algo": "ppo",
        "policies": "shared",
        "steps": 1_000_000,
        "eval_explore": True,
        "num_envs": 16,
        # Each pursuer is paid for its own catches, instead of the mean of all, which says little about its own actions.
        # The mean return of an agent is the same.
        "env_config": {"shared_reward": False},
        "hidden": [256, 256],
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 7e-4], [20_000_000, 0.0]],  # it falls to seven eighths
            "gamma": 0.95,
            "train_batch_size_per_learner": 8192,
            "minibatch_size": 1024,
            "num_epochs": 6,
            "entropy_coeff": 0.01,
        },
    },
    expected=Expected(mean_return=30.7, std=2.8, num_seeds=3, minutes=28.1, random_return=-46.0),
)
