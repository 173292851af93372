"""AlgorithmConfig: all settings of a run, set with chainable methods."""

from __future__ import annotations

import copy
import os
import reprlib
from abc import ABCMeta
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.former_settings import UnknownSectionError, hint_at, unknown_attribute
from marl_connectors.algorithms.config.sections import chain
from marl_connectors.algorithms.config.settings import (
    NO_VIDEO,
    CallbackSettings,
    DebuggingSettings,
    EnvironmentSettings,
    EnvRunnerSettings,
    EvaluationSettings,
    ExplorationSettings,
    FaultToleranceSettings,
    FrameworkSettings,
    LearnerSettings,
    MultiAgentSettings,
    OfflineDataSettings,
    ReportingSettings,
    ResourceSettings,
    RLModuleArguments,
    RLModuleSettings,
    RunSettings,
    TrainingSettings,
)
from marl_connectors.callbacks import CALLBACK_NAMES, CallbackCalls
from marl_connectors.errors import ConfigError
from marl_connectors.names import import_attribute, qualified_name
from marl_connectors.never_called import RefusesIgnoredMethods
from marl_connectors.offline.choices import AS_RECORDED
from marl_connectors.typing import ModuleID
from marl_connectors.validators import checked, declared, settings_of

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.connectors.connector_v2 import ConnectorV2
    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
    from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
    from marl_connectors.environments.registry.spec import EnvSpec
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec
    from marl_connectors.rl_module.rl_module import RLModule, RLModuleSpec


class _ConfigType(ABCMeta):
    """Ends the time in which a config may get new settings when ``__init__`` of its class has returned."""

    if not TYPE_CHECKING:  # which would take every config for Any

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__call__(*args, **kwargs)
            made._is_made = True
            return made


