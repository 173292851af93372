"""mamujoco_v1: two agents move the front and the back leg of a half cheetah."""

from __future__ import annotations

from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="mamujoco_v1",
    env="gymnasium_robotics.envs.multiagent_mujoco.mamujoco_v1",
    summary="Two agents run together: one moves the front leg of a half cheetah, the other one the back leg.",
    needs="gymnasium-robotics",
    settings={
        "algo": "mappo",
        "policies": "independent",
        "steps": 1_000_000,
        "num_envs": 8,
        "env_config": {"scenario": "HalfCheetah", "agent_conf": "2x3"},
        "hidden": [64, 64],
        "activation": "tanh",
        "model": {"free_log_std": True},
        "env_to_module": ["MeanStdFilter"],
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 5e-4], [2_000_000, 0.0]],  # it falls to half
            "gamma": 0.99,
            "train_batch_size_per_learner": 8192,
            "minibatch_size": 512,
            "num_epochs": 10,
            "entropy_coeff": 0.0,
        },
    },
    expected=Expected(mean_return=2622.1, std=1723.1, num_seeds=3, minutes=3.7, random_return=-279.7),
)
