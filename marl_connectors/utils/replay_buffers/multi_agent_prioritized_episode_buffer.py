"""RLlib's path to ``marl_connectors.replay_buffers.prioritized_episode_replay_buffer``."""

from marl_connectors.replay_buffers.prioritized_episode_replay_buffer import (
    MultiAgentPrioritizedEpisodeReplayBuffer as MultiAgentPrioritizedEpisodeReplayBuffer,
)
