"""MARWILConfig."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.config.settings import TrainingSettings
from marl_connectors.columns import Columns
from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import Schedule
from marl_connectors.validators import boolean, number, section, setting

if TYPE_CHECKING:
    from marl_connectors.algorithms.marwil.marwil import MARWIL
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.registry.spec import EnvSpec
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec


@section
class MARWILTraining(TrainingSettings):
    """Sets how the modules learn."""

    lr: Schedule = 1e-4
    train_batch_size_per_learner: int = 2000
    beta: float = setting(
        number(min=0),
        "How much better actions are preferred: an action counts ``exp(beta * advantage / norm)`` times. With 0, "
        "all count once, and there is no critic: behaviour cloning.",
        default=1.0,
    )
    bc_logstd_coeff: float = setting(
        number(min=0),
        "The weight of a bonus for the mean log standard deviation of normal distributions, which keeps policies "
        "from becoming narrow. It does nothing to other distributions.",
        default=0.0,
    )
    moving_average_sqd_adv_norm_update_rate: float = setting(
        number(min=0, max=1),
        "How far the moving average of squared advantages moves in an update towards the newest ones. Its root is "
        "the norm by which advantages are divided.",
        default=1e-8,
    )
    moving_average_sqd_adv_norm_start: float = setting(
        number(above=0), "The initial value of that moving average.", default=100.0, fixed=True
    )
    max_adv_weight: float = setting(
        number(above=0, max=math.inf), "The largest number of times that an action counts.", default=20.0
    )
    vf_coeff: float = setting(number(min=0), "The weight of the value loss.", default=1.0)
    use_gae: bool = setting(
        boolean(), "Whether advantages are generalised advantage estimates; if not, lambda is 1.", default=True
    )
    lambda_: float = setting(
        number(min=0, max=1),
        "The bias/variance trade-off of value targets, in [0, 1]: 1 for the discounted sums of all rewards.",
        default=1.0,
    )


class MARWILConfig(AlgorithmConfig, MARWILTraining):
    """The settings of imitation weighted by advantages (MARWIL).

    Modules are the default ones of PPO. ``.offline_data(input_=...)`` names the recorded episodes.
    """

    _algo_class = "marl_connectors.algorithms.marwil.marwil:MARWIL"
    training = chain(MARWILTraining)

    if TYPE_CHECKING:

        def build(self, env: Any = None) -> MARWIL: ...

    def build_algo(self, env: Any = None) -> MARWIL:
        """Builds the algorithm with these settings, ready to ``train()``.

        Raises:
            ConfigError: If there are no recorded episodes to imitate.
        """
        self.check_input()
        algorithm: Any = super().build_algo(env)
        return algorithm

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

    @property
    def learns_from_other_policies(self) -> bool:
        """True: it imitates the policies of recorded episodes."""
        return True

    @property
    def unread_columns(self) -> tuple[str, ...]:
        """What the recorded policies have computed, which says nothing about the modules that imitate them."""
        return Columns.STATE_OUT, Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP

    def get_default_rl_module_class(self) -> type[RLModule]:
        """Returns DefaultPPORLModule, a policy and a value function for all spaces of a fixed size."""
        from marl_connectors.algorithms.ppo.rl_module import DefaultPPORLModule

        return DefaultPPORLModule

    def get_default_learner_class(self) -> type[Learner]:
        """Returns MARWILLearner."""
        from marl_connectors.algorithms.marwil.learner import MARWILLearner

        return MARWILLearner

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
