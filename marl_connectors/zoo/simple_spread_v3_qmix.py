"""simple_spread_v3 with QMIX: three agents cover three landmarks, without bumping into one another."""

from __future__ import annotations

from marl_connectors.callbacks import Success
from marl_connectors.zoo.simple_spread_v3 import landmarks_covered
from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="simple_spread_v3/qmix",
    env="mpe2.simple_spread_v3",
    summary="Three agents cover three landmarks, without bumping into one another.",
    needs="mpe2",
    settings={
        "algo": "qmix",
        "policies": "shared",
        "steps": 3_600_000,
        "num_envs": 32,
        "hidden": [64, 64],
        "activation": "relu",
        "env_to_module": ["AgentIdEncoding"],
        # About the mean reward is added, so that the mixer's units do not begin saturated by large negative values.
        "learner_connector": ["ScaleRewards:shift=0.6"],
        "training": {
            "lr": [[0, 5e-4], [3_600_000, 1e-4]],
            # With gamma=0.95, values diverged: those of the last observations, which are only ever bootstrapped from,
            # grow with the distances between agents, and the targets of the others with them.
            "gamma": 0.9,
            "n_step": 3,
            "target_network_update_freq": 9600,
            "tau": 1.0,
            "epsilon": [[0, 1.0], [180_000, 0.05], [3_600_000, 0.02]],
            "replay_buffer_config": {"type": "TeamReplayBuffer", "capacity": 200_000},
        },
    },
    success=Success("landmarks covered", landmarks_covered),
    expected=Expected(
        mean_return=-9.8,
        std=0.1,
        num_seeds=3,
        minutes=34.3,
        random_return=-26.0,
        success=0.77,
        published=-8.6,
        source="QMIX in the usual cooperative benchmark's table, converted by (x - (-75)) / 6",
    ),
)
