"""Every import of RLlib's documents works with ``ray.rllib.`` replaced by ``marl_connectors.``."""

import ast
import importlib
from pathlib import Path

import pytest

import marl_connectors

STUBS = {
    "algorithms.algorithm_config": ["AlgorithmConfig"],
    "core.columns": ["Columns"],
    "core.learner": ["Learner"],
    "core.learner.learner": ["Learner"],
    "core.learner.learner_group": ["LearnerGroup"],
    "core.rl_module": ["RLModule", "RLModuleSpec"],
    "core.rl_module.default_model_config": ["DefaultModelConfig"],
    "core.rl_module.multi_rl_module": ["MultiRLModule", "MultiRLModuleSpec"],
    "core.rl_module.rl_module": ["RLModule", "RLModuleSpec"],
    "env.env_runner": ["EnvRunner"],
    "env.env_runner_group": ["EnvRunnerGroup"],
    "env.multi_agent_env_runner": ["MultiAgentEnvRunner"],
    "env.multi_agent_episode": ["MultiAgentEpisode"],
    "env.single_agent_env_runner": ["SingleAgentEnvRunner"],
    "env.single_agent_episode": ["SingleAgentEpisode"],
}
"""RLlib's paths at which this library has other files: stubs with a docstring and one import for each name."""

PACKAGE = Path(marl_connectors.__file__).parent


def stub_file(module):
    path = PACKAGE.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


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
        ("core.learner.learner_group", "LearnerGroup"),
        ("core.rl_module.default_model_config", "DefaultModelConfig"),
        ("core.rl_module.multi_rl_module", "MultiRLModule"),
        ("core.rl_module.rl_module", "RLModule"),
        ("core.rl_module.rl_module", "RLModuleSpec"),
        ("env.env_runner", "EnvRunner"),
        ("env.env_runner_group", "EnvRunnerGroup"),
        ("env.multi_agent_env_runner", "MultiAgentEnvRunner"),
        ("env.multi_agent_episode", "MultiAgentEpisode"),
        ("env.single_agent_env_runner", "SingleAgentEnvRunner"),
        ("env.single_agent_episode", "SingleAgentEpisode"),
    ],
)
def test_a_documented_import_works(module, name):
    assert hasattr(importlib.import_module(f"marl_connectors.{module}"), name)


@pytest.mark.parametrize("module", STUBS)
def test_a_stub_imports_each_name_from_the_module_that_defines_it(module):
    docstring, *imports = ast.parse(stub_file(module).read_text()).body
    assert ast.unparse(docstring)[1:].startswith("RLlib's path")
    found = {}
    for statement in imports:
        assert isinstance(statement, ast.ImportFrom), ast.unparse(statement)
        for name in statement.names:
            assert name.asname == name.name  # a re-export
            found[name.name] = statement.module
    assert list(found) == STUBS[module]
    for name, origin in found.items():
        assert getattr(marl_connectors, name).__module__ == origin


def test_the_table_has_all_stubs():
    starts = ('"""RLlib\'s path to ', '"""RLlib\'s paths to ``')
    found = {path for path in PACKAGE.rglob("*.py") if path.read_text().startswith(starts)}
    assert found == set(map(stub_file, STUBS))


def test_a_name_is_the_same_object_by_every_path():
    from marl_connectors.core.columns import Columns
    from marl_connectors.core.rl_module.multi_rl_module import MultiRLModule
    from marl_connectors.env.multi_agent_episode import MultiAgentEpisode

    assert marl_connectors.Columns is Columns
    assert marl_connectors.MultiRLModule is MultiRLModule
    assert marl_connectors.MultiAgentEpisode is MultiAgentEpisode
