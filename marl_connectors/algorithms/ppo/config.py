"""PPOConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space, spaces

from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.learning_sections import TrainingSettings
from marl_connectors.algorithms.section import section_of
from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import Schedule, check_schedule
from marl_connectors.spaces import describe

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.rl_module import RLModuleSpec


class PPOTrainingSettings(TrainingSettings, total=False):
    """What PPO's ``training`` takes beside the settings of every algorithm.

    Attributes:
        use_critic: Whether there is a value function; without one, advantages are returns.
        use_gae: Whether advantages are generalised advantage estimates (else lambda is 1).
        lambda_: Bias/variance trade-off of advantages, in [0, 1].
        use_kl_loss: Whether moving away from the policy that acted is penalised.
        kl_coeff: Weight of that penalty at the start.
        kl_target: The divergence that the weight is adapted to, in nats.
        vf_loss_coeff: Weight of the value loss.
        entropy_coeff: Weight of the entropy bonus, a number or a schedule.
        clip_param: How far the probability ratio may move from 1.
        vf_clip_param: Bound of a row's squared value error.
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


class PPOConfig(AlgorithmConfig):
    """Settings of proximal policy optimisation."""

    def __init__(self) -> None:
        super().__init__()
        self.lr = 5e-5
        self.train_batch_size_per_learner = 4000
        self.num_epochs = 30
        self.minibatch_size = 128
        self.shuffle_batch_per_epoch = True
        self.use_critic = True
        self.use_gae = True
        self.lambda_ = 1.0
        self.use_kl_loss = True
        self.kl_coeff = 0.2
        self.kl_target = 0.01
        self.vf_loss_coeff = 1.0
        self.entropy_coeff: Schedule = 0.0
        self.clip_param = 0.3
        self.vf_clip_param = 10.0

    @section_of(PPOTrainingSettings)
    def training(self, **settings: Unpack[PPOTrainingSettings]) -> None:
        """How the modules learn: ``TrainingSettings`` and ``PPOTrainingSettings`` say what there is."""

    def get_default_rl_module_class(self) -> Any:
        """A policy and a value function for all spaces of a fixed size."""
        from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

        return DefaultPPORLModule

    def get_default_learner_class(self) -> type[Learner]:
        """PPOLearner."""
        from marl_connectors.algorithms.ppo.learner import PPOLearner

        return PPOLearner

    def complete_rl_module_spec(self, spec: RLModuleSpec, setup: Any, env_to_module: Any) -> RLModuleSpec:
        """The spec as it is, once its action distribution can reach all of the action space."""
        if self.normalize_actions or not issubclass(spec.module_class or object, self.get_default_rl_module_class()):
            return spec
        given, space = spec.model_config, spec.action_space
        config = given if isinstance(given, Mapping) else {} if given is None else vars(given)
        chosen = config.get("action_distribution", "gaussian")
        if chosen != "gaussian" and space is not None and _has_other_bounds(space):
            raise ConfigError(
                f"{type(self).__name__}: action_distribution={chosen!r} draws actions in (-1, 1), which "
                f"normalize_actions=False does not stretch to {describe(space)}. Leave normalize_actions "
                f"on, or use action_distribution='gaussian'."
            )
        return spec

    def validate(self) -> None:
        """Also PPO's own settings."""
        super().validate()
        for name in ("kl_coeff", "kl_target", "vf_loss_coeff", "clip_param", "vf_clip_param"):
            value = getattr(self, name)
            self._require(name, isinstance(value, (int, float)) and value >= 0, "a number >= 0")
        self._require(
            "lambda_", isinstance(self.lambda_, (int, float)) and 0 <= self.lambda_ <= 1, "a number in [0, 1]"
        )
        check_schedule("PPOConfig: entropy_coeff", self.entropy_coeff)


def _has_other_bounds(space: Space) -> bool:
    """Whether a Box in a space is not [-1, 1]."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(_has_other_bounds, parts))
    return isinstance(space, spaces.Box) and not bool(np.all(space.low == -1) and np.all(space.high == 1))
