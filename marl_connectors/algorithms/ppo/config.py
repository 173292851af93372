"""PPOConfig."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from marl_connectors.algorithms.action_bounds import check_action_bounds
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig, TrainingSettings
from marl_connectors.algorithms.config.sections import section_of
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.validators import Switch, number, one_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.rl_module import RLModuleSpec


class PPOTrainingSettings(TrainingSettings, total=False):
    """The settings that PPO's ``training`` accepts in addition to those of every algorithm.

    Attributes:
        use_critic: Whether modules have a value function. Without one, advantages are returns.
        use_gae: Whether advantages are generalised advantage estimates; if not, lambda is 1.
        lambda_: The bias/variance trade-off of advantages, in [0, 1].
        use_kl_loss: Whether the divergence from the policy that acted is penalised.
        kl_coeff: The initial weight of that penalty.
        kl_target: The divergence that the weight is adapted to, in nats.
        vf_loss_coeff: The weight of the value loss.
        entropy_coeff: The weight of the entropy bonus, a number or a schedule.
        clip_param: The distance from 1 at which the probability ratio is clipped.
        vf_clip_param: The bound of a row's squared value error, with ``vf_loss="mse"``.
        vf_loss: The value loss: ``"mse"``, the squared error, or ``"huber"``, which grows linearly beyond
            ``vf_huber_delta``.
        vf_huber_delta: The value error up to which the Huber loss is the squared error.
        normalize_values: Whether value functions predict returns that are normalised by their running mean and
            standard deviation. Errors of values, which ``vf_clip_param``, ``vf_huber_delta`` and the value losses in
            the results refer to, are in standard deviations then.
        value_norm_beta: The weight that the statistics of earlier updates keep in an update, in [0, 1].
    """

    use_critic: bool
    use_gae: bool
    lambda_: float
    use_kl_loss: bool
    kl_coeff: float
    kl_target: float
    vf_loss_coeff: float
    entropy_coeff: Schedule
    clip_param: float
    vf_clip_param: float
    vf_loss: str
    vf_huber_delta: float
    normalize_values: bool
    value_norm_beta: float


class PPOConfig(AlgorithmConfig):
    """The settings of proximal policy optimisation."""

    lr = 5e-5
    train_batch_size_per_learner = 4000
    num_epochs = 30
    minibatch_size = 128
    shuffle_batch_per_epoch = True
    use_critic: Switch = True
    use_gae: Switch = True
    lambda_: Annotated[float, number(min=0, max=1)] = 1.0
    use_kl_loss: Switch = True
    kl_coeff: Annotated[float, number(min=0)] = 0.2
    kl_target: Annotated[float, number(min=0)] = 0.01
    vf_loss_coeff: Annotated[float, number(min=0)] = 1.0
    entropy_coeff: Annotated[Schedule, schedule()] = 0.0
    clip_param: Annotated[float, number(min=0, max=math.inf)] = 0.3
    vf_clip_param: Annotated[float, number(min=0, max=math.inf)] = 10.0
    vf_loss: Annotated[str, one_of("mse", "huber")] = "mse"
    vf_huber_delta: Annotated[float, number(above=0)] = 10.0
    normalize_values: Switch = False
    value_norm_beta: Annotated[float, number(min=0, max=1)] = 0.99999

    fixed_settings: ClassVar[frozenset[str]] = AlgorithmConfig.fixed_settings | {"use_critic", "kl_coeff"}
    _algo_class = "marl_connectors.algorithms.ppo.ppo:PPO"

    @section_of(PPOTrainingSettings)
    def training(self, **settings: Unpack[PPOTrainingSettings]) -> None:
        """Sets how the modules learn. ``TrainingSettings`` and ``PPOTrainingSettings`` list the settings."""

    def build_algo(self, env: Any = None) -> Algorithm:
        """Builds the algorithm with these settings, ready to ``train()``."""
        return super().build_algo(env)

    def build(self, env: Any = None) -> Algorithm:
        """Does the same as ``build_algo``."""
        return self.build_algo(env)

    def get_default_rl_module_class(self) -> Any:
        """Returns DefaultPPORLModule, a policy and a value function for all spaces of a fixed size."""
        from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

        return DefaultPPORLModule

    def get_default_learner_class(self) -> type[Learner]:
        """Returns PPOLearner."""
        from marl_connectors.algorithms.ppo.learner import PPOLearner

        return PPOLearner

    def complete_rl_module_spec(self, spec: RLModuleSpec, setup: Any, env_to_module: Any) -> RLModuleSpec:
        """Returns the spec unchanged, after a check that its action distribution covers the action space.

        Raises:
            ConfigError: If the distribution is bounded and the space has other bounds.
        """
        from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

        check_action_bounds(self, spec, DefaultPPORLModule)
        return spec
