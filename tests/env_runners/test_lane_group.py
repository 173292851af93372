"""What a lane carries from one chunk of an episode to the next."""

from __future__ import annotations

from marl_connectors import PPOConfig


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
