"""MAPPOConfig."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.ppo.config import PPOConfig, PPOTraining
from marl_connectors.errors import ConfigError
from marl_connectors.rl_module.default_model_config import DefaultModelConfig
from marl_connectors.validators import one_of, section, setting

if TYPE_CHECKING:
    from marl_connectors.algorithms.mappo.mappo import MAPPO
    from marl_connectors.connectors.connector_v2 import ConnectorV2
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.registry.spec import EnvSpec
    from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec


@section
class MAPPOTraining(PPOTraining):
    """Sets how the modules learn."""

    critic_obs: str = setting(
        one_of("joint_observations", "state"),
        'The critics\' input: ``"joint_observations"`` of all agents, or ``"state"`` of the environment.',
        default="joint_observations",
        fixed=True,
        per_module=False,
    )


class MAPPOConfig(PPOConfig, MAPPOTraining):
    """PPO with centralised critics, which see all agents or the environment's state. They are used in training only.

    Policies see the observations of their own agent. The settings are those of PPOConfig, and ``critic_obs``. Each
    module has its own critic. Where several agents share a module, the critic's input says which agent it is for. Your
    own module reads ``batch["critic_obs"]`` in ``compute_values``. ``critic_inputs`` in its ``model_config`` is the
    number of these inputs: a key of the dict, or a field if you pass a dataclass.
    """

    _algo_class = "marl_connectors.algorithms.mappo.mappo:MAPPO"
    training = chain(MAPPOTraining)

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> MAPPO: ...
        def build(self, env: Any = None) -> MAPPO: ...

    def get_default_rl_module_class(self) -> type[RLModule]:
        """Returns DefaultMAPPORLModule, a policy as in PPO and an MLP as its critic."""
        from marl_connectors.algorithms.mappo.rl_module import DefaultMAPPORLModule

        return DefaultMAPPORLModule

    def complete_rl_module_spec(
        self, spec: RLModuleSpec, setup: EnvSpec, env_to_module: EnvToModulePipeline
    ) -> RLModuleSpec:
        """Adds the number of the critic's inputs to the module's ``model_config``."""
        spec = super().complete_rl_module_spec(spec, setup, env_to_module)
        size = self._critic_obs_piece(setup, env_to_module).size
        return dataclasses.replace(spec, model_config=_with_critic_inputs(spec, size))

    def default_learner_pieces(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> list[ConnectorV2]:
        """Returns the piece that adds the critics' inputs."""
        return [self._critic_obs_piece(setup, env_to_module)]

    def _critic_obs_piece(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> Any:
        from marl_connectors.connectors.learner.add_env_states_from_episodes_to_train_batch import (
            AddEnvStatesFromEpisodesToTrainBatch,
        )
        from marl_connectors.connectors.learner.add_joint_observations_from_episodes_to_train_batch import (
            AddJointObservationsFromEpisodesToTrainBatch,
        )

        if setup.single_agent:
            raise ConfigError(
                f"MAPPOConfig: {setup.name} has a single agent, so a critic of all agents has the same input. "
                f"Use PPOConfig (--algo ppo on the command line)."
            )
        if self.critic_obs == "state":
            return AddEnvStatesFromEpisodesToTrainBatch(state_space=setup.state_space, agent_ids=setup.agent_ids)
        held: Any = env_to_module.observation_space_in_episodes
        agents_in_order = dict.fromkeys([*setup.agent_ids, *held.spaces])  # a gymnasium Dict sorts its keys
        return AddJointObservationsFromEpisodesToTrainBatch(
            agent_spaces={agent_id: held.spaces[agent_id] for agent_id in agents_in_order}
        )

    def validate(self) -> None:
        """Checks in addition that modules have a critic."""
        super().validate()
        if not self.use_critic:
            raise ConfigError(
                f"{type(self).__name__}: use_critic must be True, because MAPPO is PPO with a centralised critic."
            )


def _with_critic_inputs(spec: RLModuleSpec, size: int) -> Any:
    """Returns a ``model_config`` with the number of the critic's inputs, in the form that the module class expects."""
    from marl_connectors.algorithms.mappo.rl_module import DefaultMAPPORLModule, MAPPOModelConfig
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
        f"MAPPOConfig: {cls.__name__} has a model_config of {type(given).__name__}, which has no field for the "
        f"number of its critic's inputs. Add the field critic_inputs: int = 0, or use a dict."
    )