class AlgorithmConfig(
    EnvironmentSettings,
    MultiAgentSettings,
    EnvRunnerSettings,
    FaultToleranceSettings,
    LearnerSettings,
    RLModuleSettings,
    TrainingSettings,
    EvaluationSettings,
    OfflineDataSettings,
    ReportingSettings,
    RunSettings,
    CallbackSettings,
    ResourceSettings,
    DebuggingSettings,
    RefusesIgnoredMethods,
    metaclass=_ConfigType,
):
    """Settings that every algorithm has. Read them as attributes: ``config.gamma``.

    Sections chain, and an unknown setting is an error that names the closest known one::

        config = PPOConfig().environment("CartPole-v1").training(lr=3e-4).debugging(seed=1)

    Each setting is declared once, in the section that it inherits it from, with its type, its range, its meaning and
    its default (``marl_connectors.algorithms.config.settings``). A value is checked whenever it is set: in a section,
    as an attribute, by name, for one module or for evaluations, and when a checkpoint is read. A subclass declares its
    own settings in the same way, or simply sets them in ``__init__``. No attribute can be added later, unless its name
    begins with ``_``.
    """

    _is_frozen = False
    _is_made = False
    _algo_class: Any = "marl_connectors.algorithms.algorithm:Algorithm"

    def __init__(self, algo_class: Any = None) -> None:
        """Sets all defaults.

        Args:
            algo_class: The subclass of Algorithm that ``build_algo`` makes; None for the config's own.
        """
        if algo_class is not None:
            self._algo_class = algo_class
        self._module_configs: dict[ModuleID, Any] = {}
        cls = type(self)
        self._store({name: getattr(cls, name) for name in declared(cls) if hasattr(cls, name)}, cls.__name__)

    environment = chain(EnvironmentSettings)
    multi_agent = chain(MultiAgentSettings)
    env_runners = chain(EnvRunnerSettings)
    fault_tolerance = chain(FaultToleranceSettings)
    framework = chain(FrameworkSettings)
    learners = chain(LearnerSettings)
    rl_module = chain(RLModuleArguments)
    training = chain(TrainingSettings)
    evaluation = chain(EvaluationSettings)
    offline_data = chain(OfflineDataSettings)
    reporting = chain(ReportingSettings)
    run = chain(RunSettings)
    exploration = chain(ExplorationSettings)
    callbacks = chain(CallbackSettings)
    resources = chain(ResourceSettings)
    debugging = chain(DebuggingSettings)

    # Settings by name.

    def to_dict(self) -> dict[str, Any]:
        """Returns all settings by name."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def to_file(self, path: str | os.PathLike[str]) -> Path:
        """Writes the settings to a file, with which ``marl-connectors train --config`` trains the same run.

        The file has the form that ``marl-connectors schema`` describes. It has the settings that differ from those of
        the command line; classes and functions are written as names, such as ``"my_module:MyCallbacks"``.

        Args:
            path: The file, whose ending is ``.yaml``, ``.yml`` or ``.json``. A file there is replaced.

        Returns:
            The path.

        Raises:
            ConfigError: If settings cannot be written, such as lambdas, specs of modules and spaces. Names all of them.
            MissingDependencyError: If the file is to be YAML, and PyYAML is not installed.
        """
        # The form of such files belongs to the command line, which is built on configs, so it is found by name.
        write = import_attribute("marl_connectors.cli.written_config:write_config", who="to_file", error=ConfigError)
        return write(self, path)

    def update_from_dict(self, settings: Mapping[str, Any]) -> Self:
        """Sets settings by name."""
        who = f"{type(self).__name__}.update_from_dict"
        self._check_names(settings, who)
        self._store(settings, who)
        return self

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """Returns checked settings for ``algorithm_config_overrides_per_module`` or ``evaluation_config``."""
        own, who = cls(), f"{cls.__name__}.overrides"
        own._check_names(settings, who)
        return {name: own._checked(name, value, who) for name, value in settings.items()}

    def change(self, who: str = "", /, **settings: Any) -> None:
        """Changes settings even of a frozen config, for algorithms that add and remove modules, and for ``fit``.

        Args:
            who: The first words of messages; "" for this method.
            **settings: The settings.
        """
        who = who or f"{type(self).__name__}.change"
        self._check_names(settings, who)
        vars(self).update({name: self._checked(name, value, who) for name, value in settings.items()})
        self._module_configs.clear()

    def __repr__(self) -> str:
        """Returns the settings that differ from the defaults: ``PPOConfig(env='CartPole-v1', lr=0.001)``."""
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in self._changed().items())})"

    def _changed(self) -> dict[str, str]:
        """Returns the settings that differ from the defaults, as short text."""
        changed = {}
        for name in declared(type(self)):
            value = getattr(self, name)
            if not is_same(value, getattr(type(self), name)):
                function = qualified_name(value) if callable(value) else None
                changed[name] = function or _SHORT.repr(value)
        return changed

    def copy(self, copy_frozen: bool = False) -> Self:
        """Returns a copy that can be changed, unless ``copy_frozen`` is True."""
        new = copy.copy(self)
        vars(new).update({k: copy.copy(v) if isinstance(v, dict) else v for k, v in vars(self).items()})
        new._is_frozen = copy_frozen
        new._module_configs = {}
        return new

    def freeze(self) -> None:
        """Makes any further change an error."""
        self._is_frozen = True

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises an error for sections and settings that do not exist, which names what replaces RLlib's."""
            raise unknown_attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        elif self._is_made and name not in vars(self) and name not in declared(type(self)):
            if hasattr(type(self), name):
                raise UnknownSectionError(f"{type(self).__name__}: {name!r} is no setting, so it cannot be set.")
            raise unknown_attribute(self, name)
        else:
            self._store({name: value}, type(self).__name__)

    def _store(self, settings: Mapping[str, Any], who: str) -> None:
        """Sets all of the settings, or none if one is refused."""
        for name in settings if self._is_frozen else ():
            raise ConfigError(f"{type(self).__name__}: frozen, so {name!r} cannot be set. Change a .copy() of it.")
        vars(self).update({name: self._checked(name, value, who) for name, value in settings.items()})
        self._module_configs.clear()

    def _checked(self, name: str, value: Any, who: str) -> Any:
        """Returns the value of a setting as it is stored. Settings inside the value are checked too."""
        if _is_searched(value):
            raise ConfigError(
                f"{who}: {name}: expected one value, but got a search space of Ray Tune. Make the config in the "
                f"function that Ray Tune calls with the values of a trial (docs/cluster.md), or use marl-connectors "
                f"sweep."
            )
        kept = checked(type(self), name, value, who)
        if name == "algorithm_config_overrides_per_module":
            return {m: self._checked_overrides(m, overrides, f"{who}: {name}") for m, overrides in kept.items()}
        if name == "evaluation_config" and kept is not None:
            _check_evaluation(kept, who)
            return {own: self._checked(own, v, f"{who}: {name}") for own, v in kept.items()}
        return kept

    def _checked_overrides(self, module_id: ModuleID, overrides: Mapping[str, Any], who: str) -> dict[str, Any]:
        self._check_names(overrides, who)
        _check_overrides(self, module_id, overrides, who)
        return {name: self._checked(name, v, f"{who}, module {module_id!r}") for name, v in overrides.items()}

    def _check_names(self, settings: Mapping[str, Any], who: str) -> None:
        known = self.to_dict()
        for name in settings:
            if name not in known:
                raise ConfigError(f"{who}: unknown setting {name!r}. {hint_at(name, known)}")

    # Parts of a run, for code that uses them without an algorithm.

    def build_env_to_module_connector(
        self, env: Any = None, spaces: Mapping[str, Any] | None = None, device: Any = None
    ) -> EnvToModulePipeline:
        """Builds the env-to-module pipeline, for modules with and without a state.

        Args:
            env: An environment, which builders of pieces get; None to make the config's.
            spaces: ``{"__env_single__": (observation space, action space)}``, with Dict spaces by agent if there are
                several; None to read them from the environment.
            device: The device of batches; None for the config's.
        """
        setup = _building("described_env")(self, env, spaces)
        return _building("build_env_to_module")(self, setup, device=device, stateful=True)[0]

    def build_module_to_env_connector(
        self, env: Any = None, spaces: Mapping[str, Any] | None = None
    ) -> ModuleToEnvPipeline:
        """Builds the module-to-env pipeline, for modules with and without a state.

        Args:
            env: As in ``build_env_to_module_connector``.
            spaces: As in ``build_env_to_module_connector``.
        """
        return _building("build_module_to_env")(self, _building("described_env")(self, env, spaces), stateful=True)

    def build_learner_connector(
        self, input_observation_space: Any, input_action_space: Any, device: Any = None
    ) -> LearnerConnectorPipeline:
        """Builds the learner pipeline, for modules with and without a state: one row for each step of the episodes.

        A Learner also puts AddOneTsToEpisodesAndTruncate before it, and the pieces of its algorithm after it.

        Args:
            input_observation_space: The environment's observation space, or a Dict of those of all agents.
            input_action_space: The environment's action space, or a Dict of those of all agents.
            device: The device of batches; None for the config's.
        """
        setup = _building("GivenEnv")(None, input_observation_space, input_action_space)
        return _building("build_learner_pipeline")(self, setup, device=device)

    def get_multi_rl_module_spec(
        self, *, env: Any = None, spaces: Mapping[str, Any] | None = None, inference_only: bool | None = None
    ) -> MultiRLModuleSpec:
        """Returns the complete spec of all modules.

        Args:
            env: As in ``build_env_to_module_connector``.
            spaces: As in ``build_env_to_module_connector``.
            inference_only: Whether to leave out what only training needs; None for what the config says.
        """
        return _building("multi_rl_module_spec")(self, _building("described_env")(self, env, spaces), inference_only)

    def get_rl_module_spec(
        self, env: Any = None, spaces: Mapping[str, Any] | None = None, inference_only: bool | None = None
    ) -> RLModuleSpec:
        """Returns the complete spec of the only module, for ``spec.build()``.

        Args:
            env: As in ``build_env_to_module_connector``.
            spaces: As in ``build_env_to_module_connector``.
            inference_only: As in ``get_multi_rl_module_spec``.

        Raises:
            ConfigError: If there are several modules.
        """
        multi = self.get_multi_rl_module_spec(env=env, spaces=spaces, inference_only=inference_only)
        specs: Any = multi.rl_module_specs
        if len(specs) != 1:
            raise ConfigError(
                f"get_rl_module_spec: there are the modules {', '.join(map(repr, specs))}. Use "
                f"get_multi_rl_module_spec()."
            )
        return multi.completed(next(iter(specs.values())))

    # The config as a whole.

    def get_config_for_module(self, module_id: ModuleID) -> Self:
        """Returns the config with a module's overrides; this object itself if it has none."""
        overrides = self.algorithm_config_overrides_per_module.get(module_id)
        if not overrides:
            return self
        if module_id not in self._module_configs:
            own = self.copy()
            own.algorithm_config_overrides_per_module = {}
            self._module_configs[module_id] = own.update_from_dict(overrides)
        return self._module_configs[module_id]

    def configs_of_algorithms(self) -> dict[str, AlgorithmConfig]:
        """Returns the config of each algorithm that learns modules, by name: this object, unless there are several."""
        return {"": self}

    def algorithm_of(self, module_id: ModuleID) -> str:
        """Returns the name of the algorithm that learns a module, in ``configs_of_algorithms``."""
        return ""

    def get_evaluation_config(self) -> Self:
        """Returns the config of evaluations. The policies act as ``draws_actions`` or ``evaluation_config`` says."""
        return self.copy().update_from_dict({"explore": self.draws_actions, **(self.evaluation_config or {})})

    @property
    def draws_actions(self) -> bool:
        """Whether the trained policies act by drawing actions: they learn distributions, and training draws from them.

        False for algorithms that learn values or deterministic policies. They draw only to explore.
        """
        return self.explore

    def get_default_rl_module_class(self) -> type[RLModule]:
        """Returns the module class that is used if the user names none."""
        raise ConfigError(f"{type(self).__name__}: has no default RLModule. Pass rl_module_spec in .rl_module(...).")

    def get_default_learner_class(self) -> type[Learner]:
        """Returns the learner class that is used if the user names none."""
        raise ConfigError(f"{type(self).__name__}: has no default Learner. Pass learner_class in .learners(...).")

    def complete_rl_module_spec(
        self, spec: RLModuleSpec, setup: EnvSpec, env_to_module: EnvToModulePipeline
    ) -> RLModuleSpec:
        """Adds what an algorithm needs to a module's spec, whose spaces and model config are known."""
        return spec

    def default_learner_pieces(self, setup: EnvSpec, env_to_module: EnvToModulePipeline) -> list[ConnectorV2]:
        """Returns the pieces that an algorithm needs after AddColumnsFromEpisodesToTrainBatch."""
        return []

    def make_callbacks(self) -> CallbackCalls:
        """Makes the callbacks: objects of the classes, and the functions.

        Raises:
            ConfigError: If one of them does not accept the arguments of its calls.
        """
        functions = {name: getattr(self, f"callbacks_{name}") for name in CALLBACK_NAMES}
        return CallbackCalls(self.callbacks_class, functions)

    @property
    def unread_columns(self) -> tuple[str, ...]:
        """The columns of recorded episodes that the algorithm does not read."""
        return ()

    @property
    def learns_from_other_policies(self) -> bool:
        """Whether the algorithm is made for episodes that other policies have played."""
        return False

    @property
    def has_replay_buffer(self) -> bool:
        """Whether episodes go to a replay buffer, from which train batches are drawn."""
        return False

    @property
    def num_envs(self) -> int:
        """The number of sub-environments of all env runners."""
        return self.num_envs_per_env_runner * max(1, self.num_env_runners)

    @property
    def total_train_batch_size(self) -> int:
        """The number of steps in one update, over all learners."""
        return self.train_batch_size_per_learner * max(1, self.num_learners)

    @property
    def device(self) -> torch.device:
        """The device of the modules and batches of this process.

        An env runner in this process uses it too, because it acts with the learner's modules. With remote learners it
        is the CPU.
        """
        import torch

        wanted = 0.0 if self.num_learners else self.num_gpus_per_learner
        return torch.device("cuda" if (torch.cuda.is_available() if wanted == "auto" else wanted) else "cpu")

    def validate(self) -> None:
        """Raises ConfigError for settings that have the wrong type, or contradict one another."""
        for name, value in self.to_dict().items():  # the contents of a dict or list may have changed since it was set
            self._checked(name, value, type(self).__name__)
        _check_settings(self)
        for module_id in self.algorithm_config_overrides_per_module:
            try:
                self.get_config_for_module(module_id).validate()
            except ConfigError as error:
                raise ConfigError(f"the overrides of module {module_id!r}: {error}") from error

    @property
    def algo_class(self) -> type[Algorithm]:
        """The class of the algorithm that ``build_algo`` makes."""
        # Algorithms are built on configs, so a config finds their class by name.
        given = self._algo_class
        return import_attribute(given, who="algo_class", error=ConfigError) if isinstance(given, str) else given

    def build_algo(self, env: Any = None) -> Algorithm:
        """Builds the algorithm with these settings, ready to ``train()``.

        Args:
            env: An environment that replaces the config's; None for the config's.
        """
        algorithm = self.algo_class(self) if env is None else self.algo_class(self, env)
        try:
            algorithm.offline_data.open(algorithm.seed)
        except BaseException:
            algorithm.stop()
            raise
        return algorithm

    def build(self, env: Any = None) -> Algorithm:
        """Does the same as ``build_algo``."""
        return self.build_algo(env)


