"""SACConfig."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.off_policy.config import OffPolicyConfig, OffPolicyTraining
from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.validators import boolean, either, number, one_of, optional, section, setting

if TYPE_CHECKING:
    from marl_connectors.rl_module.rl_module import RLModuleSpec

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
    training = chain(SACTraining)

    def model_settings(self, setup: Any, env_to_module: Any) -> dict[str, Any]:
        """Returns ``twin_q`` and ``initial_alpha``."""
        return {name: getattr(self, name) for name in _BY_MODEL_CONFIG}

    def complete_rl_module_spec(self, spec: RLModuleSpec, setup: Any, env_to_module: Any) -> RLModuleSpec:
        """Checks in addition that the action distribution covers the action space.

        Raises:
            ConfigError: If the action distribution is bounded and the space has other bounds.
        """
        from marl_connectors.algorithms.action_bounds import check_action_bounds
        from marl_connectors.algorithms.sac.rl_module import DefaultSACRLModule, SACModelConfig

        completed = super().complete_rl_module_spec(spec, setup, env_to_module)
        check_action_bounds(self, completed, DefaultSACRLModule, SACModelConfig.action_distribution)
        return completed

    def validate(self) -> None:
        """Checks in addition that the learning rates are set by their names."""
        super().validate()
        for module_id, overrides in (None, {"lr": self.lr}), *self.algorithm_config_overrides_per_module.items():
            who = type(self).__name__ if module_id is None else f"algorithm_config_overrides_per_module[{module_id!r}]"
            if overrides.get("lr") is not None:
                raise ConfigError(
                    f"{who}: lr={overrides['lr']!r}, but SAC has no common learning rate. Set actor_lr, critic_lr and "
                    f"alpha_lr, and leave lr at None."
                )
            for name in _BY_MODEL_CONFIG:
                if name in overrides:
                    raise ConfigError(
                        f"{who}: {name} is a setting of the module. Set it in the module's own model_config: "
                        f"{{'model_config': {{{name!r}: {overrides[name]!r}}}}}."
                    )
