"""simple_tag_v3: three slow chasers hunt one faster agent."""

from __future__ import annotations

from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="simple_tag_v3",
    env="mpe2.simple_tag_v3",
    summary="Three slow chasers hunt one faster agent; each team learns against the other.",
    needs="mpe2",
    settings={
        "algo": "ppo",
        "policies": "adversary*=chasers,agent*=runner",
        "steps": 3_000_000,
        "num_envs": 128,
        "hidden": [128, 128],
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 1e-3], [12_000_000, 0.0]],  # it falls to three quarters
            "gamma": 0.95,
            "train_batch_size_per_learner": 9600,
            "minibatch_size": 2400,
            "num_epochs": 8,
            "entropy_coeff": 0.01,
        },
    },
    expected=Expected(mean_return=34.6, std=2.0, num_seeds=3, minutes=18.7, random_return=3.7, module="chasers"),
)