def _building(name: str) -> Any:
    # What builds the parts of a run depends on configs, so it is found by name.
    return import_attribute(f"marl_connectors.algorithms.build:{name}", who="build", error=ConfigError)


def evaluation_settings(config: AlgorithmConfig) -> dict[str, Any]:
    """Returns the settings of a config that evaluations can have instead of those of training."""
    return {name: getattr(config, name) for name, own in settings_of(type(config)).items() if own.in_evaluations}


# Checks.


def _check_settings(config: AlgorithmConfig) -> None:
    """Checks settings against one another and against this machine. Each alone is checked when it is set.

    Raises:
        ConfigError: For the first settings that contradict each other.
    """
    who = type(config).__name__
    if config.env is None:
        raise ConfigError(f"{who}: no environment. Call .environment(env=...).")
    _check_gpus(config, who)
    check_run(config, f"{who}: ")
    _check_offline_data(config, who)
    _check_vectorization(config)
    _check_remote(config, who)


def _check_gpus(config: AlgorithmConfig, who: str) -> None:
    """Checks that there is a GPU if modules in this process are to be on one.

    Raises:
        ConfigError: If there is none.
    """
    gpus = config.num_gpus_per_learner
    if gpus == "auto" or not gpus or config.num_learners:
        return
    import torch

    if not torch.cuda.is_available():
        raise ConfigError(
            f"{who}: num_gpus_per_learner={gpus:g}, but torch {torch.__version__} sees no CUDA device. "
            f"Set num_gpus_per_learner='auto' or 0 to use the CPU, or install a build of torch for your GPU."
        )


