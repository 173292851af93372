"""Pieces of several kinds of pipeline. A name is imported when it is first used."""

from typing import TYPE_CHECKING

from marl_connectors.re_exports import re_exports

if TYPE_CHECKING:
    from marl_connectors.connectors.common.add_observations_from_episodes_to_batch import (
        AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
    )
    from marl_connectors.connectors.common.add_states_from_episodes_to_batch import (
        AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch,
    )
    from marl_connectors.connectors.common.add_time_dim_to_batch_and_zero_pad import (
        AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad,
    )
    from marl_connectors.connectors.common.agent_to_module_mapping import AgentToModuleMapping as AgentToModuleMapping
    from marl_connectors.connectors.common.batch_individual_items import BatchIndividualItems as BatchIndividualItems
    from marl_connectors.connectors.common.flatten_observations import FlattenObservations as FlattenObservations
    from marl_connectors.connectors.common.frame_stacking import FrameStacking as FrameStacking
    from marl_connectors.connectors.common.module_to_agent_unmapping import (
        ModuleToAgentUnmapping as ModuleToAgentUnmapping,
    )
    from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor as NumpyToTensor
    from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy as TensorToNumpy

__getattr__, __dir__, __all__ = re_exports(
    __name__,
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping",
    "BatchIndividualItems",
    "FlattenObservations",
    "FrameStacking",
    "ModuleToAgentUnmapping",
    "NumpyToTensor",
    "TensorToNumpy",
)
