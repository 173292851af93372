"""Every import of RLlib's documents works with ``ray.rllib.`` replaced by ``marl_connectors.``."""

import ast
import importlib
import importlib.util
import json
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import marl_connectors
from marl_connectors.import_paths import NOT_HERE, PATHS, NothingFound, import_lines

PACKAGE = Path(marl_connectors.__file__).parent
REPOSITORY = Path(__file__).resolve().parents[1]

RE_EXPORTING = [path for path in sorted(PACKAGE.rglob("*.py")) if "= re_exports(" in path.read_text()]
"""The packages whose names are imported when they are first used."""


def name_of(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


NAMES_OF_RLLIB = {
    "algorithms": "Algorithm AlgorithmConfig BC BCConfig DQN DQNConfig MARWIL MARWILConfig PPO PPOConfig SAC SACConfig",
    "algorithms.algorithm": "Algorithm",
    "algorithms.algorithm_config": "AlgorithmConfig NotProvided",
    "algorithms.bc": "BC BCConfig",
    "algorithms.bc.bc": "BC BCConfig",
    "algorithms.bc.torch.default_bc_torch_rl_module": "DefaultBCTorchRLModule",
    "algorithms.callbacks": "RLlibCallback",
    "algorithms.dqn": "DQN DQNConfig",
    "algorithms.dqn.default_dqn_rl_module": "DefaultDQNRLModule QF_PREDS",
    "algorithms.dqn.dqn": "DQN DQNConfig",
    "algorithms.dqn.dqn_learner": "DQNLearner QF_LOSS_KEY QF_MEAN_KEY QF_PREDS TD_ERROR_MEAN_KEY",
    "algorithms.dqn.torch.default_dqn_torch_rl_module": "DefaultDQNTorchRLModule",
    "algorithms.dqn.torch.dqn_torch_learner": "DQNTorchLearner",
    "algorithms.marwil": "MARWIL MARWILConfig",
    "algorithms.marwil.marwil": "MARWIL MARWILConfig",
    "algorithms.marwil.marwil_learner": "MARWILLearner",
    "algorithms.marwil.torch.marwil_torch_learner": "MARWILTorchLearner",
    "algorithms.ppo": "PPO PPOConfig",
    "algorithms.ppo.default_ppo_rl_module": "DefaultPPORLModule",
    "algorithms.ppo.ppo": "LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY LEARNER_RESULTS_CURR_KL_COEFF_KEY "
    "LEARNER_RESULTS_KL_KEY LEARNER_RESULTS_VF_EXPLAINED_VAR_KEY LEARNER_RESULTS_VF_LOSS_UNCLIPPED_KEY PPO PPOConfig",
    "algorithms.ppo.ppo_learner": "PPOLearner",
    "algorithms.ppo.torch.default_ppo_torch_rl_module": "DefaultPPOTorchRLModule",
    "algorithms.ppo.torch.ppo_torch_learner": "PPOTorchLearner",
    "algorithms.ppo.torch.ppo_torch_rl_module": "PPOTorchRLModule",
    "algorithms.qmix": "QMIX QMIXConfig VDN VDNConfig",
    "algorithms.sac": "SAC SACConfig",
    "algorithms.sac.default_sac_rl_module": "DefaultSACRLModule",
    "algorithms.sac.sac": "SAC SACConfig",
    "algorithms.sac.sac_learner": "QF_LOSS_KEY QF_MEAN_KEY QF_PREDS QF_TWIN_LOSS_KEY QF_TWIN_PREDS SACLearner",
    "algorithms.sac.torch.default_sac_torch_rl_module": "DefaultSACTorchRLModule",
    "algorithms.sac.torch.sac_torch_learner": "SACTorchLearner",
    "callbacks.callbacks": "RLlibCallback",
    "connectors.common": "AddObservationsFromEpisodesToBatch AddStatesFromEpisodesToBatch AddTimeDimToBatchAndZeroPad "
    "AgentToModuleMapping BatchIndividualItems NumpyToTensor TensorToNumpy",
    "connectors.common.add_observations_from_episodes_to_batch": "AddObservationsFromEpisodesToBatch",
    "connectors.common.add_states_from_episodes_to_batch": "AddStatesFromEpisodesToBatch",
    "connectors.common.add_time_dim_to_batch_and_zero_pad": "AddTimeDimToBatchAndZeroPad",
    "connectors.common.agent_to_module_mapping": "AgentToModuleMapping",
    "connectors.common.batch_individual_items": "BatchIndividualItems",
    "connectors.common.module_to_agent_unmapping": "ModuleToAgentUnmapping",
    "connectors.common.numpy_to_tensor": "NumpyToTensor",
    "connectors.common.tensor_to_numpy": "TensorToNumpy",
    "connectors.connector_pipeline_v2": "ConnectorPipelineV2",
    "connectors.connector_v2": "ConnectorV2",
    "connectors.env_to_module": "AddObservationsFromEpisodesToBatch AddStatesFromEpisodesToBatch "
    "AddTimeDimToBatchAndZeroPad AgentToModuleMapping BatchIndividualItems EnvToModulePipeline FlattenObservations "
    "MeanStdFilter NumpyToTensor PrevActionsPrevRewards WriteObservationsToEpisodes",
    "connectors.env_to_module.flatten_observations": "FlattenObservations",
    "connectors.env_to_module.frame_stacking": "FrameStackingEnvToModule",
    "connectors.learner": "AddColumnsFromEpisodesToTrainBatch AddInfosFromEpisodesToTrainBatch "
    "AddNextObservationsFromEpisodesToTrainBatch AddObservationsFromEpisodesToBatch AddOneTsToEpisodesAndTruncate "
    "AddStatesFromEpisodesToBatch AddTimeDimToBatchAndZeroPad AgentToModuleMapping BatchIndividualItems "
    "ComputeReturnsToGo GeneralAdvantageEstimation LearnerConnectorPipeline NumpyToTensor",
    "connectors.learner.add_columns_from_episodes_to_batch": "AddColumnsFromEpisodesToBatch",
    "connectors.learner.add_columns_from_episodes_to_train_batch": "AddColumnsFromEpisodesToTrainBatch",
    "connectors.learner.frame_stacking": "FrameStackingLearner",
    "connectors.learner.general_advantage_estimation": "GeneralAdvantageEstimation",
    "connectors.module_to_env": "GetActions ListifyDataForVectorEnv ModuleToAgentUnmapping ModuleToEnvPipeline "
    "NormalizeAndClipActions RemoveSingleTsTimeRankFromBatch TensorToNumpy UnBatchToIndividualItems",
    "connectors.module_to_env.get_actions": "GetActions",
    "connectors.module_to_env.listify_data_for_vector_env": "ListifyDataForVectorEnv",
    "connectors.module_to_env.normalize_and_clip_actions": "NormalizeAndClipActions",
    "connectors.module_to_env.remove_single_ts_time_rank_from_batch": "RemoveSingleTsTimeRankFromBatch",
    "connectors.module_to_env.unbatch_to_individual_items": "UnBatchToIndividualItems",
    "core": "COMPONENT_LEARNER COMPONENT_LEARNER_GROUP COMPONENT_RL_MODULE Columns DEFAULT_AGENT_ID DEFAULT_MODULE_ID "
    "DEFAULT_POLICY_ID",
    "core.columns": "Columns",
    "core.distribution.distribution": "Distribution",
    "core.distribution.torch.torch_distribution": "TorchBernoulli TorchCategorical TorchDiagGaussian "
    "TorchMultiCategorical TorchMultiDistribution TorchSquashedGaussian",
    "core.learner": "Learner LearnerGroup",
    "core.learner.learner": "DEFAULT_OPTIMIZER ENTROPY_KEY LR_KEY Learner POLICY_LOSS_KEY VF_LOSS_KEY",
    "core.learner.learner_group": "LearnerGroup",
    "core.learner.torch.torch_learner": "TorchLearner",
    "core.learner.utils": "make_target_network update_target_network",
    "core.rl_module": "MultiRLModule MultiRLModuleSpec RLModule RLModuleSpec",
    "core.rl_module.apis": "InferenceOnlyAPI SelfSupervisedLossAPI TARGET_NETWORK_ACTION_DIST_INPUTS "
    "TargetNetworkAPI ValueFunctionAPI",
    "core.rl_module.apis.inference_only_api": "InferenceOnlyAPI",
    "core.rl_module.apis.self_supervised_loss_api": "SelfSupervisedLossAPI",
    "core.rl_module.apis.target_network_api": "TARGET_NETWORK_ACTION_DIST_INPUTS TargetNetworkAPI",
    "core.rl_module.apis.value_function_api": "ValueFunctionAPI",
    "core.rl_module.default_model_config": "DefaultModelConfig",
    "core.rl_module.multi_rl_module": "MultiRLModule MultiRLModuleSpec",
    "core.rl_module.rl_module": "DefaultModelConfig RLModule RLModuleSpec",
    "core.rl_module.torch": "TorchRLModule",
    "core.rl_module.torch.torch_rl_module": "TorchRLModule",
    "env": "INPUT_ENV_SINGLE_SPACES INPUT_ENV_SPACES MultiAgentEnv ParallelPettingZooEnv PettingZooEnv",
    "env.env_runner": "EnvRunner",
    "env.env_runner_group": "EnvRunnerGroup",
    "env.multi_agent_env": "ENV_STATE MultiAgentEnv make_multi_agent",
    "env.multi_agent_env_runner": "MultiAgentEnvRunner",
    "env.multi_agent_episode": "MultiAgentEpisode",
    "env.single_agent_env_runner": "SingleAgentEnvRunner",
    "env.single_agent_episode": "SingleAgentEpisode",
    "env.wrappers.pettingzoo_env": "ParallelPettingZooEnv PettingZooEnv",
    "utils": "one_hot override softmax try_import_torch",
    "utils.annotations": "override",
    "utils.checkpoints": "Checkpointable",
    "utils.error": "EnvError",
    "utils.framework": "try_import_torch",
    "utils.metrics": "ENV_RUNNER_RESULTS EPISODE_RETURN_MEAN EVALUATION_RESULTS LEARNER_CONNECTOR LEARNER_RESULTS "
    "NUM_ENV_STEPS_SAMPLED_LIFETIME REPLAY_BUFFER_RESULTS TRAINING_ITERATION_TIMER",
    "utils.metrics.metrics_logger": "MetricsLogger",
    "utils.numpy": "convert_to_numpy one_hot softmax",
    "utils.replay_buffers": "EpisodeReplayBuffer MultiAgentEpisodeReplayBuffer "
    "MultiAgentPrioritizedEpisodeReplayBuffer PrioritizedEpisodeReplayBuffer",
    "utils.replay_buffers.episode_replay_buffer": "EpisodeReplayBuffer",
    "utils.replay_buffers.multi_agent_episode_buffer": "MultiAgentEpisodeReplayBuffer",
    "utils.replay_buffers.multi_agent_prioritized_episode_buffer": "MultiAgentPrioritizedEpisodeReplayBuffer",
    "utils.replay_buffers.prioritized_episode_buffer": "PrioritizedEpisodeReplayBuffer",
    "utils.spaces.space_utils": "batch clip_action flatten_space flatten_to_single_ndarray get_base_struct_from_space "
    "normalize_action unbatch unsquash_action",
    "utils.torch_utils": "FLOAT_MAX FLOAT_MIN convert_to_torch_tensor explained_variance global_norm one_hot",
    "utils.typing": "AgentID AgentToModuleMappingFn DeviceType EnvConfigDict EnvCreator EnvType EpisodeType "
    "LearningRateOrSchedule ModuleID MultiAgentDict NamedParamDict NetworkType Optimizer Param PolicyID "
    "RLModuleSpecType ResultDict ShouldModuleBeUpdatedFn StateDict TensorStructType TensorType",
}
"""The names that code for RLlib imports, by module."""


@pytest.mark.parametrize("module", NAMES_OF_RLLIB)
def test_a_name_that_code_for_rllib_imports_exists(module):
    found = importlib.import_module(f"marl_connectors.{module}")
    assert [name for name in NAMES_OF_RLLIB[module].split() if not hasattr(found, name)] == []


def test_all_paths_of_the_table_are_listed_above():
    assert {path for path in PATHS if import_lines(path)} - NAMES_OF_RLLIB.keys() == set()


def test_a_path_of_the_table_has_no_file_and_leads_to_modules_that_have_one():
    package = REPOSITORY / "marl_connectors"
    for path, modules in PATHS.items():
        assert not has_file(package.joinpath(*path.split("."))), path
        assert [name for name in modules.split() if not has_file(package.joinpath(*name.split(".")))] == []


def has_file(module):
    """Whether the repository has a module; one that a build wrote has a ``.gitignore``."""
    is_written = (module / ".gitignore").exists()
    return module.with_suffix(".py").is_file() or ((module / "__init__.py").is_file() and not is_written)


def test_a_class_is_pickled_by_the_module_that_defines_it():
    from marl_connectors.core.columns import Columns

    assert b"marl_connectors.columns" in pickle.dumps(Columns)
    assert pickle.loads(b"cmarl_connectors.core.columns\nColumns\n.") is Columns  # a reference by RLlib's path


def test_a_process_may_begin_with_a_path_of_rllib():
    code = (
        "import marl_connectors.core.columns, importlib, sys\n"
        "by_path = sys.modules['marl_connectors.core.columns']\n"
        "assert by_path.Columns is marl_connectors.Columns and 'torch' not in sys.modules\n"
        "assert importlib.reload(by_path).Columns is marl_connectors.Columns\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("statement", "advice", "page"),
    [
        ("from marl_connectors.policy.policy import PolicySpec", "RLModule", "rllib"),
        ("from marl_connectors import policy", "RLModule", "rllib"),
        ("import marl_connectors.algorithms.appo", "PPO", "cluster"),
        ("from marl_connectors.algorithms import impala", "PPO", "cluster"),
        ("from marl_connectors.algorithms.ppo.ppo_catalog import PPOCatalog", "DefaultModelConfig", "modules"),
        ("from marl_connectors.core.models.catalog import Catalog", "DefaultModelConfig", "modules"),
        ("from marl_connectors.offline.json_reader import JsonReader", "EpisodeReader", "offline_data"),
        ("from marl_connectors.utils.test_utils import check", "algo.train", "training"),
    ],
)
def test_a_path_of_rllib_that_is_not_here_says_what_to_use_and_where_to_read(statement, advice, page):
    with pytest.raises(ModuleNotFoundError, match=rf"^marl_connectors\..*{advice}.*\(docs/{page}\.md\)"):
        exec(statement)


def test_a_misspelt_path_leads_to_the_list_of_paths():
    with pytest.raises(ModuleNotFoundError, match=r"core\.colums: .*docs/rllib\.md") as raised:
        importlib.import_module("marl_connectors.core.colums")
    assert raised.value.name == "marl_connectors.core.colums"
    with pytest.raises(ImportError, match="'PPOConfg'"):
        exec("from marl_connectors import PPOConfg")


def test_each_module_of_rllib_is_here_or_its_error_names_a_page():
    ray = importlib.util.find_spec("ray")
    if ray is None or ray.submodule_search_locations is None:
        pytest.skip("Ray is not installed")
    rllib = Path(next(iter(ray.submodule_search_locations)), "rllib")
    names = {".".join(path.relative_to(rllib).with_suffix("").parts) for path in rllib.rglob("*.py")}
    missing = {name.removesuffix(".__init__") for name in names - {"__init__"}} - PATHS.keys()
    missing -= {name_of(path).removeprefix("marl_connectors.") for path in PACKAGE.rglob("*.py")}
    assert len(missing) > 200
    used = set()
    for name in missing:
        with pytest.raises(ModuleNotFoundError, match=rf"^marl_connectors\.{re.escape(name)}") as raised:
            NothingFound().find_spec(f"marl_connectors.{name}")
        (page,) = re.findall(r"docs/(\w+)\.md", str(raised.value))
        used.add((page, str(raised.value).partition(": ")[2].partition(" (docs")[0]))
    assert {(page, advice) for advice, page in NOT_HERE.values()} <= used


def test_the_pages_that_errors_name_exist():
    assert [page for _, page in NOT_HERE.values() if not (REPOSITORY / "docs" / f"{page}.md").is_file()] == []


@pytest.fixture(scope="module")
def editable(tmp_path_factory):
    """A copy of what a build reads, and the lines of the ``.pth`` file of its editable installation."""
    if importlib.util.find_spec("setuptools") is None:  # importing it would put its distutils in the place of Python's
        pytest.skip("setuptools is not installed")
    copy, wheels = tmp_path_factory.mktemp("repository"), tmp_path_factory.mktemp("wheels")
    for name in ("README.md", "LICENSE", "pyproject.toml", "setup.cfg", "setup.py"):
        shutil.copy(REPOSITORY / name, copy)
    for name in ("marl_connectors", "envs"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = f"from setuptools.build_meta import build_editable; build_editable({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (pth,) = (name for name in archive.namelist() if name.endswith(".pth"))
        return copy, archive.read(pth).decode().splitlines()


def test_an_editable_install_is_a_list_of_folders_which_editors_read(editable):
    copy, lines = editable
    assert lines == [str(copy), str(copy / "envs")]
    for path in PATHS:
        module = copy.joinpath("marl_connectors", *path.split("."), "__init__.py")
        assert module.read_text() == import_lines(path)


@pytest.mark.slow
def test_an_editor_resolves_the_imports_of_the_pages_the_examples_and_code_for_rllib(editable, tmp_path):
    pytest.importorskip("pyright")
    _, lines = editable
    imports = {
        f"from marl_connectors.{path} import {name}" for path, names in NAMES_OF_RLLIB.items() for name in names.split()
    }
    pages = [REPOSITORY / "README.md", *REPOSITORY.glob("docs/*.md"), *REPOSITORY.glob("examples/**/*.py")]
    for page in pages:
        text = page.read_text()
        for code in [text] if page.suffix == ".py" else re.findall(r"```python\n(.*?)```", text, re.S):
            lines_of_imports = map(ast.unparse, ast.walk(ast.parse(code)))
            imports.update(line for line in lines_of_imports if re.match(r"(from|import) marl_\w+[^\n]*$", line))
    assert len(imports) > 300
    script = [f"def in_a_scope_of_its_own_{i}():\n    {line}\n" for i, line in enumerate(sorted(imports))]
    script.append("from marl_connectors.core.columns import Columns\nreveal_type(Columns.OBS)\n")
    (tmp_path / "script.py").write_text("".join(script))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": lines, "typeCheckingMode": "basic"}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert [one["message"] for one in found] == ['Type of "Columns.OBS" is "Literal[\'obs\']"']


@pytest.mark.parametrize("path", RE_EXPORTING, ids=name_of)
def test_a_package_shows_editors_the_names_that_it_re_exports(path):
    module = importlib.import_module(name_of(path))
    (block,) = (s for s in ast.parse(path.read_text()).body if isinstance(s, ast.If))
    shown = {name.asname: s.module for s in block.body if isinstance(s, ast.ImportFrom) for name in s.names}
    assert sorted(shown) == module.__all__
    for name, origin in shown.items():
        assert getattr(module, name) is getattr(importlib.import_module(origin), name)
    assert set(module.__all__) <= set(dir(module))


@pytest.mark.slow
def test_a_package_imports_a_name_when_it_is_first_used():
    code = (
        "import sys, marl_connectors.connectors.env_to_module as package\n"
        "file = package.__name__ + '.mean_std_filter'\n"
        "assert file not in sys.modules and 'torch' not in sys.modules\n"
        "assert package.MeanStdFilter.__module__ == file\n"
        "assert 'MeanStdFilter' in vars(package)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_of_a_package_is_an_attribute_error():
    from marl_connectors.connectors import env_to_module

    with pytest.raises(AttributeError, match=r"(?s)'marl_connectors.connectors.env_to_module'.*'MeanStd'"):
        _ = env_to_module.MeanStd


def test_override_names_a_method_that_does_not_exist():
    from marl_connectors.utils.annotations import override

    class Base:
        def step(self):
            return 1

    class Derived(Base):
        @override(Base)
        def step(self):
            return 2

    assert Derived().step() == 2
    with pytest.raises(NameError, match=r"(?s)Base.*'stop'"):
        override(Base)(_named("stop"))


def _named(name):
    def method(self): ...

    method.__name__ = name
    return method


def test_a_name_is_the_same_object_by_every_path():
    from marl_connectors.core.columns import Columns
    from marl_connectors.core.rl_module.multi_rl_module import MultiRLModule
    from marl_connectors.env.multi_agent_episode import MultiAgentEpisode

    assert marl_connectors.Columns is Columns
    assert marl_connectors.MultiRLModule is MultiRLModule
    assert marl_connectors.MultiAgentEpisode is MultiAgentEpisode


def test_wrappers_of_pettingzoo_return_the_environment():
    from marl_connectors.env.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv

    env = object()
    assert PettingZooEnv(env) is env and ParallelPettingZooEnv(env) is env
