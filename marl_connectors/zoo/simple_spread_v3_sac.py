"""simple_spread_v3 with SAC and continuous actions: three agents cover three landmarks."""

from __future__ import annotations

from marl_connectors.callbacks import Success
from marl_connectors.zoo.simple_spread_v3 import landmarks_covered
from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="simple_spread_v3/sac",
    env="mpe2.simple_spread_v3",
    summary="Three agents with continuous actions cover three landmarks, without bumping into one another.",
    needs="mpe2",
    settings={
        "algo": "sac",
        "policies": "shared",
        "steps": 900_000,
        "num_envs": 16,
        "env_config": {"continuous_actions": True},
        "hidden": [128, 128],
        "activation": "relu",
        "env_to_module": ["AgentIdEncoding"],
        "training": {"actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3, "gamma": 0.95},
    },
    success=Success("landmarks covered", landmarks_covered),
    expected=Expected(mean_return=-10.2, std=0.9, num_seeds=3, minutes=18.7, random_return=-25.1, success=0.73),
)
