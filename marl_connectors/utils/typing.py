"""RLlib's names of types."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeAlias

from marl_connectors.typing import AgentID as AgentID
from marl_connectors.typing import EpisodeID as EpisodeID
from marl_connectors.typing import ModuleID as ModuleID

if TYPE_CHECKING:
    import torch

    from marl_connectors.episodes.multi_agent_episode import MultiAgentEpisode
    from marl_connectors.episodes.single_agent_episode import SingleAgentEpisode
    from marl_connectors.ops.schedule import Schedule
    from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec
    from marl_connectors.rl_module.rl_module import RLModuleSpec

AgentToModuleMappingFn: TypeAlias = "Callable[[AgentID, EpisodeType], ModuleID]"
DeviceType: TypeAlias = "str | torch.device"
EnvConfigDict: TypeAlias = dict[str, Any]
EnvType: TypeAlias = Any
EnvCreator: TypeAlias = Callable[[EnvConfigDict], EnvType]
EpisodeType: TypeAlias = "SingleAgentEpisode | MultiAgentEpisode"
LearningRateOrSchedule: TypeAlias = "Schedule"
MultiAgentDict: TypeAlias = dict[AgentID, Any]
NetworkType: TypeAlias = Any
Optimizer: TypeAlias = "torch.optim.Optimizer"
Param: TypeAlias = "torch.Tensor"
NamedParamDict: TypeAlias = "dict[str, Param]"
PolicyID: TypeAlias = ModuleID
ResultDict: TypeAlias = dict[str, Any]
RLModuleSpecType: TypeAlias = "RLModuleSpec | MultiRLModuleSpec"
ShouldModuleBeUpdatedFn: TypeAlias = Collection[ModuleID] | Callable[..., bool]
StateDict: TypeAlias = dict[str, Any]
TensorType: TypeAlias = Any
"""A numpy array or a torch tensor."""
TensorStructType: TypeAlias = Any
"""A ``TensorType``, or a dict or tuple of these."""
