"""recall_v0: two agents name a cue that they saw four steps before. Only a policy with a memory can."""

from __future__ import annotations

from typing import Any

import numpy as np

from marl_connectors.callbacks import Success
from marl_connectors.zoo.zoo_task import Expected, ZooTask


def cues_recalled(env: Any, episode: Any) -> float | None:
    """Returns the share of questions that the agents have answered with their cue, which has the reward 1.

    None for an episode that a sample has cut, because only its end is known here.
    """
    if episode.env_t_started:
        return None
    returns = [agent_episode.get_return() for agent_episode in episode.agent_episodes.values()]
    return float(np.mean(returns)) / env.n_trials


TASK = ZooTask(
    name="recall_v0",
    env="marl_envs.recall_v0",
    summary="Two agents name a cue that they saw four steps before, which only a policy with a memory can do.",
    settings={
        "policies": "shared",
        "steps": 100_000,
        "num_envs": 8,
        "env_config": {"delay": 3},
        "hidden": [32],
        "model": {"use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 20},
        "training": {
            "lr": 3e-3,
            "train_batch_size_per_learner": 4096,
            "minibatch_size": 1024,
            "num_epochs": 6,
        },
    },
    success=Success("cues recalled", cues_recalled),
    expected=Expected(mean_return=2.0, std=0.0, num_seeds=3, minutes=0.2, random_return=0.67, success=1.0),
)