def check_run(config: RunSettings, who: str, said: Callable[[str, Any], str] = "{}={!r}".format) -> None:
    """Checks the settings of ``run`` against one another.

    Args:
        config: The config.
        who: The first words of messages, with a colon and a blank; or "".
        said: Returns how the user writes a setting and its value.

    Raises:
        ConfigError: If they contradict each other.
    """
    if config.video_every and config.video == NO_VIDEO:
        raise ConfigError(
            f"{who}{said('video_every', config.video_every)} has no effect, because the run has no videos "
            f"({said('video', config.video)}). Use {said('video', 'gif')} or {said('video', 'mp4')}, or leave it out."
        )


def _check_offline_data(config: AlgorithmConfig, who: str) -> None:
    """Checks the settings of recorded episodes against one another.

    Raises:
        ConfigError: If they contradict each other.
    """
    if config.input_ is not None and config.output is not None:
        raise ConfigError(
            f"{who}: input_ and output are both set, but a run that reads recorded episodes records none. Leave one "
            f"out, or record episodes with algo.record(FOLDER)."
        )
    for name in ("live_fraction", "held_out_fraction", "held_out_input_", "offline_evaluation_interval"):
        if config.input_ is None and getattr(config, name):
            raise ConfigError(
                f"{who}: {name}={getattr(config, name)!r} is for runs that read recorded episodes, but input_ is not "
                f"set. Set .offline_data(input_=FOLDER), or leave it out."
            )
    for name in ("live_fraction", "held_out_fraction"):
        if getattr(config, name) == 1:
            raise ConfigError(f"{who}: {name}=1 leaves no recorded episodes to train on. Use a smaller number.")
    if config.held_out_fraction and config.held_out_input_ is not None:
        raise ConfigError(
            f"{who}: held_out_fraction and held_out_input_ both say which recorded episodes are held out. Leave one "
            f"out."
        )
    if config.offline_evaluation_interval and not (config.held_out_fraction or config.held_out_input_):
        raise ConfigError(
            f"{who}: offline_evaluation_interval={config.offline_evaluation_interval}, but no recorded episodes are "
            f"held out. Set .offline_data(held_out_fraction=0.1) or .offline_data(held_out_input_=FOLDER)."
        )
    if config.input_ is not None and config.input_order == AS_RECORDED and config.batch_mode == "complete_episodes":
        raise ConfigError(
            f"{who}: input_order='as_recorded' makes a batch of each recorded sample as it is, so "
            f"batch_mode='complete_episodes' cannot put episodes together. Use input_order='in_order' or 'shuffled'."
        )


