"""multiwalker_v9: three walkers carry a package together."""

from __future__ import annotations

from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="multiwalker_v9",
    env="pettingzoo.sisl.multiwalker_v9",
    summary="Three walkers carry a package together, and must not let it fall.",
    needs="pettingzoo[sisl]",
    settings={
        "algo": "ppo",
        "policies": "shared",
        "steps": 4_000_000,
        "eval_explore": True,
        "num_envs": 16,
        "hidden": [128, 128],
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 3e-4], [12_000_000, 0.0]],  # it falls to two thirds
            "gamma": 0.99,
            "train_batch_size_per_learner": 12_288,
            "minibatch_size": 2048,
            "num_epochs": 10,
            "entropy_coeff": 0.0,
        },
    },
    expected=Expected(
        mean_return=25.1,
        std=18.2,
        num_seeds=3,
        minutes=33.6,
        random_return=-100.5,
        published=41.0,
        source="PPO with shared parameters after 2.55M steps, Terry et al. (2020), arXiv:2005.13625 (31.3 after 1M)",
    ),
)
