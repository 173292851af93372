"""RLlib's path to ``marl_connectors.episodes.single_agent_episode``."""

from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode as SingleAgentEpisode
