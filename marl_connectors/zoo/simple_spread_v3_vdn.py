"""simple_spread_v3 with VDN: three agents cover three landmarks, without bumping into one another."""

from __future__ import annotations

from marl_connectors.callbacks import Success
from marl_connectors.zoo.simple_spread_v3 import landmarks_covered
from marl_connectors.zoo.zoo_task import Expected, ZooTask

TASK = ZooTask(
    name="simple_spread_v3/vdn",
    env="mpe2.simple_spread_v3",
    summary="Three agents cover three landmarks, without bumping into one another.",
    needs="mpe2",
    settings={
        "algo": "vdn",
        "policies": "shared",
        "steps": 3_600_000,
        "num_envs": 32,
        "hidden": [128, 128],
        "activation": "relu",
        "env_to_module": ["AgentIdEncoding"],
        "training": {
            "lr": [[0, 1e-3], [3_600_000, 1e-4]],
            "gamma": 0.95,
            "epsilon": [[0, 1.0], [180_000, 0.05], [3_600_000, 0.02]],
            "replay_buffer_config": {"type": "TeamReplayBuffer", "capacity": 200_000},
        },
    },
    success=Success("landmarks covered", landmarks_covered),
    expected=Expected(
        mean_return=-9.7,
        std=0.4,
        num_seeds=3,
        minutes=24.3,
        random_return=-26.0,
        success=0.76,
        published=-9.3,
        source="VDN in the usual cooperative benchmark's table, converted by (x - (-75)) / 6",
    ),
)
