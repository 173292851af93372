"""RLlib's names of types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from marl_connectors.typing import AgentID as AgentID
from marl_connectors.typing import EpisodeID as EpisodeID
from marl_connectors.typing import ModuleID as ModuleID

if TYPE_CHECKING:
    from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
    from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode

EpisodeType: TypeAlias = "SingleAgentEpisode | MultiAgentEpisode"
MultiAgentDict: TypeAlias = dict[AgentID, Any]
NetworkType: TypeAlias = Any
ResultDict: TypeAlias = dict[str, Any]
TensorType: TypeAlias = Any
"""A numpy array or a torch tensor."""
