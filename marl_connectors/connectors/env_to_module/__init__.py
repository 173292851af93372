"""Pieces of env-to-module pipelines. A name is imported when it is first used."""

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
    from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor as NumpyToTensor
    from marl_connectors.connectors.env_to_module.action_masking import ActionMasking as ActionMasking
    from marl_connectors.connectors.env_to_module.agent_id_encoding import AgentIdEncoding as AgentIdEncoding
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import (
        EnvToModulePipeline as EnvToModulePipeline,
    )
    from marl_connectors.connectors.env_to_module.image_to_float import ImageToFloat as ImageToFloat
    from marl_connectors.connectors.env_to_module.mean_std_filter import MeanStdFilter as MeanStdFilter
    from marl_connectors.connectors.env_to_module.observation_preprocessor import (
        MultiAgentObservationPreprocessor as MultiAgentObservationPreprocessor,
    )
    from marl_connectors.connectors.env_to_module.observation_preprocessor import (
        ObservationPreprocessor as ObservationPreprocessor,
    )
    from marl_connectors.connectors.env_to_module.observation_preprocessor import (
        SingleAgentObservationPreprocessor as SingleAgentObservationPreprocessor,
    )
    from marl_connectors.connectors.env_to_module.one_hot_observations import OneHotObservations as OneHotObservations
    from marl_connectors.connectors.env_to_module.pad_observations import PadObservations as PadObservations
    from marl_connectors.connectors.env_to_module.prev_actions_prev_rewards import (
        PrevActionsPrevRewards as PrevActionsPrevRewards,
    )
    from marl_connectors.connectors.env_to_module.time_limit_encoding import TimeLimitEncoding as TimeLimitEncoding
    from marl_connectors.connectors.env_to_module.write_observations_to_episodes import (
        WriteObservationsToEpisodes as WriteObservationsToEpisodes,
    )

__getattr__, __dir__, __all__ = re_exports(
    __name__,
    "ActionMasking",
    "AddObservationsFromEpisodesToBatch",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AgentIdEncoding",
    "AgentToModuleMapping",
    "BatchIndividualItems",
    "EnvToModulePipeline",
    "FlattenObservations",
    "ImageToFloat",
    "MeanStdFilter",
    "MultiAgentObservationPreprocessor",
    "NumpyToTensor",
    "ObservationPreprocessor",
    "OneHotObservations",
    "PadObservations",
    "PrevActionsPrevRewards",
    "SingleAgentObservationPreprocessor",
    "TimeLimitEncoding",
    "WriteObservationsToEpisodes",
)