def _check_remote(config: AlgorithmConfig, who: str) -> None:
    """Checks the settings of remote env runners against one another.

    Raises:
        ConfigError: If they contradict each other.
    """
    number = config.evaluation_num_env_runners
    if config.evaluation_parallel_to_training and not number:
        raise ConfigError(
            f"{who}: evaluation_parallel_to_training=True needs env runners of its own. Set "
            f".evaluation(evaluation_num_env_runners=1), or leave it out."
        )
    if number > config.evaluation_duration:
        raise ConfigError(
            f"{who}: evaluation_num_env_runners={number}, but an evaluation has only {config.evaluation_duration} "
            f"episodes (evaluation_duration), so some would have nothing to play. Use fewer env runners."
        )
    if config.render_env and config.num_env_runners:
        raise ConfigError(
            f"{who}: render_env=True opens a window, which a remote env runner cannot. Set num_env_runners=0, or look "
            f"at single episodes with algo.render_episode()."
        )


def _check_vectorization(config: AlgorithmConfig) -> None:
    """Checks that the sub-environments can be stepped in the processes that the settings ask for.

    Raises:
        ConfigError: If they cannot.
    """
    mode = config.gym_env_vectorize_mode
    wants_workers = config.num_env_workers not in (0, "auto")
    if mode == "vector_entry_point" and wants_workers:
        raise ConfigError(
            f"gym_env_vectorize_mode='vector_entry_point': the environment's maker returns all sub-environments at "
            f"once, which worker processes cannot share. Set num_env_workers=0 instead of {config.num_env_workers}, or "
            f"use the mode 'async'."
        )
    if config.render_env and (wants_workers or mode == "async"):
        what = f"num_env_workers={config.num_env_workers}" if wants_workers else "gym_env_vectorize_mode='async'"
        raise ConfigError(
            f"render_env=True: windows belong to the process that steps the environment, but {what} steps it in "
            f"others. Set num_env_workers=0 and gym_env_vectorize_mode='sync'."
        )


