"""DQNConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from marl_connectors.algorithms.config.sections import section_of
from marl_connectors.algorithms.off_policy.config import (
    OffPolicyConfig,
    OffPolicyTrainingSettings,
    with_model_settings,
)
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.validators import Switch, one_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.rl_module import RLModuleSpec


class DQNTrainingSettings(OffPolicyTrainingSettings, total=False):
    """The settings that DQN's ``training`` accepts in addition to those of every off-policy algorithm.

    Attributes:
        epsilon: The probability of a random action when exploring, a number or a schedule over sampled steps.
        double_q: Whether the module chooses the next action and its target network judges it (van Hasselt et al.,
            2016), instead of the target network doing both.
        dueling: Whether the default module has heads of their own for the observation's value and the actions'
            advantages.
        td_error_loss_fn: ``"huber"``, which grows linearly beyond an error of 1, or ``"mse"``.
    """

    epsilon: Schedule
    double_q: bool
    dueling: bool
    td_error_loss_fn: str


class DQNConfig(OffPolicyConfig):
    """The settings of deep Q-learning, for agents with Discrete actions.

    With several modules, each learns from its own agents' steps alone (independent Q-learning).
    """

    lr = 5e-4
    train_batch_size_per_learner = 32
    grad_clip = 40.0
    epsilon: Annotated[Schedule, schedule(min=0, max=1)] = [[0, 1.0], [10_000, 0.05]]  # copied before use
    double_q: Switch = True
    dueling: Switch = True
    td_error_loss_fn: Annotated[str, one_of("huber", "mse")] = "huber"
    target_network_update_freq = 500
    tau = 1.0
    replay_buffer_config = {  # copied before use
        "type": "PrioritizedEpisodeReplayBuffer",
        "capacity": 50_000,
        "alpha": 0.6,
        "beta": 0.4,
    }

    fixed_settings: ClassVar[frozenset[str]] = OffPolicyConfig.fixed_settings | {"dueling"}
    _algo_class = "marl_connectors.algorithms.dqn.dqn:DQN"

    @property
    def draws_actions(self) -> bool:
        """False: the policies take the actions of the highest values."""
        return False

    @section_of(DQNTrainingSettings)
    def training(self, **settings: Unpack[DQNTrainingSettings]) -> None:
        """Sets how the modules learn. ``TrainingSettings`` and ``DQNTrainingSettings`` list the settings."""

    def build_algo(self, env: Any = None) -> Algorithm:
        """Builds the algorithm with these settings, ready to ``train()``."""
        return super().build_algo(env)

    def get_default_rl_module_class(self) -> Any:
        """Returns DefaultDQNRLModule."""
        from marl_connectors.algorithms.dqn.rl_module import DefaultDQNRLModule

        return DefaultDQNRLModule

    def get_default_learner_class(self) -> type[Learner]:
        """Returns DQNLearner."""
        from marl_connectors.algorithms.dqn.learner import DQNLearner

        return DQNLearner

    def complete_rl_module_spec(self, spec: RLModuleSpec, setup: Any, env_to_module: Any) -> RLModuleSpec:
        """Adds ``dueling`` to the settings of the default module."""
        from marl_connectors.algorithms.dqn.rl_module import DefaultDQNRLModule, DQNModelConfig

        return with_model_settings(spec, DefaultDQNRLModule, DQNModelConfig, {"dueling": self.dueling})
