from .algorithms.algorithm import Algorithm as Algorithm
from .algorithms.algorithm import explain_algorithm as explain_algorithm
from .algorithms.bc.bc import BC as BC
from .algorithms.bc.config import BCConfig as BCConfig
from .algorithms.config.algorithm_config import AlgorithmConfig as AlgorithmConfig
from .algorithms.dqn.config import DQNConfig as DQNConfig
from .algorithms.dqn.learner import DQN as DQN
from .algorithms.dqn.rl_module import DefaultDQNRLModule as DefaultDQNRLModule
from .algorithms.dqn.rl_module import DQNModelConfig as DQNModelConfig
from .algorithms.fitting.fit_results import FitResults as FitResults
from .algorithms.inference.load_policy import load_policy as load_policy
from .algorithms.inference.onnx_policy import OnnxPolicy as OnnxPolicy
from .algorithms.inference.policy import Policy as Policy
from .algorithms.maddpg.config import MADDPGConfig as MADDPGConfig
from .algorithms.maddpg.config import MATD3Config as MATD3Config
from .algorithms.maddpg.learner import MADDPG as MADDPG
from .algorithms.maddpg.learner import MATD3 as MATD3
from .algorithms.maddpg.rl_module import DefaultMADDPGRLModule as DefaultMADDPGRLModule
from .algorithms.maddpg.rl_module import MADDPGModelConfig as MADDPGModelConfig
from .algorithms.mappo.config import MAPPOConfig as MAPPOConfig
from .algorithms.mappo.mappo import MAPPO as MAPPO
from .algorithms.mappo.rl_module import DefaultMAPPORLModule as DefaultMAPPORLModule
from .algorithms.mappo.rl_module import MAPPOModelConfig as MAPPOModelConfig
from .algorithms.marwil.config import MARWILConfig as MARWILConfig
from .algorithms.marwil.learner import MARWILLearner as MARWILLearner
from .algorithms.marwil.marwil import MARWIL as MARWIL
from .algorithms.mixed.config import MixedConfig as MixedConfig
from .algorithms.mixed.mixed import Mixed as Mixed
from .algorithms.ppo.config import PPOConfig as PPOConfig
from .algorithms.ppo.learner import PPOLearner as PPOLearner
from .algorithms.ppo.ppo import PPO as PPO
from .algorithms.ppo.rl_module import DefaultPPORLModule as DefaultPPORLModule
from .algorithms.qmix.config import QMIXConfig as QMIXConfig
from .algorithms.qmix.config import VDNConfig as VDNConfig
from .algorithms.qmix.learner import QMIX as QMIX
from .algorithms.qmix.learner import VDN as VDN
from .algorithms.sac.config import SACConfig as SACConfig
from .algorithms.sac.learner import SAC as SAC
from .algorithms.sac.rl_module import DefaultSACRLModule as DefaultSACRLModule
from .algorithms.sac.rl_module import SACModelConfig as SACModelConfig
from .callbacks import Callbacks as Callbacks
from .callbacks import RLlibCallback as RLlibCallback
from .columns import Columns as Columns
from .connectors.arguments import argument as argument
from .connectors.common.add_observations_from_episodes_to_batch import (
    AddObservationsFromEpisodesToBatch as AddObservationsFromEpisodesToBatch,
)
from .connectors.common.add_states_from_episodes_to_batch import (
    AddStatesFromEpisodesToBatch as AddStatesFromEpisodesToBatch,
)
from .connectors.common.add_time_dim_to_batch_and_zero_pad import (
    AddTimeDimToBatchAndZeroPad as AddTimeDimToBatchAndZeroPad,
)
from .connectors.common.agent_to_module_mapping import AgentToModuleMapping as AgentToModuleMapping
from .connectors.common.batch_individual_items import BatchIndividualItems as BatchIndividualItems
from .connectors.common.flatten_observations import FlattenObservations as FlattenObservations
from .connectors.common.frame_stacking import FrameStacking as FrameStacking
from .connectors.common.module_to_agent_unmapping import ModuleToAgentUnmapping as ModuleToAgentUnmapping
from .connectors.common.numpy_to_tensor import NumpyToTensor as NumpyToTensor
from .connectors.common.tensor_to_numpy import TensorToNumpy as TensorToNumpy
from .connectors.connector_pipeline_v2 import ConnectorPipelineV2 as ConnectorPipelineV2
from .connectors.connector_v2 import ConnectorV2 as ConnectorV2
from .connectors.env_to_module.action_masking import ActionMasking as ActionMasking
from .connectors.env_to_module.agent_id_encoding import AgentIdEncoding as AgentIdEncoding
from .connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline as EnvToModulePipeline
from .connectors.env_to_module.image_to_float import ImageToFloat as ImageToFloat
from .connectors.env_to_module.mean_std_filter import MeanStdFilter as MeanStdFilter
from .connectors.env_to_module.observation_preprocessor import (
    MultiAgentObservationPreprocessor as MultiAgentObservationPreprocessor,
)
from .connectors.env_to_module.observation_preprocessor import ObservationPreprocessor as ObservationPreprocessor
from .connectors.env_to_module.observation_preprocessor import (
    SingleAgentObservationPreprocessor as SingleAgentObservationPreprocessor,
)
from .connectors.env_to_module.one_hot_observations import OneHotObservations as OneHotObservations
from .connectors.env_to_module.pad_observations import PadObservations as PadObservations
from .connectors.env_to_module.prev_actions_prev_rewards import PrevActionsPrevRewards as PrevActionsPrevRewards
from .connectors.env_to_module.time_limit_encoding import TimeLimitEncoding as TimeLimitEncoding
from .connectors.env_to_module.write_observations_to_episodes import (
    WriteObservationsToEpisodes as WriteObservationsToEpisodes,
)
from .connectors.explain import Explanation as Explanation
from .connectors.learner.add_columns_from_episodes_to_train_batch import (
    AddColumnsFromEpisodesToTrainBatch as AddColumnsFromEpisodesToTrainBatch,
)
from .connectors.learner.add_env_states_from_episodes_to_train_batch import (
    AddEnvStatesFromEpisodesToTrainBatch as AddEnvStatesFromEpisodesToTrainBatch,
)
from .connectors.learner.add_infos_from_episodes_to_train_batch import (
    AddInfosFromEpisodesToTrainBatch as AddInfosFromEpisodesToTrainBatch,
)
from .connectors.learner.add_joint_observations_from_episodes_to_train_batch import (
    AddJointObservationsFromEpisodesToTrainBatch as AddJointObservationsFromEpisodesToTrainBatch,
)
from .connectors.learner.add_next_observations_from_episodes_to_train_batch import (
    AddNextObservationsFromEpisodesToTrainBatch as AddNextObservationsFromEpisodesToTrainBatch,
)
from .connectors.learner.add_one_ts_to_episodes_and_truncate import (
    AddOneTsToEpisodesAndTruncate as AddOneTsToEpisodesAndTruncate,
)
from .connectors.learner.clip_rewards import ClipRewards as ClipRewards
from .connectors.learner.compute_returns_to_go import ComputeReturnsToGo as ComputeReturnsToGo
from .connectors.learner.general_advantage_estimation import (
    GeneralAdvantageEstimation as GeneralAdvantageEstimation,
)
from .connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline as LearnerConnectorPipeline
from .connectors.learner.normalize_rewards import NormalizeRewards as NormalizeRewards
from .connectors.learner.scale_rewards import ScaleRewards as ScaleRewards
from .connectors.module_to_env.get_actions import GetActions as GetActions
from .connectors.module_to_env.listify_data_for_vector_env import ListifyDataForVectorEnv as ListifyDataForVectorEnv
from .connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline as ModuleToEnvPipeline
from .connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions as NormalizeAndClipActions
from .connectors.module_to_env.remove_single_ts_time_rank_from_batch import (
    RemoveSingleTsTimeRankFromBatch as RemoveSingleTsTimeRankFromBatch,
)
from .connectors.module_to_env.unbatch_to_individual_items import UnBatchToIndividualItems as UnBatchToIndividualItems
from .env_runners.env_runner import EnvRunner as EnvRunner
from .env_runners.env_runner import MultiAgentEnvRunner as MultiAgentEnvRunner
from .env_runners.env_runner import SingleAgentEnvRunner as SingleAgentEnvRunner
from .env_runners.env_runner_group import EnvRunnerGroup as EnvRunnerGroup
from .environments.adapters.batched import BatchedEnv as BatchedEnv
from .environments.adapters.turn_based import TurnBasedEnv as TurnBasedEnv
from .environments.adapters.vmas import VmasEnv as VmasEnv
from .environments.check.check_env import check_env as check_env
from .environments.check.report import EnvFinding as EnvFinding
from .environments.check.report import EnvMeasurements as EnvMeasurements
from .environments.check.report import EnvReport as EnvReport
from .environments.registry.factory import make_env as make_env
from .environments.registry.registry import register_env as register_env
from .episodes.multi_agent_episode import MultiAgentEpisode as MultiAgentEpisode
from .episodes.single_agent_episode import SingleAgentEpisode as SingleAgentEpisode
from .errors import CheckpointError as CheckpointError
from .errors import ConfigError as ConfigError
from .errors import ConnectorError as ConnectorError
from .errors import EnvError as EnvError
from .errors import EnvWarning as EnvWarning
from .errors import EpisodeError as EpisodeError
from .errors import LearnerError as LearnerError
from .errors import MappingError as MappingError
from .errors import MarlConnectorsError as MarlConnectorsError
from .errors import MarlConnectorsWarning as MarlConnectorsWarning
from .errors import ModuleError as ModuleError
from .errors import OfflineDataError as OfflineDataError
from .errors import OfflineDataWarning as OfflineDataWarning
from .learner.learner import Learner as Learner
from .learner.learner_group import LearnerGroup as LearnerGroup
from .learner.minibatches import CountedRows as CountedRows
from .metrics import MetricsLogger as MetricsLogger
from .offline.episode_reader import EpisodeReader as EpisodeReader
from .offline.episode_writer import EpisodeWriter as EpisodeWriter
from .offline.minari_data import from_minari as from_minari
from .offline.minari_data import to_minari as to_minari
from .offline.parquet import from_parquet as from_parquet
from .offline.parquet import to_parquet as to_parquet
from .replay_buffers.replay_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
from .replay_buffers.replay_buffer import JointReplayBuffer as JointReplayBuffer
from .replay_buffers.replay_buffer import MultiAgentEpisodeReplayBuffer as MultiAgentEpisodeReplayBuffer
from .replay_buffers.replay_buffer import (
    MultiAgentPrioritizedEpisodeReplayBuffer as MultiAgentPrioritizedEpisodeReplayBuffer,
)
from .replay_buffers.replay_buffer import PrioritizedEpisodeReplayBuffer as PrioritizedEpisodeReplayBuffer
from .replay_buffers.replay_buffer import ReplayBuffer as ReplayBuffer
from .replay_buffers.replay_buffer import TeamReplayBuffer as TeamReplayBuffer
from .rl_module.apis import InferenceOnlyAPI as InferenceOnlyAPI
from .rl_module.apis import SelfSupervisedLossAPI as SelfSupervisedLossAPI
from .rl_module.apis import TargetNetworkAPI as TargetNetworkAPI
from .rl_module.apis import ValueFunctionAPI as ValueFunctionAPI
from .rl_module.apis import update_target_networks as update_target_networks
from .rl_module.default_model_config import DefaultModelConfig as DefaultModelConfig
from .rl_module.distributions import Distribution as Distribution
from .rl_module.distributions import EpsilonGreedy as EpsilonGreedy
from .rl_module.distributions import TorchBernoulli as TorchBernoulli
from .rl_module.distributions import TorchBeta as TorchBeta
from .rl_module.distributions import TorchCategorical as TorchCategorical
from .rl_module.distributions import TorchClippedGaussian as TorchClippedGaussian
from .rl_module.distributions import TorchDiagGaussian as TorchDiagGaussian
from .rl_module.distributions import TorchMultiCategorical as TorchMultiCategorical
from .rl_module.distributions import TorchMultiDistribution as TorchMultiDistribution
from .rl_module.distributions import TorchSquashedGaussian as TorchSquashedGaussian
from .rl_module.distributions import TorchUniform as TorchUniform
from .rl_module.encoders import Encoder as Encoder
from .rl_module.multi_rl_module import MultiRLModule as MultiRLModule
from .rl_module.multi_rl_module import MultiRLModuleSpec as MultiRLModuleSpec
from .rl_module.random_rl_module import RandomRLModule as RandomRLModule
from .rl_module.rl_module import RLModule as RLModule
from .rl_module.rl_module import RLModuleSpec as RLModuleSpec
from .rl_module.torch_module import TorchModule as TorchModule
from .typing import DEFAULT_AGENT_ID as DEFAULT_AGENT_ID
from .typing import DEFAULT_MODULE_ID as DEFAULT_MODULE_ID

__version__: str
