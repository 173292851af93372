"""Builds the three default pipelines, with the user's pieces where RLlib puts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from gymnasium import Space

from marl_connectors.connectors.builder_arguments import num_arguments
from marl_connectors.connectors.common.add_observations_from_episodes_to_batch import (
    AddObservationsFromEpisodesToBatch,
)
from marl_connectors.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
from marl_connectors.connectors.common.add_time_dim_to_batch_and_zero_pad import AddTimeDimToBatchAndZeroPad
from marl_connectors.connectors.common.agent_to_module_mapping import AgentToModuleMapping
from marl_connectors.connectors.common.batch_individual_items import BatchIndividualItems
from marl_connectors.connectors.common.module_to_agent_unmapping import ModuleToAgentUnmapping
from marl_connectors.connectors.common.numpy_to_tensor import NumpyToTensor
from marl_connectors.connectors.common.tensor_to_numpy import TensorToNumpy
from marl_connectors.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from marl_connectors.connectors.connector_v2 import ConnectorV2
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_one_ts_to_episodes_and_truncate import AddOneTsToEpisodesAndTruncate
from marl_connectors.connectors.learner.clip_rewards import ClipRewards
from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
from marl_connectors.connectors.module_to_env.get_actions import GetActions
from marl_connectors.connectors.module_to_env.listify_data_for_vector_env import ListifyDataForVectorEnv
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from marl_connectors.connectors.module_to_env.remove_single_ts_time_rank_from_batch import (
    RemoveSingleTsTimeRankFromBatch,
)
from marl_connectors.connectors.module_to_env.unbatch_to_individual_items import UnBatchToIndividualItems
from marl_connectors.errors import ConfigError

DEFAULT_PIECES = (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    AddStatesFromEpisodesToBatch,
    AgentToModuleMapping,
    BatchIndividualItems,
    NumpyToTensor,
    GetActions,
    TensorToNumpy,
    UnBatchToIndividualItems,
    ModuleToAgentUnmapping,
    RemoveSingleTsTimeRankFromBatch,
    NormalizeAndClipActions,
    ListifyDataForVectorEnv,
    AddOneTsToEpisodesAndTruncate,
    AddColumnsFromEpisodesToTrainBatch,
)
"""The classes of the default pieces. None of them writes to episodes."""

Builder = Callable[..., ConnectorV2 | Sequence[ConnectorV2]]


def env_to_module_pipeline(
    custom: Sequence[ConnectorV2] = (),
    *,
    multi_agent: bool,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    device: torch.device | str | None = None,
    add_defaults: bool = True,
    stateful: bool = False,
) -> EnvToModulePipeline:
    """Builds an env-to-module pipeline: custom pieces first, then the defaults."""
    pieces = list(custom)
    if add_defaults:
        pieces.append(AddObservationsFromEpisodesToBatch())
        pieces += [AgentToModuleMapping()] if multi_agent else []
        pieces += [BatchIndividualItems(multi_agent=multi_agent), NumpyToTensor(device=device)]
    pipeline = EnvToModulePipeline(observation_space, action_space, connectors=pieces)
    if add_defaults and stateful:
        add_state_pieces(pipeline)
    return pipeline


def module_to_env_pipeline(
    custom: Sequence[ConnectorV2] = (),
    *,
    multi_agent: bool,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    normalize_actions: bool = True,
    clip_actions: bool = False,
    add_defaults: bool = True,
    stateful: bool = False,
) -> ModuleToEnvPipeline:
    """Builds a module-to-env pipeline: the defaults, with custom pieces before NormalizeAndClipActions."""
    if not add_defaults:
        return ModuleToEnvPipeline(observation_space, action_space, connectors=custom)
    pieces: list[ConnectorV2] = [
        GetActions(defer_logp=not custom),
        TensorToNumpy(),
        UnBatchToIndividualItems(multi_agent=multi_agent),
    ]
    pieces += [ModuleToAgentUnmapping()] if multi_agent else []
    pieces += [
        *custom,
        NormalizeAndClipActions(normalize_actions=normalize_actions, clip_actions=clip_actions),
        ListifyDataForVectorEnv(),
    ]
    pipeline = ModuleToEnvPipeline(observation_space, action_space, connectors=pieces)
    if stateful:
        add_state_pieces(pipeline)
    return pipeline


def learner_pipeline(
    custom: Sequence[ConnectorV2] = (),
    *,
    multi_agent: bool,
    observation_space: Space | None = None,
    action_space: Space | None = None,
    device: torch.device | str | None = None,
    clip_rewards: bool | float | None = None,
    of_algorithm: Sequence[ConnectorV2] = (),
    add_defaults: bool = True,
    stateful: bool = False,
) -> LearnerConnectorPipeline:
    """Builds a learner pipeline: AddOneTsToEpisodesAndTruncate, custom pieces, then the other defaults.

    ``of_algorithm`` are an algorithm's pieces that add columns. Algorithms append other pieces, such as
    GeneralAdvantageEstimation, to the pipeline.
    """
    pieces = list(custom)
    if add_defaults:
        pieces.insert(0, AddOneTsToEpisodesAndTruncate())
        pieces += [AddObservationsFromEpisodesToBatch(as_learner_connector=True), AddColumnsFromEpisodesToTrainBatch()]
        pieces += of_algorithm
        pieces += [ClipRewards(clip_rewards=clip_rewards)] if clip_rewards else []
        pieces += [AgentToModuleMapping()] if multi_agent else []
        pieces += [BatchIndividualItems(multi_agent=multi_agent), NumpyToTensor(device=device)]
    pipeline = LearnerConnectorPipeline(observation_space, action_space, connectors=pieces)
    if add_defaults and stateful:
        add_state_pieces(pipeline)
    return pipeline


def add_state_pieces(pipeline: ConnectorPipelineV2) -> None:
    """Adds the pieces that only stateful modules need to a default pipeline, unless it has them already."""
    names = pipeline.names()
    if isinstance(pipeline, ModuleToEnvPipeline):
        if RemoveSingleTsTimeRankFromBatch.__name__ not in names:
            unmapped = ModuleToAgentUnmapping if ModuleToAgentUnmapping.__name__ in names else UnBatchToIndividualItems
            pipeline.insert_after(unmapped, RemoveSingleTsTimeRankFromBatch())
        return
    train = isinstance(pipeline, LearnerConnectorPipeline)
    sorting = AgentToModuleMapping if AgentToModuleMapping.__name__ in names else BatchIndividualItems
    for piece in (AddTimeDimToBatchAndZeroPad, AddStatesFromEpisodesToBatch):
        if piece.__name__ not in names:
            pipeline.insert_before(sorting, piece(as_learner_connector=train))


def call_builder(setting: str, builder: Builder | None, *arguments: Any) -> list[ConnectorV2]:
    """Returns the pieces that a user's builder function returns.

    The function gets as many of ``arguments`` as it has positional parameters. A parameter with a default gets an
    argument only if it is named like one: ``lambda env, n=n: ...`` gets the environment alone.

    Args:
        setting: The name of the setting that the builder was given as, for messages.
        builder: The user's function, or None.
        *arguments: The arguments for builders of this kind, the most important first.

    Raises:
        ConfigError: If the function needs more arguments than there are, or returns anything but pieces.
    """
    if builder is None:
        return []
    made = builder(*arguments[: num_arguments(setting, builder, len(arguments))])
    if made is None:
        return []
    pieces = list(made) if isinstance(made, Iterable) and not isinstance(made, ConnectorV2) else [made]
    for piece in pieces:
        if not isinstance(piece, ConnectorV2):
            raise ConfigError(f"{setting}: the function must return a ConnectorV2 or a list of them, not {piece!r}.")
    return pieces
