"""battle_v4: two armies fight by self-play with one policy."""

from __future__ import annotations

from typing import Any

from marl_connectors.callbacks import Success
from marl_connectors.zoo.games import OPPONENT
from marl_connectors.zoo.zoo_task import Expected, ZooTask


def battles_won(env: Any, episode: Any) -> float | None:
    """Returns 1 if more soldiers are left of the army that does not play at random than of the other one, else 0.

    None if both or none of the armies play at random, or for a battle that a sample has cut.
    """
    if episode.env_t_started:
        return None
    playing = {agent_id.partition("_")[0] for agent_id in episode.agent_ids if episode.module_for(agent_id) != OPPONENT}
    if len(playing) != 1:
        return None
    red, blue = (env.env.get_num(handle) for handle in env.handles)
    return float(red > blue if playing == {"red"} else blue > red)


TASK = ZooTask(
    name="battle_v4",
    env="magent2.environments.battle_v4",
    summary="Two small armies fight one another. All soldiers learn with one policy, by self-play.",
    needs="magent2",
    settings={
        "algo": "ppo",
        "policies": "shared",
        "eval_opponent": "random:red*,blue*",
        "steps": 600_000,
        "num_envs": 16,
        # With the penalty for an attack that hits nobody, -0.1 by default, both armies learn not to fight at all.
        "env_config": {"map_size": 12, "max_cycles": 200, "attack_penalty": -0.01},
        "hidden": [128, 128],
        "learner_connector": ["NormalizeRewards"],
        "training": {
            "lr": [[0, 7e-4], [2_400_000, 0.0]],  # it falls to three quarters
            "gamma": 0.98,
            "train_batch_size_per_learner": 8000,
            "minibatch_size": 1000,
            "num_epochs": 6,
            "entropy_coeff": [[0, 0.1], [2_400_000, 0.005]],
        },
    },
    success=Success("battles won against random", battles_won),
    success_needs_opponent=True,
    expected=Expected(mean_return=5.2, std=0.36, num_seeds=3, minutes=10.7, random_return=-1.5, success=1.0),
)
