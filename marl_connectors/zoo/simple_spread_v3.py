"""simple_spread_v3: three agents cover three landmarks, without bumping into one another."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.callbacks import Success
from marl_connectors.zoo.zoo_task import Expected, ZooTask

NEAR = 0.15
"""The largest distance of an agent from a landmark that it covers: the agent's radius."""


def landmarks_covered(env: Any, episode: Any) -> float:
    """Returns the share of landmarks that an agent covers."""
    agents = np.array([agent.state.p_pos for agent in env.world.agents])
    landmarks = np.array([landmark.state.p_pos for landmark in env.world.landmarks])
    distances = np.linalg.norm(landmarks[:, None] - agents, axis=-1)
    return float((distances.min(axis=1) <= NEAR).mean())


TASK = ZooTask(
    name="simple_spread_v3",
    env="mpe2.simple_spread_v3",
    summary="Three agents cover three landmarks, without bumping into one another.",
    needs="mpe2",
    settings={
        "algo": "ppo",
        "policies": "shared",
        "steps": 4_000_000,
        "num_envs": 128,
        "hidden": [128, 128],
        "activation": "tanh",
        "env_to_module": ["AgentIdEncoding"],
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 1e-3], [12_000_000, 0.0]],  # it falls to two thirds
            "gamma": 0.95,
            "lambda_": 0.95,
            "train_batch_size_per_learner": 9600,
            "minibatch_size": 2400,
            "num_epochs": 8,
            "entropy_coeff": 0.01,
        },
    },
    success=Success("landmarks covered", landmarks_covered),
    expected=Expected(
        mean_return=-8.8,
        std=0.3,
        num_seeds=3,
        minutes=15.0,
        random_return=-26.0,
        success=0.91,
        published=-8.6,
        source="QMIX in the usual cooperative benchmark's table (IPPO and MAPPO: -9.8), converted by (x - (-75)) / 6",
    ),
)
