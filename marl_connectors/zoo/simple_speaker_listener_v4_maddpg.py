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
        "steps": 500_000,
        "num_envs": 4,
        "hidden": [64, 64],
        "activation": "relu",
        "training": {"training_intensity": 10.0, "num_steps_sampled_before_learning_starts": 1024},
    },
    success=Success("messages understood", message_understood),
    expected=Expected(mean_return=-9.0, std=1.0, num_seeds=3, minutes=4.0, random_return=-42.8),
)
