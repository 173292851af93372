"""RLlib's import path of replay buffers."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.replay_buffers.episode_replay_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
    from marl_connectors.replay_buffers.episode_replay_buffer import (
        MultiAgentEpisodeReplayBuffer as MultiAgentEpisodeReplayBuffer,
    )
    from marl_connectors.replay_buffers.prioritized_episode_replay_buffer import (
        MultiAgentPrioritizedEpisodeReplayBuffer as MultiAgentPrioritizedEpisodeReplayBuffer,
    )
    from marl_connectors.replay_buffers.prioritized_episode_replay_buffer import (
        PrioritizedEpisodeReplayBuffer as PrioritizedEpisodeReplayBuffer,
    )

__getattr__, __dir__, __all__ = re_exports(
    __name__,
    "EpisodeReplayBuffer",
    "MultiAgentEpisodeReplayBuffer",
    "MultiAgentPrioritizedEpisodeReplayBuffer",
    "PrioritizedEpisodeReplayBuffer",
)
