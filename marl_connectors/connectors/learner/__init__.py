"""Pieces of learner pipelines. A name is imported when it is first used."""

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
    from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor as NumpyToTensor
    from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
        AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
    )
    from marl_connectors.connectors.learner.add_env_states_from_episodes_to_train_batch import (
        AddEnvStatesFromEpisodesToTrainBatch as AddEnvStatesFromEpisodesToTrainBatch,
    )
    from marl_connectors.connectors.learner.add_infos_from_episodes_to_train_batch import (
        AddInfosFromEpisodesToTrainBatch as AddInfosFromEpisodesToTrainBatch,
    )
    from marl_connectors.connectors.learner.add_joint_observations_from_episodes_to_train_batch import (
        AddJointObservationsFromEpisodesToTrainBatch as AddJointObservationsFromEpisodesToTrainBatch,
    )
    from marl_connectors.connectors.learner.add_next_observations_from_episodes_to_train_batch import (
        AddNextObservationsFromEpisodesToTrainBatch as AddNextObservationsFromEpisodesToTrainBatch,
    )
    from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import (
        AddOneTsToEpisodesAndTruncate as AddOneTsToEpisodesAndTruncate,
    )
    from marl_connectors.connectors.learner.clip_rewards import ClipRewards as ClipRewards
    from marl_connectors.connectors.learner.compute_returns_to_go import ComputeReturnsToGo as ComputeReturnsToGo
    from marl_connectors.connectors.learner.general_advantage_estimation import (
        GeneralAdvantageEstimation as GeneralAdvantageEstimation,
    )
    from marl_connectors.connectors.learner.learner_connector_pipeline import (
        LearnerConnectorPipeline as LearnerConnectorPipeline,
    )
    from marl_connectors.connectors.learner.normalize_rewards import NormalizeRewards as NormalizeRewards
    from marl_connectors.connectors.learner.scale_rewards import ScaleRewards as ScaleRewards

__getattr__, __dir__, __all__ = re_exports(
    __name__,
    "AddColumnsFromEpisodesToTrainBatch",
    "AddEnvStatesFromEpisodesToTrainBatch",
    "AddInfosFromEpisodesToTrainBatch",
    "AddJointObservationsFromEpisodesToTrainBatch",
    "AddNextObservationsFromEpisodesToTrainBatch",
    "AddObservationsFromEpisodesToBatch",
    "AddOneTsToEpisodesAndTruncate",
    "AddStatesFromEpisodesToBatch",
    "AddTimeDimToBatchAndZeroPad",
    "AgentToModuleMapping",
    "BatchIndividualItems",
    "ClipRewards",
    "ComputeReturnsToGo",
    "GeneralAdvantageEstimation",
    "LearnerConnectorPipeline",
    "NormalizeRewards",
    "NumpyToTensor",
    "ScaleRewards",
)
