"""MixedConfig."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig, is_same
from marl_connectors.algorithms.config.sections import chain, settings_of_algorithm
from marl_connectors.algorithms.off_policy.config import OffPolicyReporting
from marl_connectors.errors import ConfigError
from marl_connectors.learner.policies_to_train import reads_batches
from marl_connectors.typing import ModuleID
from marl_connectors.validators import Given, dict_of, section, setting, shown, text

if TYPE_CHECKING:
    from typing_extensions import Self

    from marl_connectors.algorithms.mixed.mixed import Mixed
    from marl_connectors.rl_module.rl_module import RLModule


@section
class AlgorithmSettings:
    """Sets the algorithm of each module."""

    algorithm_configs: dict[str, AlgorithmConfig] = setting(
        dict_of(text(), expected="a dict {id of a module, or a pattern: config of its algorithm}"),
        'An id may be a pattern such as ``"red*"``; the first one that fits counts. The configs have settings of '
        "``training`` and a ``model_config`` only.",
        default={},
        kw_only=False,
        converter=Given[Mapping[str, AlgorithmConfig]],
    )


class MixedConfig(AlgorithmConfig, AlgorithmSettings, OffPolicyReporting):
    """The settings of a run in which modules learn with different algorithms.

    The settings of ``training``, and ``model_config``, are those of each algorithm. All others are the run's. For
    example::

        config = (
            MixedConfig()
            .environment("mpe2.simple_adversary_v3")
            .multi_agent(policies="independent")
            .algorithms({"adversary*": PPOConfig().training(lr=3e-4), "agent*": DQNConfig().training(n_step=3)})
        )
    """

    _algo_class = "marl_connectors.algorithms.mixed.mixed:Mixed"

    if TYPE_CHECKING:

        def build_algo(self, env: Any = None) -> Mixed: ...
        def build(self, env: Any = None) -> Mixed: ...

    algorithms = chain(AlgorithmSettings)
    reporting = chain(OffPolicyReporting)

    def training(self, **settings: Any) -> Self:
        """Raises an error, as each algorithm has its own settings of ``training``."""
        name = next(iter(settings), "lr")
        raise ConfigError(_of_algorithms(type(self).__name__, name))

    # The algorithms.

    def algorithm_of(self, module_id: ModuleID) -> str:
        """Returns the name of the algorithm that learns a module: the first pattern that fits the id.

        Raises:
            ConfigError: If none does.
        """
        for pattern in self.algorithm_configs:
            if fnmatchcase(module_id, pattern):
                return pattern
        raise ConfigError(
            f"{type(self).__name__}: module {module_id!r} has no algorithm. Give it one: "
            f".algorithms({{{module_id!r}: PPOConfig(), ...}}). There are {self._listed()}."
        )

    def _listed(self) -> str:
        return ", ".join(map(repr, self.algorithm_configs)) or "none yet"

    def configs_of_algorithms(self) -> dict[str, AlgorithmConfig]:
        """Returns the complete config of each algorithm, by its pattern. It is the same object at each call."""
        return {pattern: self._complete(pattern) for pattern in self.algorithm_configs}

    def _complete(self, pattern: str) -> AlgorithmConfig:
        if pattern not in self._module_configs:
            config = self.algorithm_configs[pattern].copy()
            config.change(**self._settings_for(pattern))
            if self._is_frozen:
                config.freeze()
            self._module_configs[pattern] = config
        return self._module_configs[pattern]

    def _settings_for(self, pattern: str) -> dict[str, Any]:
        """Returns the settings of the run, for the config of an algorithm."""
        own = self.algorithm_configs[pattern]
        of_run = own.to_dict().keys() - settings_of_algorithm(type(own))
        found = {name: value for name, value in self.to_dict().items() if name in of_run}
        if own.model_config is None:
            found["model_config"] = self.model_config
        overrides = self.algorithm_config_overrides_per_module.items()
        found["algorithm_config_overrides_per_module"] = {m: o for m, o in overrides if self.algorithm_of(m) == pattern}
        return found

    def get_config_for_module(self, module_id: ModuleID) -> AlgorithmConfig:
        """Returns the complete config of a module's algorithm, with the module's overrides.

        Raises:
            ConfigError: If the module has no algorithm.
        """
        return self._complete(self.algorithm_of(module_id)).get_config_for_module(module_id)

    @property
    def draws_actions(self) -> bool:
        """Whether any algorithm learns distributions. The policies of the others then explore as in training."""
        return self.explore and any(config.draws_actions for config in self.algorithm_configs.values())

    def replay_class(self, pattern: str) -> Any:
        """Returns the ReplayTraining of an algorithm; None if it learns from each sample once."""
        return getattr(self.algorithm_configs[pattern].algo_class, "replay_class", None)

    @property
    def total_train_batch_size(self) -> int:
        """The number of steps that an iteration samples: the largest train batch of the on-policy algorithms."""
        on_policy = [c for pattern, c in self.algorithm_configs.items() if self.replay_class(pattern) is None]
        sizes = [config.train_batch_size_per_learner for config in on_policy]
        return max(sizes, default=self.min_sample_timesteps_per_iteration)

    def get_default_rl_module_class(self) -> type[RLModule]:
        """Raises an error: each algorithm has its own default."""
        raise ConfigError(f"{type(self).__name__}: each algorithm has its own default RLModule.")

    # The config as a whole.

    def change(self, who: str = "", /, **settings: Any) -> None:
        """Changes settings even of a frozen config. Learners see the changes in the configs that they have."""
        if settings.get("algorithm_configs") == self.algorithm_configs:  # the same objects
            del settings["algorithm_configs"]
        known = {} if "algorithm_configs" in settings else dict(self._module_configs)
        super().change(who, **settings)
        for pattern, config in known.items():
            config.change(**self._settings_for(pattern))
        self._module_configs.update(known)

    def freeze(self) -> None:
        """Makes any further change an error."""
        super().freeze()
        for config in self._module_configs.values():
            config.freeze()

    def _checked(self, name: str, value: Any, who: str) -> Any:
        kept = super()._checked(name, value, who)
        if name == "algorithm_configs":
            return {pattern: _checked_algorithm(pattern, config, who) for pattern, config in kept.items()}
        if name == "policies_to_train" and callable(kept) and reads_batches(kept):
            raise ConfigError(
                f"{who}: policies_to_train: expected fn(module_id), because each algorithm has its own batches. Leave "
                f"out the argument for the batch."
            )
        return kept

    def _checked_overrides(self, module_id: ModuleID, overrides: Mapping[str, Any], who: str) -> dict[str, Any]:
        known = self.__dict__.get("algorithm_configs", {})
        own = next((config for pattern, config in known.items() if fnmatchcase(module_id, pattern)), None)
        return dict(overrides) if own is None else own._checked_overrides(module_id, overrides, who)

    def validate(self) -> None:
        """Checks in addition that there are algorithms, and that each has valid settings."""
        name = type(self).__name__
        if not self.algorithm_configs:
            raise ConfigError(
                f'{name}: no algorithms. Call .algorithms({{"red*": PPOConfig(), "blue": DQNConfig()}}), with the ids '
                f"of your modules."
            )
        default = type(self)()
        for own in sorted(settings_of_algorithm(AlgorithmConfig) - {"model_config"}):
            if not is_same(getattr(self, own), getattr(default, own)):
                raise ConfigError(_of_algorithms(name, own))
        if self.num_learners:
            raise ConfigError(
                f"{name}: num_learners={self.num_learners}, but the learners of several algorithms are in the "
                f"algorithm's process. Set num_learners=0."
            )
        if self.input_ is not None:
            raise ConfigError(f"{name}: input_ is for runs with one algorithm. Use that algorithm's config.")
        for module_id in self.algorithm_config_overrides_per_module:
            self.algorithm_of(module_id)
        super().validate()
        for pattern, config in self.configs_of_algorithms().items():
            try:
                config.validate()
            except ConfigError as error:
                raise ConfigError(f"{name}, the algorithm of {pattern!r}: {error}") from error


def _of_algorithms(who: str, setting: str) -> str:
    return (
        f"{who}: {setting} is a setting of each algorithm. Set it there: "
        f".algorithms({{...: PPOConfig().training({setting}=...)}})."
    )


def _checked_algorithm(pattern: str, config: AlgorithmConfig, who: str) -> AlgorithmConfig:
    """Returns a copy of the config of an algorithm.

    Raises:
        ConfigError: If it is no such config, is of an algorithm that cannot be mixed, or has settings of the run as a
            whole.
    """
    who, name = f"{who}: the algorithm of {pattern!r}", type(config).__name__
    if not isinstance(config, AlgorithmConfig):
        raise ConfigError(f"{who}: expected the config of an algorithm, got {shown(config)}. Write PPOConfig().")
    if isinstance(config, MixedConfig):
        raise ConfigError(f"{who}: expected the config of one algorithm, got a {name}. Name its algorithms here.")
    algo_class, plain = config.algo_class, AlgorithmConfig().algo_class
    samples_itself = algo_class._sample_and_update is not plain._sample_and_update
    if samples_itself and not getattr(getattr(algo_class, "replay_class", None), "can_be_mixed", False):
        raise ConfigError(
            f"{who}: {algo_class.__name__} collects its data in its own way, so it needs a run of its own. Use its "
            f"config instead of MixedConfig."
        )
    own, default = settings_of_algorithm(type(config)), type(config)().to_dict()
    of_run = {setting: value for setting, value in config.to_dict().items() if setting not in own}
    changed = [setting for setting, value in of_run.items() if not is_same(value, default[setting])]
    if changed:
        raise ConfigError(
            f"{who}: {name} sets {', '.join(changed)}, but each algorithm has only settings of training and a "
            f"model_config for itself. Set the others in MixedConfig."
        )
    return config.copy()
