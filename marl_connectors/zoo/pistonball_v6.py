"""pistonball_v6: twenty pistons roll a ball to the left wall."""

from __future__ import annotations

from typing import Any

from marl_connectors.callbacks import Success
from marl_connectors.zoo.zoo_task import Expected, ZooTask


def wall_reached(env: Any, episode: Any) -> float:
    """Returns 1 if the ball has reached the left wall."""
    return float(env.terminate)


TASK = ZooTask(
    name="pistonball_v6",
    env="pettingzoo.butterfly.pistonball_v6",
    summary="Twenty pistons in a row, each of which sees a small part of the picture, roll a ball to the left wall.",
    needs="pettingzoo[butterfly] supersuit",
    settings={
        "algo": "ppo",
        "policies": "shared",
        "steps": 600_000,
        "eval_explore": True,
        "num_envs": 8,
        # Without a render mode, PettingZoo 1.27 does not draw, and the picture stays the same in the whole episode.
        "env_config": {"render_mode": "rgb_array"},
        # Red is the colour in which the ball and the pistons differ most from the background.
        "wrappers": ["color_reduction_v0:R", "resize_v1:12,46"],
        # The pictures of 46 x 12 pixels are small enough to be read as vectors.
        "env_to_module": ["ImageToFloat", "FlattenObservations", "AgentIdEncoding"],
        "hidden": [64, 64],
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 1e-3], [750_000, 0.0]],  # it falls to a fifth
            "gamma": 0.97,
            "lambda_": 0.95,
            "train_batch_size_per_learner": 10_000,
            "minibatch_size": 1000,
            "num_epochs": 8,
            "entropy_coeff": 0.0,
        },
    },
    success=Success("balls at the left wall", wall_reached),
    expected=Expected(
        mean_return=95.3,
        std=0.6,
        num_seeds=3,
        minutes=23.3,
        random_return=-5.1,
        success=1.0,
    ),
)