def _is_searched(value: Any) -> bool:
    """Whether a value, or one in the dict that it is, is a search space of Ray Tune (``tune.grid_search([1])``)."""
    each = [value, *(value.values() if isinstance(value, Mapping) else ())]
    is_grid = any(isinstance(one, Mapping) and one.keys() == {"grid_search"} for one in each)
    return is_grid or any(type(one).__module__.startswith("ray.tune.") for one in each)


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def is_same(value: Any, default: Any) -> bool:
    """Whether a setting has its default. Values that cannot be compared, such as arrays, differ."""
    try:
        return bool(value is default or (type(value) is type(default) and value == default))
    except (TypeError, ValueError):
        return False


def _check_overrides(config: AlgorithmConfig, module_id: ModuleID, overrides: Mapping[str, Any], who: str) -> None:
    """Checks that one module can have other settings than the rest.

    Raises:
        ConfigError: For a setting of the run as a whole.
    """
    of_run, known = settings_of(AlgorithmConfig), settings_of(type(config))
    for name in overrides:
        differs = known[name].per_module if name in known else True
        if differs is False or (differs is None and name in of_run):
            others = ", ".join(sorted(other for other, own in known.items() if own.per_module))
            raise ConfigError(
                f"{who}: {name!r} is a setting of the whole run, so module {module_id!r} cannot have its own {name}. "
                f"Modules can differ in {others} and the settings of the algorithm's loss."
            )


def _check_evaluation(settings: Mapping[str, Any], who: str) -> None:
    """Checks that evaluations can have other settings than training.

    Raises:
        ConfigError: For a setting that they share with training.
    """
    can_differ = [name for name, own in settings_of(AlgorithmConfig).items() if own.in_evaluations]
    for name in settings:
        if name not in can_differ:
            raise ConfigError(
                f"{who}: evaluation_config: {name!r} cannot differ in evaluations, only {', '.join(can_differ)} can. "
                f"Leave it out."
            )
