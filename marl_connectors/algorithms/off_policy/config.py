"""OffPolicyConfig: the settings of algorithms that learn from a replay buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.config.settings import ReportingSettings, TrainingSettings
from marl_connectors.columns import Columns
from marl_connectors.errors import ConfigError
from marl_connectors.validators import (
    Unfit,
    Validator,
    dict_of,
    either,
    integer,
    number,
    optional,
    section,
    setting,
    text,
)

if TYPE_CHECKING:
    from marl_connectors.algorithms.off_policy.replay_algorithm import ReplayAlgorithm
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.environments.registry.spec import EnvSpec
    from marl_connectors.learner.learner import Learner
    from marl_connectors.replay_buffers.n_step import NStep
    from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec


def _n_step() -> Validator:
    def keep(given: Any) -> list[int]:
        if not isinstance(given, (list, tuple)) or len(given) != 2:
            raise Unfit
        least, most = (integer(min=1).keep(value) for value in given)
        if least > most:
            raise Unfit
        return [least, most]

    of_range = {"type": "array", "items": integer(min=1).schema, "minItems": 2, "maxItems": 2}
    return either(integer(min=1), Validator("a range (least, largest) of such numbers", keep, of_range))


@section
class OffPolicyTraining(TrainingSettings):
    """Sets how the modules learn."""

    n_step: NStep = setting(
        _n_step(),
        "The number of rewards in a step's target; or the least and the largest number of a range, such as ``(2, "
        "5)``, from which one is drawn for each step of a train batch.",
        default=1,
        per_module=False,
    )
    target_network_update_freq: int = setting(
        integer(min=0),
        "The number of sampled steps between updates of the target networks; 0 to update them with every update of "
        "the modules.",
        default=0,
        per_module=False,
    )
    tau: float = setting(
        number(min=0, max=1),
        "How far the target networks move towards the modules then: 1 to copy them.",
        default=0.005,
    )
    num_steps_sampled_before_learning_starts: int = setting(
        integer(min=0),
        "The number of steps that are sampled before the first update. Like the number before and schedules, it is "
        "counted by ``count_steps_by``. Steps that are read from recorded episodes count as sampled, here and "
        "below.",
        default=1000,
        per_module=False,
    )
    training_intensity: float | None = setting(
        optional(number(above=0)),
        "The number of steps of each module that are trained on for each env step that is sampled, whatever "
        "``count_steps_by`` counts; None for one update after each sample.",
        default=None,
        per_module=False,
    )
    burn_in_len: int = setting(
        integer(min=0),
        "The number of steps at the beginning of a stateful module's training sequences from which only a state is "
        "computed. A sequence has ``max_seq_len`` steps (of the ``model_config``), these included.",
        default=0,
        per_module=False,
    )
    replay_buffer_config: dict[str, Any] = setting(
        dict_of(text()),
        '``type``, ``"EpisodeReplayBuffer"`` or ``"PrioritizedEpisodeReplayBuffer"`` (or RLlib\'s names for '
        'several agents, ``"MultiAgentEpisodeReplayBuffer"`` and so on), and the arguments of that class, such as '
        "``capacity``. Those that are left out are the algorithm's defaults, or with another ``type`` those of the "
        'class. The buffers of teams are ``"TeamReplayBuffer"`` (VDN, QMIX) and ``"JointReplayBuffer"`` (MADDPG), '
        'with priorities ``"PrioritizedTeamReplayBuffer"`` and ``"PrioritizedJointReplayBuffer"``.',
        default={  # copied before use
            "type": "EpisodeReplayBuffer",
            "capacity": 100_000,
        },
        per_module=False,
        changeable=False,
    )


@section
class OffPolicyReporting(ReportingSettings):
    """Sets the length of iterations, and over how many episodes returns are averaged."""

    min_sample_timesteps_per_iteration: int = setting(
        integer(min=1),
        "The number of env steps that an iteration samples. In a run with several algorithms, it counts only if all of "
        "them learn from replay buffers; otherwise an iteration samples a train batch of the other algorithms.",
        default=1000,
        per_module=False,
    )


class OffPolicyConfig(AlgorithmConfig, OffPolicyTraining, OffPolicyReporting):
    """The settings that all algorithms with a replay buffer share."""

    _algo_class = "marl_connectors.algorithms.off_policy.replay_algorithm:ReplayAlgorithm"
    _own_rates: tuple[str, ...] = ()
    """The settings that take the place of ``lr``."""
    training = chain(OffPolicyTraining)
    reporting = chain(OffPolicyReporting)

    if TYPE_CHECKING:
        algo_class: type[ReplayAlgorithm]

        def build_algo(self, env: Any = None) -> ReplayAlgorithm: ...
        def build(self, env: Any = None) -> ReplayAlgorithm: ...

    def get_default_rl_module_class(self) -> type[RLModule]:
        """Returns the ``module_class`` of the algorithm."""
        return self.algo_class.module_class or super().get_default_rl_module_class()

    def get_default_learner_class(self) -> type[Learner]:
        """Returns the ``learner_class`` of the algorithm."""
        return self.algo_class.learner_class or super().get_default_learner_class()

    def complete_rl_module_spec(
        self, spec: RLModuleSpec, setup: EnvSpec, env_to_module: EnvToModulePipeline
    ) -> RLModuleSpec:
        """Adds ``model_settings`` to the settings of the default module.

        Raises:
            ConfigError: If the action distribution is bounded and the action space has other bounds.
        """
        from marl_connectors.algorithms.action_bounds import UNBOUNDED, check_action_bounds

        module_class = self.get_default_rl_module_class()
        completed = _with_model_settings(spec, module_class, self.model_settings(setup, env_to_module))
        check_action_bounds(self, completed, module_class, getattr(module_class, "action_distribution", UNBOUNDED))
        return completed

    def model_settings(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> dict[str, Any]:
        """Returns what the algorithm sets in the ``model_config`` of its default module; nothing unless overridden.

        Args:
            setup: The environment.
            env_to_module: The env-to-module pipeline.
        """
        del setup, env_to_module
        return {}

    def validate(self) -> None:
        """Checks in addition that one learner updates all modules and gives steps priorities, and learning rates."""
        super().validate()
        name = type(self).__name__
        if self.held_out_fraction or self.held_out_input_ is not None:
            raise ConfigError(
                f"{name}: held_out_fraction and held_out_input_ are for losses of recorded episodes, which are not "
                f"computed for algorithms with a replay buffer. Leave them out, and let the policies play instead: "
                f".evaluation(evaluation_interval=10)."
            )
        if self.num_learners:
            raise ConfigError(
                f"{name}: num_learners={self.num_learners}, but a replay buffer is in the algorithm's process, and so "
                f"must be its learner. Set num_learners=0."
            )
        self._check_priorities()
        rates = ", ".join(self._own_rates)
        for module_id, overrides in (None, {"lr": self.lr}), *self.algorithm_config_overrides_per_module.items():
            if rates and overrides.get("lr") is not None:
                who = name if module_id is None else f"algorithm_config_overrides_per_module[{module_id!r}]"
                raise ConfigError(
                    f"{who}: lr={overrides['lr']!r}, but there is no common learning rate. Set {rates}, and leave lr "
                    f"at None."
                )

    @property
    def learns_from_other_policies(self) -> bool:
        """True: a step says what an action led to, whoever chose it."""
        return True

    @property
    def has_replay_buffer(self) -> bool:
        """True."""
        return True

    @property
    def unread_columns(self) -> tuple[str, ...]:
        """What the recorded policies have computed, which says nothing about the modules that learn."""
        return Columns.STATE_OUT, Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP

    def _check_priorities(self) -> None:
        """Checks that an update computes the errors of all rows at once, in the order in which they were drawn."""
        buffer_type = self.replay_buffer_config.get("type", type(self).replay_buffer_config["type"])
        if "Prioritized" not in str(buffer_type):
            return
        for name, without in (("shuffle_batch_per_epoch", False), ("minibatch_size", None)):
            value = getattr(self, name)
            if value != without:
                raise ConfigError(
                    f"{type(self).__name__}: {name}={value!r}, but the replay buffer needs the errors of all rows of a "
                    f"train batch in their order, for the priorities. Set {name}={without}, or draw all steps with "
                    f"equal probabilities: replay_buffer_config={{'type': 'EpisodeReplayBuffer'}}."
                )


def _with_model_settings(spec: RLModuleSpec, module_class: Any, settings: Mapping[str, Any]) -> RLModuleSpec:
    """Returns a spec whose ``model_config`` has settings of the algorithm, if it is one of a default module.

    Args:
        spec: The spec.
        module_class: The class of the default module. Modules of other classes stay as they are.
        settings: The settings. Those that a dict names itself stay as they are.
    """
    given: Any = spec.model_config
    if not settings or not issubclass(spec.module_class or module_class, module_class):
        return spec
    if given is None or isinstance(given, Mapping):
        return dataclasses.replace(spec, model_config={**settings, **(given or {})})
    own = module_class.model_config_class.of(given)
    return dataclasses.replace(spec, model_config=dataclasses.replace(own, **settings))
