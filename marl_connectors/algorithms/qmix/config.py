"""QMIXConfig and VDNConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.dqn.config import DQNConfig, DQNTraining
from marl_connectors.errors import ConfigError
from marl_connectors.validators import integer, one_of, section, setting

if TYPE_CHECKING:
    from marl_connectors.algorithms.qmix.learner import QMIX, VDN
    from marl_connectors.connectors.connector_v2 import ConnectorV2
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.registry.spec import EnvSpec


@section
class QMIXTraining(DQNTraining):
    """Sets how the modules learn."""

    mixer: str = setting(
        one_of("qmix", "vdn"),
        '``"qmix"``, a network whose weights depend on the state, or ``"vdn"``, the sum of the agents\' values.',
        default="qmix",
        fixed=True,
    )
    mixing_embed_dim: int = setting(
        integer(min=1), "The size of the hidden layer of QMIX's mixer.", default=32, fixed=True
    )
    mixer_state: str = setting(
        one_of("joint_observations", "state"),
        'What QMIX\'s mixer knows: ``"joint_observations"`` of all agents, or ``"state"`` of the environment.',
        default="joint_observations",
        fixed=True,
    )
    grad_clip: float | None = 10.0
    dueling: bool = False
    td_error_loss_fn: str = "mse"
    replay_buffer_config: dict[str, Any] = {"type": "TeamReplayBuffer", "capacity": 50_000}  # copied before use


class QMIXConfig(DQNConfig, QMIXTraining):
    """The settings of QMIX: deep Q-learning of the value of what a team does together.

    The team are the agents of all modules that are trained. Its reward is the sum of their rewards, divided by their
    number; ``clip_rewards`` clips this reward of the team.
    """

    _algo_class = "marl_connectors.algorithms.qmix.learner:QMIX"
    training = chain(QMIXTraining)

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> QMIX: ...
        def build(self, env: Any = None) -> QMIX: ...

    def default_learner_pieces(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> list[ConnectorV2]:
        """Returns the piece that adds what the mixer knows; none for VDN."""
        if setup.single_agent:
            raise ConfigError(
                f"{type(self).__name__}: {setup.name} has a single agent. Use DQNConfig (--algo dqn on the command "
                f"line)."
            )
        if self.mixer == "vdn":
            return []
        from marl_connectors.algorithms.build import agents_by_module
        from marl_connectors.connectors.learner.add_mixer_states_to_train_batch import AddMixerStatesToTrainBatch

        agents = agents_by_module(self, setup)
        if self.mixer_state == "state":
            return [AddMixerStatesToTrainBatch(agents=agents, state_space=setup.state_space)]
        held: Any = env_to_module.observation_space_in_episodes
        return [AddMixerStatesToTrainBatch(agents=agents, agent_spaces=held.spaces)]

    def validate(self) -> None:
        """Checks in addition that an update is one gradient step on env steps of the whole team."""
        super().validate()
        name = type(self).__name__
        if self.minibatch_size is not None or self.num_epochs != 1 or self.shuffle_batch_per_epoch:
            raise ConfigError(
                f"{name}: an update is one gradient step on train_batch_size_per_learner env steps of the whole team. "
                f"Leave minibatch_size, num_epochs and shuffle_batch_per_epoch at None, 1 and False."
            )
        for module_id, overrides in self.algorithm_config_overrides_per_module.items():
            if unlike := overrides.keys() - {"lr", "grad_clip", "grad_clip_by", "model_config", "epsilon"}:
                raise ConfigError(
                    f"algorithm_config_overrides_per_module: module {module_id!r} cannot have its own "
                    f"{min(unlike)}, as the whole team has one loss. Set it in .training(...)."
                )


class VDNConfig(QMIXConfig):
    """The settings of value-decomposition networks: QMIX whose mixer is a sum."""

    mixer = "vdn"

    _algo_class = "marl_connectors.algorithms.qmix.learner:VDN"

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> VDN: ...
        def build(self, env: Any = None) -> VDN: ...
