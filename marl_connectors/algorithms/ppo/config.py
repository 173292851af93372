"""PPOConfig."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.config.settings import TrainingSettings
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.validators import boolean, number, one_of, section, setting

if TYPE_CHECKING:
    from marl_connectors.algorithms.ppo.ppo import PPO
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.registry.spec import EnvSpec
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec


@section
class PPOTraining(TrainingSettings):
    """Sets how the modules learn."""

    lr: Schedule = 5e-5
    train_batch_size_per_learner: int = 4000
    num_epochs: int = 30
    minibatch_size: int | None = 128
    shuffle_batch_per_epoch: bool = True
    use_critic: bool = setting(
        boolean(), "Whether there is a value function; without one, advantages are returns.", default=True, fixed=True
    )
    use_gae: bool = setting(
        boolean(), "Whether advantages are generalised advantage estimates (else lambda is 1).", default=True
    )
    lambda_: float = setting(number(min=0, max=1), "Bias/variance trade-off of advantages.", default=1.0)
    use_kl_loss: bool = setting(
        boolean(), "Whether the loss has a penalty on the KL divergence from the policy that acted.", default=True
    )
    kl_coeff: float = setting(
        number(min=0), "The initial weight of this penalty; it is adapted after each update.", default=0.2, fixed=True
    )
    kl_target: float = setting(
        number(min=0), "The KL divergence, in nats, that the weight is adapted to.", default=0.01
    )
    vf_loss_coeff: float = setting(number(min=0), "Weight of the value loss.", default=1.0)
    entropy_coeff: Schedule = setting(schedule(), "Weight of the entropy bonus, or a schedule.", default=0.0)
    clip_param: float = setting(
        number(min=0, max=math.inf), "How far the probability ratio may move from 1.", default=0.3
    )
    vf_clip_param: float = setting(
        number(min=0, max=math.inf),
        'With ``vf_loss="mse"``, the bound of a row\'s squared value error; a row beyond it has no gradient '
        "(docs/ppo.md).",
        default=10.0,
    )
    vf_loss: str = setting(
        one_of("mse", "huber"),
        "Squared error, or Huber loss, which ``vf_clip_param`` does not bound.",
        default="mse",
    )
    vf_huber_delta: float = setting(
        number(above=0),
        "The value error beyond which the Huber loss grows linearly.",
        default=10.0,
    )
    normalize_values: bool = setting(
        boolean(), "Whether value functions predict normalised returns (docs/ppo.md).", default=False
    )
    value_norm_beta: float = setting(
        number(min=0, max=1), "The weight that the statistics of earlier updates keep in an update.", default=0.99999
    )


class PPOConfig(AlgorithmConfig, PPOTraining):
    """The settings of proximal policy optimisation."""

    _algo_class = "marl_connectors.algorithms.ppo.ppo:PPO"
    training = chain(PPOTraining)

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> PPO: ...
        def build(self, env: Any = None) -> PPO: ...

    def get_default_rl_module_class(self) -> type[RLModule]:
        """Returns DefaultPPORLModule, a policy and a value function for all spaces of a fixed size."""
        from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

        return DefaultPPORLModule

    def get_default_learner_class(self) -> type[Learner]:
        """Returns PPOLearner."""
        from marl_connectors.algorithms.ppo.learner import PPOLearner

        return PPOLearner

    def complete_rl_module_spec(
        self, spec: RLModuleSpec, setup: EnvSpec, env_to_module: EnvToModulePipeline
    ) -> RLModuleSpec:
        """Returns the spec unchanged, after a check that its action distribution covers the action space.

        Raises:
            ConfigError: If the distribution is bounded and the space has other bounds.
        """
        from marl_connectors.algorithms.action_bounds import check_action_bounds
        from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

        check_action_bounds(self, spec, DefaultPPORLModule)
        return spec
