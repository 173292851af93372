"""SACConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.off_policy.config import OffPolicyConfig, OffPolicyTraining
from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.validators import boolean, either, number, one_of, optional, section, setting

if TYPE_CHECKING:
    from marl_connectors.algorithms.sac.learner import SAC
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.registry.spec import EnvSpec

_BY_MODEL_CONFIG = ("twin_q", "initial_alpha")


@section
class SACTraining(OffPolicyTraining):
    """Sets how the modules learn."""

    lr: Schedule | None = setting(
        optional(schedule(min=0)),
        "Always None: policy, critics and temperature have their own.",
        default=None,
        per_module=True,
    )
    train_batch_size_per_learner: int = 256
    num_steps_sampled_before_learning_starts: int = 1500
    twin_q: bool = setting(
        boolean(), "Whether there are two critics, of which the smaller value counts.", default=True, fixed=True
    )
    initial_alpha: float = setting(
        number(above=0),
        "The temperature at the beginning, the weight of the entropy beside the rewards.",
        default=1.0,
        fixed=True,
    )
    target_entropy: float | str = setting(
        either(one_of("auto"), number()),
        'The entropy in nats at which the temperature aims. ``"auto"`` is the negative number of an action\'s '
        "dimensions for Box spaces, and 0.98 times the greatest possible entropy for Discrete spaces.",
        default="auto",
    )
    actor_lr: Schedule = setting(
        schedule(min=0), "The learning rate of the policy, a number or a schedule over sampled steps.", default=3e-4
    )
    critic_lr: Schedule = setting(schedule(min=0), "The learning rate of the critics.", default=3e-4)
    alpha_lr: Schedule = setting(
        schedule(min=0), "The learning rate of the temperature's logarithm; 0 to keep ``initial_alpha``.", default=3e-4
    )


class SACConfig(OffPolicyConfig, SACTraining):
    """The settings of soft actor-critic, for agents with Box or Discrete actions.

    With several modules, each learns from its own agents' steps alone. ``lr`` is None: policy, critics and temperature
    have learning rates of their own.
    """

    _algo_class = "marl_connectors.algorithms.sac.learner:SAC"
    _own_rates = "actor_lr", "critic_lr", "alpha_lr"
    training = chain(SACTraining)

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> SAC: ...
        def build(self, env: Any = None) -> SAC: ...

    def model_settings(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> dict[str, Any]:
        """Returns ``twin_q`` and ``initial_alpha``."""
        return {name: getattr(self, name) for name in _BY_MODEL_CONFIG}

    def validate(self) -> None:
        """Checks in addition that modules have their own settings where they belong."""
        super().validate()
        for module_id, overrides in self.algorithm_config_overrides_per_module.items():
            for name in _BY_MODEL_CONFIG:
                if name in overrides:
                    raise ConfigError(
                        f"algorithm_config_overrides_per_module[{module_id!r}]: {name} is a setting of the module. Set "
                        f"it in the module's own model_config: {{'model_config': {{{name!r}: {overrides[name]!r}}}}}."
                    )
