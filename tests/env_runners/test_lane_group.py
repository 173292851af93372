"""What a lane carries from one chunk of an episode to the next."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from marl_connectors import PPOConfig
from marl_connectors.env_runners.lane_group import LaneGroup


def test_short_chunks_keep_as_much_lookback_as_long_ones():
    config = PPOConfig().environment("marl_envs.match_v0", env_config={"n_agents": 2, "ep_len": 9})
    config.env_runners(num_envs_per_env_runner=1, episode_lookback_horizon=3)
    runner = config.rl_module(model_config={"fcnet_hiddens": [2]}).build_algo().env_runner
    kept, times = [], []
    for _ in range(6):
        (chunk,) = runner.sample(num_timesteps=1)
        (agent,) = {(own.t_started, own.storage.lookback) for own in chunk.agent_episodes.values()}
        kept.append(agent)
        times.append(chunk.agent_episodes["agent_0"].storage.column("t").tolist())
    assert kept == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (5, 3)]
    assert times == [[0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [1, 2, 3, 4, 5], [2, 3, 4, 5, 6]]


def test_nothing_of_an_agent_that_has_left_comes_along_into_the_next_fragment():
    box = spaces.Box(-9.0, 9.0, (1,), np.float32)
    group = LaneGroup(0, box, spaces.Discrete(2), lookback=1)
    group.open([(0, "a", "m"), (0, "b", "m")])
    group.sort(np.array([0]))
    group.select(["m"], 2)
    group.rollout.observe(group.positions, np.array([[3.0], [4.0]], np.float32), 5)
    group.rollout.infos[int(group.rollout.cursor[1])] = {"of": "b"}
    group.close(np.array([1]))
    group.sort(np.array([0]))
    group.select(["m"], 2)
    group.restart(3)
    rollout = group.rollout
    assert rollout.columns["t"].reshape(-1, 2)[:2].tolist() == [[-1, -1], [5, -1]]
    assert rollout.columns["obs"].reshape(-1, 2)[:2].tolist() == [[0, 0], [3, 0]]
    assert rollout.infos == {}
    (lane,) = group.open([(0, "c", "m")])
    assert (lane.number, lane.row, group.t_started[1], group.carried.tolist()) == (1, 1, 0, [True, False])
