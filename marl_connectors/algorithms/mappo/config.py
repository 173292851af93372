"""MAPPOConfig."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from gymnasium import spaces

from marl_connectors.algorithms.mappo.model_config import MAPPOModelConfig
from marl_connectors.algorithms.ppo.config import PPOConfig
from marl_connectors.connectors.learner.joint_observations import JointObservations
from marl_connectors.errors import ConfigError

if TYPE_CHECKING:
    from marl_connectors.connectors.connector_v2 import ConnectorV2
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.env_setup import EnvSetup
    from marl_connectors.rl_module.rl_module import RLModuleSpec


class MAPPOConfig(PPOConfig):
    """PPO whose critics see the observations of all agents, in training only; policies act on their agent's own.

    Settings are those of PPOConfig. Each module has a critic of its own; modules that several agents share tell them
    apart, as the critic is told whose value is asked for. A module of your own reads ``batch["critic_obs"]`` in
    ``compute_values``; its ``model_config["critic_inputs"]`` says how many numbers that is.
    """

    def get_default_rl_module_class(self) -> Any:
        """A policy as in PPO, and an MLP for the critic."""
        from marl_connectors.algorithms.mappo.rl_module import DefaultMAPPORLModule

        return DefaultMAPPORLModule

    def complete_rl_module_spec(
        self, spec: RLModuleSpec, setup: EnvSetup, env_to_module: EnvToModulePipeline
    ) -> RLModuleSpec:
        """Tells the module how many inputs its critic has."""
        spec = super().complete_rl_module_spec(spec, setup, env_to_module)
        size = JointObservations(self._agent_spaces(setup, env_to_module)).size
        given = spec.model_config
        if isinstance(given, dict):
            return dataclasses.replace(spec, model_config={**given, "critic_inputs": size})
        config = MAPPOModelConfig.of(None if given is None else dataclasses.asdict(given))
        return dataclasses.replace(spec, model_config=dataclasses.replace(config, critic_inputs=size))

    def default_learner_pieces(self, setup: EnvSetup, env_to_module: EnvToModulePipeline) -> list[ConnectorV2]:
        """The piece that adds what the critics see."""
        from marl_connectors.connectors.learner.add_joint_observations_from_episodes_to_train_batch import (
            AddJointObservationsFromEpisodesToTrainBatch,
        )

        agent_spaces = self._agent_spaces(setup, env_to_module)
        return [AddJointObservationsFromEpisodesToTrainBatch(agent_spaces=agent_spaces)]

    def _agent_spaces(self, setup: EnvSetup, env_to_module: EnvToModulePipeline) -> dict[Any, spaces.Space]:
        if setup.single_agent:
            raise ConfigError(
                f"MAPPOConfig: {setup.name} has a single agent, so that a critic of all agents sees what it sees. Use "
                f"PPOConfig."
            )
        held: Any = env_to_module.observation_space_in_episodes
        agents_in_order = dict.fromkeys([*setup.agent_ids, *held.spaces])  # a gymnasium Dict sorts its keys
        return {agent_id: held.spaces[agent_id] for agent_id in agents_in_order}

    def validate(self) -> None:
        """Also that there is a critic."""
        super().validate()
        self._require("use_critic", self.use_critic, "True, for what else would be centralised")
