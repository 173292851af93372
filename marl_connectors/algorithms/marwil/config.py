"""MARWILConfig."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from marl_connectors.algorithms.action_bounds import check_action_bounds
from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig, TrainingSettings
from marl_connectors.algorithms.config.sections import section_of
from marl_connectors.columns import Columns
from marl_connectors.errors import ConfigError
from marl_connectors.validators import Switch, number

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.rl_module import RLModuleSpec


class MARWILTrainingSettings(TrainingSettings, total=False):
    """The settings that MARWIL's ``training`` accepts in addition to those of every algorithm.

    Attributes:
        beta: How much better actions are preferred: an action counts ``exp(beta * advantage / norm)`` times. With 0,
            all count once, and there is no critic: behaviour cloning.
        bc_logstd_coeff: The weight of a bonus for the mean log standard deviation of normal distributions, which keeps
            policies from becoming narrow. It does nothing to other distributions.
        moving_average_sqd_adv_norm_update_rate: How far the moving average of squared advantages moves in an update
            towards the newest ones. Its root is the norm by which advantages are divided.
        moving_average_sqd_adv_norm_start: The initial value of that moving average.
        max_adv_weight: The largest number of times that an action counts.
        vf_coeff: The weight of the value loss.
        use_gae: Whether advantages are generalised advantage estimates; if not, lambda is 1.
        lambda_: The bias/variance trade-off of value targets, in [0, 1]: 1 for the discounted sums of all rewards.
    """

    beta: float
    bc_logstd_coeff: float
    moving_average_sqd_adv_norm_update_rate: float
    moving_average_sqd_adv_norm_start: float
    max_adv_weight: float
    vf_coeff: float
    use_gae: bool
    lambda_: float


class MARWILConfig(AlgorithmConfig):
    """The settings of imitation weighted by advantages (MARWIL).

    Modules are the default ones of PPO. ``.offline_data(input_=...)`` names the recorded episodes.
    """

    lr = 1e-4
    train_batch_size_per_learner = 2000
    beta: Annotated[float, number(min=0)] = 1.0
    bc_logstd_coeff: Annotated[float, number(min=0)] = 0.0
    moving_average_sqd_adv_norm_update_rate: Annotated[float, number(min=0, max=1)] = 1e-8
    moving_average_sqd_adv_norm_start: Annotated[float, number(above=0)] = 100.0
    max_adv_weight: Annotated[float, number(above=0, max=math.inf)] = 20.0
    vf_coeff: Annotated[float, number(min=0)] = 1.0
    use_gae: Switch = True
    lambda_: Annotated[float, number(min=0, max=1)] = 1.0

    fixed_settings: ClassVar[frozenset[str]] = AlgorithmConfig.fixed_settings | {"moving_average_sqd_adv_norm_start"}
    _algo_class = "marl_connectors.algorithms.marwil.marwil:MARWIL"

    @section_of(MARWILTrainingSettings)
    def training(self, **settings: Unpack[MARWILTrainingSettings]) -> None:
        """Sets how the modules learn. ``TrainingSettings`` and ``MARWILTrainingSettings`` list the settings."""

    def build_algo(self, env: Any = None) -> Algorithm:
        """Builds the algorithm with these settings, ready to ``train()``.

        Raises:
            ConfigError: If there are no recorded episodes to imitate.
        """
        self.check_input()
        return super().build_algo(env)

    def check_input(self) -> None:
        """Checks that there are recorded episodes to imitate.

        Raises:
            ConfigError: If there are none.
        """
        if self.input_ is None:
            raise ConfigError(
                f"{type(self).__name__}: expected recorded episodes to learn from, but input_ is not set. Set "
                f".offline_data(input_=FOLDER), on the command line --set input_=FOLDER. "
                f"algo.record(FOLDER), .offline_data(output=FOLDER) and marl-connectors record make such folders."
            )

    def build(self, env: Any = None) -> Algorithm:
        """Does the same as ``build_algo``."""
        return self.build_algo(env)

    @property
    def learns_from_other_policies(self) -> bool:
        """True: it imitates the policies of recorded episodes."""
        return True

    @property
    def unread_columns(self) -> tuple[str, ...]:
        """What the recorded policies have computed, which says nothing about the modules that imitate them."""
        return Columns.STATE_OUT, Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP

    def get_default_rl_module_class(self) -> Any:
        """Returns DefaultPPORLModule, a policy and a value function for all spaces of a fixed size."""
        from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

        return DefaultPPORLModule

    def get_default_learner_class(self) -> type[Learner]:
        """Returns MARWILLearner."""
        from marl_connectors.algorithms.marwil.learner import MARWILLearner

        return MARWILLearner

    def complete_rl_module_spec(self, spec: RLModuleSpec, setup: Any, env_to_module: Any) -> RLModuleSpec:
        """Returns the spec unchanged, after a check that its action distribution covers the action space.

        Raises:
            ConfigError: If the distribution is bounded and the space has other bounds.
        """
        from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

        check_action_bounds(self, spec, DefaultPPORLModule)
        return spec
