"""RLlib's path to ``marl_connectors.replay_buffers.episode_replay_buffer``."""

from marl_connectors.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
