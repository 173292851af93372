"""MADDPGConfig and MATD3Config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from marl_connectors.algorithms.action_bounds import check_action_bounds
from marl_connectors.algorithms.config.sections import section_of
from marl_connectors.algorithms.off_policy.config import (
    OffPolicyConfig,
    OffPolicyTrainingSettings,
    with_model_settings,
)
from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.validators import Switch, integer, number, optional

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.algorithms.maddpg.joint_inputs import JointInputs
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.rl_module import RLModuleSpec


class MADDPGTrainingSettings(OffPolicyTrainingSettings, total=False):
    """The settings that MADDPG's ``training`` accepts in addition to those of every off-policy algorithm.

    Attributes:
        actor_lr: The learning rate of the policies, a number or a schedule over sampled steps.
        critic_lr: The learning rate of the critics.
        actor_feature_reg: The weight of the mean squared outputs of the policy in its loss, which keeps actions away
            from the ends of their range.
        exploration_stddev: The standard deviation of the noise on Box actions when exploring, in [-1, 1] units: a
            number or a schedule. Discrete actions are drawn from the policy's probabilities.
        twin_q: Whether each module has two critics, of which the smaller value counts in the targets.
        policy_delay: The number of updates of the critics for each update of the policies and the target networks.
        target_noise: The standard deviation of the noise on Box actions in the targets.
        target_noise_clip: The bound of this noise.
    """

    actor_lr: Schedule
    critic_lr: Schedule
    actor_feature_reg: float
    exploration_stddev: Schedule
    twin_q: bool
    policy_delay: int
    target_noise: float
    target_noise_clip: float


class MADDPGConfig(OffPolicyConfig):
    """The settings of MADDPG, for several agents with Box or Discrete actions that act at the same time.

    Policies see the observations of their own agent; the critics see the observations and actions of all agents, and
    are used in training only. Each module has its own critic, so rewards may differ between agents. Most defaults
    are those of the paper. ``lr`` is None: policies and critics have learning rates of their own. ``grad_clip`` bounds
    the gradients of the policy and of each critic separately.
    """

    lr: Annotated[Schedule | None, optional(schedule(min=0))] = None
    gamma = 0.95
    tau = 0.01
    train_batch_size_per_learner = 1024
    rollout_fragment_length = 100
    num_steps_sampled_before_learning_starts = 1024
    actor_lr: Annotated[Schedule, schedule(min=0)] = 0.003
    critic_lr: Annotated[Schedule, schedule(min=0)] = 0.003
    actor_feature_reg: Annotated[float, number(min=0)] = 0.001
    exploration_stddev: Annotated[Schedule, schedule(min=0)] = 0.1
    twin_q: Switch = False
    policy_delay: Annotated[int, integer(min=1)] = 1
    target_noise: Annotated[float, number(min=0)] = 0.0
    target_noise_clip: Annotated[float, number(min=0)] = 0.5
    replay_buffer_config = {"type": "JointReplayBuffer", "capacity": 1_000_000}  # copied before use

    fixed_settings: ClassVar[frozenset[str]] = OffPolicyConfig.fixed_settings | {"twin_q"}
    _algo_class = "marl_connectors.algorithms.maddpg.maddpg:MADDPG"

    @property
    def draws_actions(self) -> bool:
        """False: the policies are deterministic."""
        return False

    @section_of(MADDPGTrainingSettings)
    def training(self, **settings: Unpack[MADDPGTrainingSettings]) -> None:
        """Sets how the modules learn. ``TrainingSettings`` and ``MADDPGTrainingSettings`` list the settings."""

    def build_algo(self, env: Any = None) -> Algorithm:
        """Builds the algorithm with these settings, ready to ``train()``."""
        return super().build_algo(env)

    def get_default_rl_module_class(self) -> Any:
        """Returns DefaultMADDPGRLModule."""
        from marl_connectors.algorithms.maddpg.rl_module import DefaultMADDPGRLModule

        return DefaultMADDPGRLModule

    def get_default_learner_class(self) -> type[Learner]:
        """Returns MADDPGLearner."""
        from marl_connectors.algorithms.maddpg.learner import MADDPGLearner

        return MADDPGLearner

    def complete_rl_module_spec(self, spec: RLModuleSpec, setup: Any, env_to_module: Any) -> RLModuleSpec:
        """Adds ``twin_q`` and the number of the critic's inputs to the settings of the default module.

        Raises:
            ConfigError: If actions are not in [-1, 1] and not stretched to their space.
        """
        from marl_connectors.algorithms.maddpg.rl_module import DefaultMADDPGRLModule, MADDPGModelConfig

        inputs = self.joint_inputs(setup, env_to_module)
        settings = {"twin_q": self.twin_q, "critic_inputs": inputs.size}
        check_action_bounds(self, spec, DefaultMADDPGRLModule, None)
        return with_model_settings(spec, DefaultMADDPGRLModule, MADDPGModelConfig, settings)

    def joint_inputs(self, setup: Any, env_to_module: Any) -> JointInputs:
        """Returns the layout of the critics' inputs.

        Raises:
            ConfigError: If the environment has a single agent, or agents act one after another.
        """
        from marl_connectors.algorithms.maddpg.joint_inputs import JointInputs

        name = type(self).__name__
        if setup.single_agent:
            raise ConfigError(f"{name}: {setup.name} has a single agent, so there is nothing to join. Use SACConfig.")
        if setup.takes_turns:
            raise ConfigError(
                f"{name}: in {setup.name} agents act one after another, so no env step has the actions of all. Use an "
                f"environment whose agents act at the same time, or SACConfig."
            )
        held = env_to_module.observation_space_in_episodes.spaces
        return JointInputs({a: (held[a], setup.agent_spaces(a)[1]) for a in setup.agent_ids})

    def default_learner_pieces(self, setup: Any, env_to_module: Any) -> list[Any]:
        """Returns the piece that adds the observations and actions of all agents."""
        from marl_connectors.algorithms.maddpg.joint_inputs import AddJointInputsToTrainBatch

        return [AddJointInputsToTrainBatch(inputs=self.joint_inputs(setup, env_to_module))]

    def validate(self) -> None:
        """Checks in addition that the learning rates are set by their names."""
        super().validate()
        if self.lr is not None:
            raise ConfigError(
                f"{type(self).__name__}: lr={self.lr!r}, but there is no common learning rate. Set actor_lr and "
                f"critic_lr, and leave lr at None."
            )
        for module_id, overrides in self.algorithm_config_overrides_per_module.items():
            for setting in {"lr", "twin_q", "policy_delay", "n_step"} & set(overrides):
                raise ConfigError(
                    f"algorithm_config_overrides_per_module: module {module_id!r} cannot have its own {setting}. Set "
                    f"it for all modules in .training(...)."
                )


class MATD3Config(MADDPGConfig):
    """The settings of MADDPG with what TD3 (Fujimoto et al., 2018) adds: twin critics, delayed policies, noise."""

    twin_q = True
    policy_delay = 2
    target_noise = 0.2

    _algo_class = "marl_connectors.algorithms.maddpg.maddpg:MATD3"
