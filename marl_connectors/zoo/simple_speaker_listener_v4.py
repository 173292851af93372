"""simple_speaker_listener_v4: a speaker knows which landmark is the goal, and a listener goes there."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.callbacks import Success
from marl_connectors.zoo.zoo_task import Expected, ZooTask


def message_understood(env: Any, episode: Any) -> float:
    """Returns 1 if the listener is closer to its goal than to any other landmark."""
    speaker, listener = env.world.agents
    landmarks = np.array([landmark.state.p_pos for landmark in env.world.landmarks])
    nearest = np.linalg.norm(landmarks - listener.state.p_pos, axis=1).argmin()
    return float(env.world.landmarks[nearest] is speaker.goal_b)


TASK = ZooTask(
    name="simple_speaker_listener_v4",
    env="mpe2.simple_speaker_listener_v4",
    summary="A listener goes to the landmark that a speaker names, in a language that both have to agree on.",
    needs="mpe2",
    settings={
        "algo": "mappo",
        "policies": "independent",
        "steps": 500_000,
        "num_envs": 64,
        "hidden": [128, 128],
        "activation": "relu",
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 1e-3], [1_000_000, 0.0]],  # it falls to half
            "gamma": 0.95,
            "train_batch_size_per_learner": 3200,
            "minibatch_size": 400,
            "num_epochs": 10,
            # With less at first, one seed of three came to understand only 60 % of the messages.
            "entropy_coeff": [[0, 0.1], [400_000, 0.01], [1_000_000, 0.0]],
        },
    },
    success=Success("messages understood", message_understood),
    expected=Expected(
        mean_return=-7.6,
        std=1.4,
        num_seeds=5,
        minutes=2.1,
        random_return=-42.8,
        success=0.99,
    ),
)
