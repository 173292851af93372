"""RLlib's path to ``marl_connectors.episodes.multi_agent_episode``."""

from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode as MultiAgentEpisode
