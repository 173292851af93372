"""MAPPOConfig."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from marl_connectors.algorithms.mappo.model_config import MAPPOModelConfig
from marl_connectors.algorithms.ppo.config import PPOConfig, PPOTrainingSettings
from marl_connectors.algorithms.settings import section_of
from marl_connectors.connectors.learner.add_env_states_from_episodes_to_train_batch import (
    AddEnvStatesFromEpisodesToTrainBatch,
)
from marl_connectors.connectors.learner.add_joint_observations_from_episodes_to_train_batch import (
    AddJointObservationsFromEpisodesToTrainBatch,
)
from marl_connectors.errors import ConfigError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.validators import one_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from marl_connectors.connectors.connector_v2 import ConnectorV2
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.spec import EnvSpec
    from marl_connectors.rl_module.rl_module import RLModuleSpec


class MAPPOTrainingSettings(PPOTrainingSettings, total=False):
    """What MAPPO's ``training`` takes beside PPO's settings.

    Attributes:
        critic_obs: What critics see: ``"joint_observations"``, those of all agents, or ``"state"``, the environment's.
    """

    critic_obs: str


class MAPPOConfig(PPOConfig):
    """PPO whose critics see all agents, or the environment's state, in training only; policies their agent's own.

    Settings are those of PPOConfig, and ``critic_obs``. Each module has a critic of its own; modules that several
    agents share tell them apart, as the critic is told whose value is asked for. A module of your own reads
    ``batch["critic_obs"]`` in ``compute_values``; ``critic_inputs`` in its ``model_config`` says how many numbers that
    is: a key of a dict, which it is unless you give another kind, or a field of a dataclass of yours.
    """

    critic_obs: Annotated[str, one_of("joint_observations", "state")] = "joint_observations"

    @section_of(MAPPOTrainingSettings)
    def training(self, **settings: Unpack[MAPPOTrainingSettings]) -> None:
        """How the modules learn: as for PPO, and ``MAPPOTrainingSettings``."""

    def get_default_rl_module_class(self) -> Any:
        """A policy as in PPO, and an MLP for the critic."""
        from marl_connectors.algorithms.mappo.rl_module import DefaultMAPPORLModule

        return DefaultMAPPORLModule

    def complete_rl_module_spec(
        self, spec: RLModuleSpec, setup: EnvSpec, env_to_module: EnvToModulePipeline
    ) -> RLModuleSpec:
        """Tells the module how many inputs its critic has."""
        spec = super().complete_rl_module_spec(spec, setup, env_to_module)
        size = self._critic_obs_piece(setup, env_to_module).size
        return dataclasses.replace(spec, model_config=_with_critic_inputs(spec, size))

    def default_learner_pieces(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> list[ConnectorV2]:
        """The piece that adds what the critics see."""
        return [self._critic_obs_piece(setup, env_to_module)]

    def _critic_obs_piece(
        self, setup: EnvSpec, env_to_module: EnvToModulePipeline
    ) -> AddJointObservationsFromEpisodesToTrainBatch | AddEnvStatesFromEpisodesToTrainBatch:
        if setup.single_agent:
            raise ConfigError(
                f"MAPPOConfig: {setup.name} has a single agent, so that a critic of all agents sees what it sees. Use "
                f"PPOConfig."
            )
        if self.critic_obs == "state":
            return AddEnvStatesFromEpisodesToTrainBatch(state_space=setup.state_space, agent_ids=setup.agent_ids)
        held: Any = env_to_module.observation_space_in_episodes
        agents_in_order = dict.fromkeys([*setup.agent_ids, *held.spaces])  # a gymnasium Dict sorts its keys
        return AddJointObservationsFromEpisodesToTrainBatch(
            agent_spaces={agent_id: held.spaces[agent_id] for agent_id in agents_in_order}
        )

    def validate(self) -> None:
        """Also that there is a critic, and that all critics see the same."""
        super().validate()
        if not self.use_critic:
            raise ConfigError(f"{type(self).__name__}: use_critic must be True, for what else would be centralised?")
        for module_id, overrides in self.algorithm_config_overrides_per_module.items():
            if "critic_obs" in overrides:
                raise ConfigError(
                    f"algorithm_config_overrides_per_module: module {module_id!r} cannot have a critic_obs of its own. "
                    f"All critics of a run see the same: set .training(critic_obs=...)."
                )


def _with_critic_inputs(spec: RLModuleSpec, size: int) -> Any:
    """A module's ``model_config``, in the form that its class knows, with the number of its critic's inputs."""
    from marl_connectors.algorithms.mappo.rl_module import DefaultMAPPORLModule
    from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

    cls: type = spec.module_class or DefaultMAPPORLModule
    given: Any = spec.model_config
    if isinstance(given, Mapping) and (
        issubclass(cls, DefaultMAPPORLModule) or not issubclass(cls, DefaultPPORLModule)
    ):
        return {**given, "critic_inputs": size}
    if issubclass(cls, DefaultPPORLModule) or isinstance(given, DefaultModelConfig):
        settings: Any = dataclasses.asdict(spec.model_config) if dataclasses.is_dataclass(given) else given
        return dataclasses.replace(MAPPOModelConfig.of(settings), critic_inputs=size)
    if given is None:
        return {"critic_inputs": size}
    fields = dataclasses.fields(given) if dataclasses.is_dataclass(given) else ()
    if any(field.name == "critic_inputs" and field.init for field in fields):
        return dataclasses.replace(spec.model_config, critic_inputs=size)
    raise ConfigError(
        f"MAPPOConfig: {cls.__name__} has a model_config of {type(given).__name__}, which has no place for how many "
        f"inputs its critic has. Give that a field, critic_inputs: int = 0, or use a dict."
    )
