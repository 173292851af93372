"""EnvRunnerParts: what an EnvRunner is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gymnasium import Space

from marl_connectors.callbacks import CallbackCalls
from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
from marl_connectors.environments.vector.vector_env import VectorEnv
from marl_connectors.rl_module.multi_rl_module import MultiRLModule
from marl_connectors.typing import AgentID, ModuleID

if TYPE_CHECKING:
    from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig

PolicyMappingFn = Callable[..., ModuleID]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvRunnerParts:
    """What an EnvRunner is made of.

    Attributes:
        vector_env: The sub-environments.
        rl_module: The modules.
        env_to_module: The pipeline that turns observations into a forward batch.
        module_to_env: The pipeline that turns module outputs into actions.
        agent_spaces: Returns an agent's observation space and action space.
        policy_mapping_fn: The function ``fn(agent_id, episode)`` that returns the id of the module that chooses an
            agent's actions in an episode.
        single_agent: Whether ``sample`` returns SingleAgentEpisodes.
        config: The settings of the run.
        explore: Whether ``sample`` explores by default.
        lookback: The number of earlier steps that a chunk of an episode keeps.
        rollout_fragment_length: The default length of a sample, in env steps of each sub-environment.
        complete_episodes: Whether ``sample`` returns one episode of each sub-environment by default.
        check_spaces: Whether to check that observations are in their space.
        warned_of_bounds: The components of observations for which the run was already warned that they leave their
            bounds. The runner adds to it. None if there are none.
        callbacks: The callbacks to call on the runner's events.
        env_config: The environment config that callbacks get.
        merges_connector_states: Whether ``sample`` ends with merging what the connector pieces have learned in it into
            what they apply. False if the caller merges the states of several runners, and sets the result in each with
            ``set_connector_states``.
    """

    vector_env: VectorEnv
    rl_module: MultiRLModule
    env_to_module: EnvToModulePipeline
    module_to_env: ModuleToEnvPipeline
    agent_spaces: Callable[[AgentID], tuple[Space, Space]]
    policy_mapping_fn: PolicyMappingFn
    single_agent: bool
    config: AlgorithmConfig
    explore: bool
    lookback: int
    rollout_fragment_length: int
    complete_episodes: bool
    check_spaces: bool
    warned_of_bounds: dict[Any, set[int]] | None = None
    callbacks: CallbackCalls = field(default_factory=CallbackCalls)
    env_config: dict[str, Any] = field(default_factory=dict)
    merges_connector_states: bool = True
