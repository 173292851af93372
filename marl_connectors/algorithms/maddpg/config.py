"""MADDPGConfig and MATD3Config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.off_policy.config import OffPolicyConfig, OffPolicyTraining
from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.validators import boolean, integer, number, optional, section, setting

if TYPE_CHECKING:
    from marl_connectors.algorithms.maddpg.joint_inputs import JointInputs
    from marl_connectors.algorithms.maddpg.learner import MADDPG, MATD3
    from marl_connectors.connectors.connector_v2 import ConnectorV2
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.registry.spec import EnvSpec


@section
class MADDPGTraining(OffPolicyTraining):
    """Sets how the modules learn."""

    lr: Schedule | None = setting(
        optional(schedule(min=0)), "Always None: policies and critics have their own.", default=None, per_module=False
    )
    gamma: float = 0.95
    tau: float = 0.01
    train_batch_size_per_learner: int = 1024
    num_steps_sampled_before_learning_starts: int = 1024
    actor_lr: Schedule = setting(
        schedule(min=0), "The learning rate of the policies, a number or a schedule over sampled steps.", default=0.003
    )
    critic_lr: Schedule = setting(schedule(min=0), "The learning rate of the critics.", default=0.003)
    actor_feature_reg: float = setting(
        number(min=0),
        "The weight of the mean squared outputs of the policy in its loss, which keeps actions away from the ends "
        "of their range.",
        default=0.001,
    )
    exploration_stddev: Schedule = setting(
        schedule(min=0),
        "The standard deviation of the noise on Box actions when exploring, in [-1, 1] units: a number or a "
        "schedule. Discrete actions are drawn from the policy's probabilities.",
        default=0.1,
    )
    twin_q: bool = setting(
        boolean(),
        "Whether each module has two critics, of which the smaller value counts in the targets.",
        default=False,
        fixed=True,
        per_module=False,
    )
    policy_delay: int = setting(
        integer(min=1),
        "The number of updates of the critics for each update of the policies and the target networks.",
        default=1,
        per_module=False,
    )
    target_noise: float = setting(
        number(min=0), "The standard deviation of the noise on Box actions in the targets.", default=0.0
    )
    target_noise_clip: float = setting(number(min=0), "The bound of this noise.", default=0.5)
    replay_buffer_config: dict[str, Any] = {"type": "JointReplayBuffer", "capacity": 1_000_000}  # copied before use


class MADDPGConfig(OffPolicyConfig, MADDPGTraining):
    """The settings of MADDPG, for several agents with Box or Discrete actions that act at the same time.

    Policies see the observations of their own agent; the critics see the observations and actions of all agents, and
    are used in training only. Each module has its own critic, so rewards may differ between agents. Most defaults
    are those of the paper. ``lr`` is None: policies and critics have learning rates of their own. ``grad_clip`` bounds
    the gradients of the policy and of each critic separately.
    """

    _algo_class = "marl_connectors.algorithms.maddpg.learner:MADDPG"
    _own_rates = "actor_lr", "critic_lr"
    training = chain(MADDPGTraining)

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> MADDPG: ...
        def build(self, env: Any = None) -> MADDPG: ...

    rollout_fragment_length = 100

    @property
    def draws_actions(self) -> bool:
        """False: the policies are deterministic."""
        return False

    def model_settings(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> dict[str, Any]:
        """Returns ``twin_q`` and the number of the critic's inputs."""
        return {"twin_q": self.twin_q, "critic_inputs": self.joint_inputs(setup, env_to_module).size}

    def joint_inputs(self, setup: Any, env_to_module: Any) -> JointInputs:
        """Returns the layout of the critics' inputs.

        Raises:
            ConfigError: If the environment has a single agent, or agents act one after another.
        """
        from marl_connectors.algorithms.maddpg.joint_inputs import JointInputs

        name = type(self).__name__
        if setup.single_agent:
            raise ConfigError(
                f"{name}: {setup.name} has a single agent, so there is nothing to join. Use SACConfig (--algo sac on "
                f"the command line)."
            )
        if setup.takes_turns:
            raise ConfigError(
                f"{name}: in {setup.name} agents act one after another, so no env step has the actions of all. Use an "
                f"environment whose agents act at the same time, or SACConfig (--algo sac on the command line)."
            )
        held = env_to_module.observation_space_in_episodes.spaces
        return JointInputs({a: (held[a], setup.agent_spaces(a)[1]) for a in setup.agent_ids})

    def default_learner_pieces(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> list[ConnectorV2]:
        """Returns the piece that adds the observations and actions of all agents."""
        from marl_connectors.algorithms.maddpg.joint_inputs import AddJointInputsToTrainBatch

        return [AddJointInputsToTrainBatch(inputs=self.joint_inputs(setup, env_to_module))]


class MATD3Config(MADDPGConfig):
    """The settings of MADDPG with what TD3 (Fujimoto et al., 2018) adds: twin critics, delayed policies, noise."""

    twin_q = True
    policy_delay = 2
    target_noise = 0.2

    _algo_class = "marl_connectors.algorithms.maddpg.learner:MATD3"

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> MATD3: ...
        def build(self, env: Any = None) -> MATD3: ...
