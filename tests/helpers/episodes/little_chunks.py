"""Chunks of one agent's episode whose every number is known."""

import numpy as np
from gymnasium import spaces

from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

OBS, ACT = spaces.Box(-99.0, 99.0, (1,), np.float32), spaces.Discrete(9)


def chunk(module_id, first, steps, lookback=0, **extra):
    """Observations ``first``, ``first + 1``, ...; actions 1, 2, ...; rewards 0.5, 1.5, ..."""
    total = lookback + steps
    return SingleAgentEpisode(
        f"{module_id}{first}",
        observations=[np.array([first + i], np.float32) for i in range(total + 1)],
        actions=[i + 1 for i in range(total)],
        rewards=[i + 0.5 for i in range(total)],
        extra_model_outputs={name: [value] * total for name, value in extra.items()},
        observation_space=OBS,
        action_space=ACT,
        len_lookback_buffer=lookback,
        module_id=module_id,
        agent_id="a",
        multi_agent_episode_id="g",
    )
