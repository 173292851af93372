"""simple_reference_v3: two agents tell each other where to go, in a language that both have to agree on."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.callbacks import Success
from marl_connectors.zoo.zoo_task import Expected, ZooTask


def messages_understood(env: Any, episode: Any) -> float:
    """Returns the share of agents that are closer to their goal than to any other landmark."""
    landmarks = np.array([landmark.state.p_pos for landmark in env.world.landmarks])

    def is_at_goal(speaker: Any) -> bool:
        listener, goal = speaker.goal_a, speaker.goal_b
        nearest = np.linalg.norm(landmarks - listener.state.p_pos, axis=1).argmin()
        return env.world.landmarks[nearest] is goal

    return float(np.mean([is_at_goal(agent) for agent in env.world.agents]))


TASK = ZooTask(
    name="simple_reference_v3",
    env="mpe2.simple_reference_v3",
    summary="Two agents tell each other which landmark to go to, in a language that both have to agree on.",
    needs="mpe2",
    settings={
        "algo": "mappo",
        "policies": "shared",
        "steps": 3_000_000,
        "num_envs": 128,
        "hidden": [128, 128],
        "activation": "relu",
        "env_to_module": ["AgentIdEncoding"],
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 1e-3], [6_000_000, 0.0]],  # it falls to half
            "gamma": 0.95,
            "train_batch_size_per_learner": 6400,
            "minibatch_size": 1600,
            "num_epochs": 10,
            "entropy_coeff": 0.01,
        },
    },
    success=Success("messages understood", messages_understood),
    expected=Expected(mean_return=-11.3, std=1.7, num_seeds=3, minutes=8.3, random_return=-29.3, success=0.9),
)
