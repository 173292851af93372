"""Every import of RLlib's documents works with ``ray.rllib.`` replaced by ``marl_connectors.``."""

import importlib

import pytest


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("algorithms.ppo", "PPOConfig"),
        ("algorithms.algorithm_config", "AlgorithmConfig"),
        ("connectors.connector_v2", "ConnectorV2"),
        ("connectors.connector_pipeline_v2", "ConnectorPipelineV2"),
        ("connectors.common.add_observations_from_episodes_to_batch", "AddObservationsFromEpisodesToBatch"),
        ("connectors.common.add_states_from_episodes_to_batch", "AddStatesFromEpisodesToBatch"),
        ("connectors.common.add_time_dim_to_batch_and_zero_pad", "AddTimeDimToBatchAndZeroPad"),
        ("connectors.common.agent_to_module_mapping", "AgentToModuleMapping"),
        ("connectors.common.batch_individual_items", "BatchIndividualItems"),
        ("connectors.common.module_to_agent_unmapping", "ModuleToAgentUnmapping"),
        ("connectors.common.numpy_to_tensor", "NumpyToTensor"),
        ("connectors.common.tensor_to_numpy", "TensorToNumpy"),
        ("connectors.module_to_env.get_actions", "GetActions"),
        ("connectors.module_to_env.listify_data_for_vector_env", "ListifyDataForVectorEnv"),
        ("connectors.module_to_env.normalize_and_clip_actions", "NormalizeAndClipActions"),
        ("connectors.module_to_env.remove_single_ts_time_rank_from_batch", "RemoveSingleTsTimeRankFromBatch"),
        ("connectors.module_to_env.unbatch_to_individual_items", "UnBatchToIndividualItems"),
        ("connectors.learner.add_columns_from_episodes_to_batch", "AddColumnsFromEpisodesToBatch"),
        ("connectors.learner.add_columns_from_episodes_to_train_batch", "AddColumnsFromEpisodesToTrainBatch"),
        ("connectors.learner.general_advantage_estimation", "GeneralAdvantageEstimation"),
        ("core.columns", "Columns"),
        ("core.learner.learner", "Learner"),
        ("core.rl_module.default_model_config", "DefaultModelConfig"),
        ("core.rl_module.multi_rl_module", "MultiRLModule"),
        ("core.rl_module.rl_module", "RLModule"),
        ("core.rl_module.rl_module", "RLModuleSpec"),
        ("env.env_runner", "EnvRunner"),
        ("env.multi_agent_env_runner", "MultiAgentEnvRunner"),
        ("env.multi_agent_episode", "MultiAgentEpisode"),
        ("env.single_agent_env_runner", "SingleAgentEnvRunner"),
        ("env.single_agent_episode", "SingleAgentEpisode"),
    ],
)
def test_a_documented_import_works(module, name):
    assert hasattr(importlib.import_module(f"marl_connectors.{module}"), name)


def test_a_name_is_the_same_object_by_every_path():
    import marl_connectors
    from marl_connectors.core.columns import Columns
    from marl_connectors.core.rl_module.multi_rl_module import MultiRLModule
    from marl_connectors.env.multi_agent_episode import MultiAgentEpisode

    assert marl_connectors.Columns is Columns
    assert marl_connectors.MultiRLModule is MultiRLModule
    assert marl_connectors.MultiAgentEpisode is MultiAgentEpisode
