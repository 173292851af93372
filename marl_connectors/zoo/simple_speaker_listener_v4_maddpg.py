"""simple_speaker_listener_v4 with MADDPG: a speaker knows which landmark is the goal, and a listener goes there."""

from __future__ import annotations

from marl_connectors.callbacks import Success
from marl_connectors.zoo.simple_speaker_listener_v4 import message_understood
from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="simple_speaker_listener_v4/maddpg",
    env="mpe2.simple_speaker_listener_v4",
    summary="A listener goes to the landmark that a speaker names, in a language that both have to agree on.",
    needs="mpe2",
    settings={
        "algo": "maddpg",
        "policies": "independent",
        "steps": 400_000,
        "num_envs": 16,
        "hidden": [128, 128],
        "activation": "relu",
        "training": {
            "actor_lr": 1e-3,
            "critic_lr": 2e-3,
            "training_intensity": 40.0,
            "rollout_fragment_length": 25,
        },
    },
    success=Success("messages understood", message_understood),
    expected=Expected(mean_return=-7.8, std=1.5, num_seeds=3, minutes=11.0, random_return=-41.9, success=0.97),
)
