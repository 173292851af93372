"""AlgorithmConfig: every setting of a run, in sections that chain."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import torch
from gymnasium import VectorizeMode

from marl_connectors.algorithms.config_checks import check_evaluation, check_overrides, check_settings
from marl_connectors.algorithms.settings import (
    CALLBACKS,
    ENVIRONMENT,
    FUNCTIONS,
    IN_THIS_PROCESS,
    LONGEST_WAIT_S,
    MASK_KEY,
    MODULE_SPEC,
    POLICIES,
    POLICIES_TO_TRAIN,
    POLICY_MAPPING,
    SPACES,
    UNSET,
    VECTORIZE_MODE,
    WRAPPERS,
    builder,
    or_empty,
    section,
    section_of,
)
from marl_connectors.callbacks import CALLBACK_NAMES, CallbackCalls, Callbacks, Functions
from marl_connectors.environments.making.wrappers import EnvWrapper
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.learner.learner import Learner
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.policy_mapping import SharedPolicy
from marl_connectors.rl_module.multi_rl_module_spec import MultiRLModuleSpec
from marl_connectors.rl_module.rl_module import MODEL_CONFIG, RLModuleSpec
from marl_connectors.typing import ModuleID
from marl_connectors.validators import (
    Switch,
    boolean,
    checked,
    declared,
    dict_of,
    either,
    integer,
    number,
    one_of,
    optional,
    subclass_of,
    text,
)

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from marl_connectors.algorithms.algorithm import Algorithm


class TrainingSettings(TypedDict, total=False):
    """What ``training`` takes, whatever the algorithm.

    Attributes:
        gamma: Discount per agent step.
        lr: Learning rate, a number or a schedule ``[[t, value], ...]`` over sampled env steps.
        grad_clip: Bound for gradients; None for none.
        grad_clip_by: ``"global_norm"`` (of a module), ``"norm"`` (of each tensor) or ``"value"``.
        train_batch_size_per_learner: Steps of one update, counted by ``count_steps_by``.
        num_epochs: How often an update goes through its batch.
        minibatch_size: Rows of one module in one gradient step; None for all.
        shuffle_batch_per_epoch: Whether each epoch has an order of its own.
        learner_class: Instead of the algorithm's own, as in ``learners``.
        learner_connector: As in ``learners``.
    """

    gamma: float
    lr: Schedule
    grad_clip: float | None
    grad_clip_by: str
    train_batch_size_per_learner: int
    num_epochs: int
    minibatch_size: int | None
    shuffle_batch_per_epoch: bool
    learner_class: type[Learner]
    learner_connector: Callable[..., Any] | None


class AlgorithmConfig:
    """Settings that every algorithm has. Read them as attributes: ``config.gamma``.

    Sections chain, and an unknown setting is an error that names the closest known one::

        config = PPOConfig().environment("CartPole-v1").training(lr=3e-4).debugging(seed=1)

    Each setting is declared here with its type, its range and its default. A value is held against them whenever it is
    set: in a section, as an attribute, by name, for one module or for evaluations, and when a checkpoint is read. A
    subclass declares settings of its own in the same way, or simply sets them in ``__init__``.
    """

    # environment
    env: Annotated[Any, ENVIRONMENT] = None
    env_config: Annotated[dict[str, Any], or_empty(dict_of())] = {}
    reset_options: Annotated[dict[str, Any] | None, optional(dict_of())] = None
    wrappers: Annotated[list[EnvWrapper], WRAPPERS] = []
    observation_space: Annotated[Any, SPACES] = None
    action_space: Annotated[Any, SPACES] = None
    render_env: Switch = False
    clip_rewards: Annotated[bool | float | None, optional(either(boolean(), number(above=0, max=math.inf)))] = None
    normalize_actions: Switch = True
    clip_actions: Switch = False
    disable_env_checking: Switch = False
    action_mask_key: Annotated[str | None, MASK_KEY] = "auto"
    # multi_agent
    policies: Annotated[Any, POLICIES] = None
    policy_mapping_fn: Annotated[Callable[..., ModuleID], POLICY_MAPPING] = SharedPolicy()
    policies_to_train: Annotated[Collection[ModuleID] | Callable[..., bool] | None, POLICIES_TO_TRAIN] = None
    count_steps_by: Annotated[str, one_of("env_steps", "agent_steps")] = "env_steps"
    # env_runners
    num_env_runners: Annotated[int, IN_THIS_PROCESS] = 0
    num_envs_per_env_runner: Annotated[int, integer(min=1)] = 1
    gym_env_vectorize_mode: Annotated[str, VECTORIZE_MODE] = "sync"
    num_env_workers: Annotated[int | str, either(one_of("auto"), integer(min=0))] = "auto"
    sample_timeout_s: Annotated[float | None, optional(number(above=0, max=LONGEST_WAIT_S))] = 60.0
    env_to_module_connector: Annotated[Callable[..., Any] | None, builder("env_to_module_connector", 3)] = None
    module_to_env_connector: Annotated[Callable[..., Any] | None, builder("module_to_env_connector", 2)] = None
    add_default_connectors_to_env_to_module_pipeline: Switch = True
    add_default_connectors_to_module_to_env_pipeline: Switch = True
    episode_lookback_horizon: Annotated[int, integer(min=0)] = 1
    rollout_fragment_length: Annotated[int | str, either(one_of("auto"), integer(min=1))] = "auto"
    batch_mode: Annotated[str, one_of("truncate_episodes", "complete_episodes")] = "truncate_episodes"
    explore: Switch = True
    # fault_tolerance
    restart_failed_sub_environments: Switch = False
    num_consecutive_env_failures_tolerance: Annotated[int, integer(min=0)] = 100
    # learners
    num_learners: Annotated[int, IN_THIS_PROCESS] = 0
    num_gpus_per_learner: Annotated[float | str, either(one_of("auto"), number(min=0, max=1))] = "auto"
    learner_class: Annotated[type[Learner] | None, optional(subclass_of(Learner))] = None
    learner_connector: Annotated[Callable[..., Any] | None, builder("learner_connector", 2)] = None
    add_default_connectors_to_learner_pipeline: Switch = True
    stack_modules: Switch = True
    autocast_dtype: Annotated[str | None, optional(one_of("bfloat16"))] = None
    # rl_module
    model_config: Annotated[Any, MODEL_CONFIG] = None
    rl_module_spec: Annotated[RLModuleSpec | MultiRLModuleSpec | None, MODULE_SPEC] = None
    algorithm_config_overrides_per_module: Annotated[
        dict[ModuleID, dict[str, Any]],
        or_empty(dict_of(text(), dict_of(), expected="a dict {module_id: {setting: value}}")),
    ] = {}
    # training
    gamma: Annotated[float, number(min=0, max=1)] = 0.99
    lr: Annotated[Schedule, schedule(min=0)] = 0.001
    grad_clip: Annotated[float | None, optional(number(above=0, max=math.inf))] = None
    grad_clip_by: Annotated[str, one_of("global_norm", "norm", "value")] = "global_norm"
    train_batch_size_per_learner: Annotated[int, integer(min=1)] = 32
    num_epochs: Annotated[int, integer(min=1)] = 1
    minibatch_size: Annotated[int | None, optional(integer(min=1))] = None
    shuffle_batch_per_epoch: Switch = False
    # evaluation and reporting
    evaluation_interval: Annotated[int | None, optional(integer(min=1))] = None
    evaluation_duration: Annotated[int, integer(min=1)] = 10
    evaluation_config: Annotated[dict[str, Any] | None, optional(dict_of())] = None
    metrics_num_episodes_for_smoothing: Annotated[int, integer(min=1)] = 100
    # callbacks
    callbacks_class: Annotated[type[Callbacks] | Sequence[type[Callbacks]], CALLBACKS] = Callbacks
    callbacks_on_algorithm_init: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_train_result: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_evaluate_start: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_evaluate_end: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_env_runners_recreated: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_checkpoint_loaded: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_environment_created: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_episode_created: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_episode_start: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_episode_step: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_episode_end: Annotated[Functions, FUNCTIONS] = None
    callbacks_on_sample_end: Annotated[Functions, FUNCTIONS] = None
    # debugging
    seed: Annotated[int | None, optional(integer(min=0))] = None

    _is_frozen = False

    def __init__(self) -> None:
        self._module_configs: dict[ModuleID, Any] = {}
        cls = type(self)
        self._store({name: getattr(cls, name) for name in declared(cls) if hasattr(cls, name)}, cls.__name__)

    # Sections.

    @section
    def environment(
        self,
        env: Any = UNSET,
        *,
        env_config: Mapping[str, Any] = UNSET,
        reset_options: Mapping[str, Any] | None = UNSET,
        wrappers: Iterable[EnvWrapper] | None = UNSET,
        observation_space: Any = UNSET,
        action_space: Any = UNSET,
        render_env: bool = UNSET,
        clip_rewards: bool | float | None = UNSET,
        normalize_actions: bool = UNSET,
        clip_actions: bool = UNSET,
        disable_env_checking: bool = UNSET,
        action_mask_key: str | bool | None = UNSET,
    ) -> None:
        """Which environment, and how its observations and actions are treated.

        Args:
            env: An importable PettingZoo environment (``"mpe2.simple_spread_v3"``, ``"my_package.my_env:make"``), a
                Gymnasium id, a name given to ``register_env``, a class, or a function of ``env_config``.
            env_config: Passed to whatever makes the environment.
            reset_options: Passed to every reset, as ``reset(seed=..., options=...)``; None for none.
            wrappers: Around each copy, the innermost first: callables ``env -> env``, or names with arguments such as
                ``"frame_skip_v0:4"`` (SuperSuit's) and ``"my_module.my_wrapper:0.5"``.
            observation_space: Instead of the environment's own, for all agents or ``{agent_id: space}``.
            action_space: Likewise.
            render_env: Whether the first copy is made with ``render_mode="human"``, to be watched while it trains.
            clip_rewards: For the loss only: True for the sign of rewards, a number x to keep them in [-x, x].
            normalize_actions: Stretch Box actions from [-1, 1] to the space's range.
            clip_actions: Clip Box actions to the space's range.
            disable_env_checking: Skip the smoke test of the environment, and let observations leave their space.
            action_mask_key: Under which key of observations or infos action masks are; puts ActionMasking first.
                ``"auto"`` for ``"action_mask"``, of those agents that have one by PettingZoo's convention; None (or
                False) to ignore masks.
        """

    @section
    def multi_agent(
        self,
        *,
        policies: Any = UNSET,
        policy_mapping_fn: str | Callable[..., ModuleID] = UNSET,
        policies_to_train: Collection[ModuleID] | Callable[..., bool] | None = UNSET,
        count_steps_by: str = UNSET,
    ) -> dict[str, Any]:
        """Which agents share a module.

        Args:
            policies: The module ids: a collection, or ``{module_id: RLModuleSpec or None}``. None to take those that
                the mapping function gives for the environment's agents. Or, as a shorthand for both settings,
                ``"shared"``, ``"independent"`` or patterns such as ``"adversary*=red,agent*=green"``.
            policy_mapping_fn: ``fn(agent_id, episode, **kwargs)`` gives the module id; or one of those shorthands.
                Called once for each agent and episode.
            policies_to_train: Which modules are updated: a collection, ``fn(module_id)`` or ``fn(module_id, batch)``;
                None for all.
            count_steps_by: Whether batch sizes count ``"env_steps"`` or ``"agent_steps"``.
        """
        return {"policies": None, "policy_mapping_fn": policies} if isinstance(policies, str) else {}

    @section
    def env_runners(
        self,
        *,
        num_env_runners: int = UNSET,
        num_envs_per_env_runner: int = UNSET,
        gym_env_vectorize_mode: str | VectorizeMode = UNSET,
        num_env_workers: int | str = UNSET,
        sample_timeout_s: float | None = UNSET,
        env_to_module_connector: Callable[..., Any] | None = UNSET,
        module_to_env_connector: Callable[..., Any] | None = UNSET,
        add_default_connectors_to_env_to_module_pipeline: bool = UNSET,
        add_default_connectors_to_module_to_env_pipeline: bool = UNSET,
        episode_lookback_horizon: int = UNSET,
        rollout_fragment_length: int | str = UNSET,
        batch_mode: str = UNSET,
        explore: bool = UNSET,
    ) -> None:
        """How episodes are collected.

        Args:
            num_env_runners: 0: environments are stepped in this process.
            num_envs_per_env_runner: Copies of the environment.
            gym_env_vectorize_mode: ``"sync"``: single copies, stepped wherever ``num_env_workers`` says. ``"async"``:
                in worker processes in any case. ``"vector_entry_point"``: the environment's maker gives them all, as a
                ``gymnasium.vector.VectorEnv``.
            num_env_workers: Processes over which the copies are spread; 0 for none, ``"auto"`` for as many as cores if
                the environment was given by an importable name and its steps are slow enough to be worth it.
            sample_timeout_s: How long such a process may take for one step or reset of its copies, and, if above
                300, to start; None for any time.
            env_to_module_connector: ``fn(env, spaces, device)``, ``fn(env)`` or ``fn()`` that gives a connector piece
                or a list of them, to stand before the default pieces.
            module_to_env_connector: ``fn(env, spaces)``, ``fn(env)`` or ``fn()``, likewise.
            add_default_connectors_to_env_to_module_pipeline: False to use your own pieces only.
            add_default_connectors_to_module_to_env_pipeline: False to use your own pieces only.
            episode_lookback_horizon: Steps that a chunk of an episode keeps from before it.
            rollout_fragment_length: Env steps of each copy in one sample; ``"auto"`` to fit the train batch.
            batch_mode: ``"truncate_episodes"`` or ``"complete_episodes"``.
            explore: Whether actions are sampled.
        """

    @section
    def fault_tolerance(
        self, *, restart_failed_sub_environments: bool = UNSET, num_consecutive_env_failures_tolerance: int = UNSET
    ) -> None:
        """What happens after an environment has failed: raised, given garbage, hung or lost its process.

        Args:
            restart_failed_sub_environments: Drop its episode and go on with a new environment, instead of stopping.
            num_consecutive_env_failures_tolerance: Stop after more failures of a copy without a finished episode.
        """

    @section
    def framework(self, framework: str = UNSET) -> dict[str, Any]:
        """Which library computes; there is nothing to set.

        Args:
            framework: ``"torch"``; there is no other.
        """
        if framework is not UNSET:
            one_of("torch").check(framework, f"{type(self).__name__}.framework", "framework")
        return {"framework": UNSET}

    @section
    def learners(
        self,
        *,
        num_learners: int = UNSET,
        num_gpus_per_learner: float | str = UNSET,
        learner_class: type[Learner] = UNSET,
        learner_connector: Callable[..., Any] | None = UNSET,
        add_default_connectors_to_learner_pipeline: bool = UNSET,
        stack_modules: bool = UNSET,
        autocast_dtype: str | None = UNSET,
    ) -> None:
        """How modules are updated.

        Args:
            num_learners: 0: in this process.
            num_gpus_per_learner: 1 to put modules and batches on the GPU, 0 for the CPU; ``"auto"`` for the GPU if
                torch sees one (CUDA), else the CPU.
            learner_class: Instead of the algorithm's own.
            learner_connector: ``fn(observation_space, action_space)``, one-argument or ``fn()``, that gives a
                connector piece or a list of them, to stand before the default pieces.
            add_default_connectors_to_learner_pipeline: False to use your own pieces only.
            stack_modules: Update modules of one architecture as one computation; False for one after another.
            autocast_dtype: ``"bfloat16"`` to run forward passes of the update in half precision; None for full.
        """

    @section
    def rl_module(
        self,
        *,
        model_config: Any = UNSET,
        rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None = UNSET,
        algorithm_config_overrides_per_module: Mapping[ModuleID, Mapping[str, Any]] = UNSET,
        model_config_dict: Mapping[str, Any] = UNSET,
    ) -> dict[str, Any]:
        """What the modules look like.

        Args:
            model_config: A DefaultModelConfig or dict for the default modules, or a dict for your own.
            rl_module_spec: One spec for all modules, or a MultiRLModuleSpec.
            algorithm_config_overrides_per_module: ``{module_id: {setting: value}}``, such as a learning rate.
            model_config_dict: An older name of ``model_config``.
        """
        return {} if model_config_dict is UNSET else {"model_config": model_config_dict, "model_config_dict": UNSET}

    @section_of(TrainingSettings)
    def training(self, **settings: Unpack[TrainingSettings]) -> None:
        """How the modules learn: ``TrainingSettings`` says what there is."""

    @section
    def evaluation(
        self,
        *,
        evaluation_interval: int | None = UNSET,
        evaluation_duration: int = UNSET,
        evaluation_config: Mapping[str, Any] | None = UNSET,
    ) -> None:
        """When ``train()`` also evaluates, without exploration, and how.

        Args:
            evaluation_interval: Every so many iterations; None for never.
            evaluation_duration: Episodes of one evaluation.
            evaluation_config: Settings that are others in evaluations: ``policy_mapping_fn`` (to play against a fixed
                opponent, say), ``explore``, ``num_envs_per_env_runner``, ``num_env_workers``, ``callbacks_class``.
        """

    @section
    def reporting(self, *, metrics_num_episodes_for_smoothing: int = UNSET) -> None:
        """Over how many of the newest episodes returns are averaged."""

    @section
    def exploration(self, *, explore: bool = UNSET) -> None:
        """Whether actions are sampled; the same setting as in ``env_runners``."""

    @section
    def callbacks(
        self,
        callbacks_class: type[Callbacks] | Sequence[type[Callbacks]] | None = UNSET,
        *,
        on_algorithm_init: Functions = UNSET,
        on_train_result: Functions = UNSET,
        on_evaluate_start: Functions = UNSET,
        on_evaluate_end: Functions = UNSET,
        on_env_runners_recreated: Functions = UNSET,
        on_checkpoint_loaded: Functions = UNSET,
        on_environment_created: Functions = UNSET,
        on_episode_created: Functions = UNSET,
        on_episode_start: Functions = UNSET,
        on_episode_step: Functions = UNSET,
        on_episode_end: Functions = UNSET,
        on_sample_end: Functions = UNSET,
    ) -> dict[str, Any]:
        """Who is told what happens in a run. The methods of Callbacks say when each is called, and with what.

        Args:
            callbacks_class: A subclass of Callbacks, or a list of them; None for none. Each runner, and the algorithm,
                makes an object of each.
            on_algorithm_init: A function, or a list of functions, called after the classes' methods of that name.
            on_train_result: Likewise.
            on_evaluate_start: Likewise.
            on_evaluate_end: Likewise.
            on_env_runners_recreated: Likewise.
            on_checkpoint_loaded: Likewise.
            on_environment_created: Likewise.
            on_episode_created: Likewise.
            on_episode_start: Likewise.
            on_episode_step: Likewise.
            on_episode_end: Likewise.
            on_sample_end: Likewise.
        """
        given = {name: value for name, value in locals().items() if name in CALLBACK_NAMES}
        return {f"callbacks_{name}": value for name, value in given.items()} | dict.fromkeys(given, UNSET)

    @section
    def debugging(self, *, seed: int | None = UNSET) -> None:
        """The run's seed. The same seed gives the same run; None draws one."""

    # Settings by name.

    def to_dict(self) -> dict[str, Any]:
        """All settings by name."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def update_from_dict(self, settings: Mapping[str, Any]) -> Self:
        """Sets settings by name."""
        who = f"{type(self).__name__}.update_from_dict"
        self._check_names(settings, who)
        self._store(settings, who)
        return self

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """Settings for ``algorithm_config_overrides_per_module`` or ``evaluation_config``, checked."""
        own, who = cls(), f"{cls.__name__}.overrides"
        own._check_names(settings, who)
        return {name: own._checked(name, value, who) for name, value in settings.items()}

    def change(self, **settings: Any) -> None:
        """Changes settings even of a frozen config. For an algorithm whose modules come and go."""
        who = f"{type(self).__name__}.change"
        self._check_names(settings, who)
        self.__dict__.update({name: self._checked(name, value, who) for name, value in settings.items()})
        self._module_configs.clear()

    def copy(self) -> Self:
        """A copy that can be changed."""
        new = copy.copy(self)
        new.__dict__.update({k: copy.copy(v) if isinstance(v, dict) else v for k, v in self.__dict__.items()})
        new._is_frozen = False
        new._module_configs = {}
        return new

    def freeze(self) -> None:
        """Makes any further change an error."""
        self._is_frozen = True

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:
            self._store({name: value}, type(self).__name__)

    def _store(self, settings: Mapping[str, Any], who: str) -> None:
        """Sets all of the settings, or none if one is refused."""
        for name in settings if self._is_frozen else ():
            raise ConfigError(f"{type(self).__name__}: frozen, so {name!r} cannot be set. Change a .copy() of it.")
        self.__dict__.update({name: self._checked(name, value, who) for name, value in settings.items()})

    def _checked(self, name: str, value: Any, who: str) -> Any:
        """A setting's value as it is kept, with those that are in it."""
        kept = checked(type(self), name, value, who)
        if name == "algorithm_config_overrides_per_module":
            return {m: self._checked_overrides(m, overrides, f"{who}: {name}") for m, overrides in kept.items()}
        if name == "evaluation_config" and kept is not None:
            check_evaluation(kept, who)
            return {own: self._checked(own, v, f"{who}: {name}") for own, v in kept.items()}
        return kept

    def _checked_overrides(self, module_id: ModuleID, overrides: Mapping[str, Any], who: str) -> dict[str, Any]:
        self._check_names(overrides, who)
        check_overrides(module_id, overrides, declared(AlgorithmConfig), who)
        return {name: self._checked(name, v, f"{who}, module {module_id!r}") for name, v in overrides.items()}

    def _check_names(self, settings: Mapping[str, Any], who: str) -> None:
        known = self.to_dict()
        for name in settings:
            if name not in known:
                raise ConfigError(f"{who}: unknown setting {name!r}. {did_you_mean(name, known)}")

    # The config as a whole.

    def get_config_for_module(self, module_id: ModuleID) -> Any:
        """The config with a module's overrides; this object itself if it has none."""
        overrides = self.algorithm_config_overrides_per_module.get(module_id)
        if not overrides:
            return self
        if module_id not in self._module_configs:
            own = self.copy()
            own.algorithm_config_overrides_per_module = {}
            self._module_configs[module_id] = own.update_from_dict(overrides)
        return self._module_configs[module_id]

    def get_evaluation_config(self) -> Self:
        """The config with the settings of evaluations; without exploration unless ``evaluation_config`` asks for it."""
        return self.copy().update_from_dict({"explore": False, **(self.evaluation_config or {})})

    def get_default_rl_module_class(self) -> Any:
        """The module class where the user names none."""
        raise ConfigError(f"{type(self).__name__}: has no default RLModule. Pass rl_module_spec in .rl_module(...).")

    def get_default_learner_class(self) -> type[Learner]:
        """The learner class where the user names none."""
        raise ConfigError(f"{type(self).__name__}: has no default Learner. Pass learner_class in .learners(...).")

    def complete_rl_module_spec(self, spec: RLModuleSpec, setup: Any, env_to_module: Any) -> RLModuleSpec:
        """A module's spec, whose spaces and model config are known, with what an algorithm adds to it."""
        return spec

    def default_learner_pieces(self, setup: Any, env_to_module: Any) -> list[Any]:
        """Pieces that an algorithm needs behind AddColumnsFromEpisodesToTrainBatch."""
        return []

    def make_callbacks(self) -> CallbackCalls:
        """Objects of the classes, and the functions.

        Raises:
            ConfigError: If one of them cannot be called as it would be.
        """
        functions = {name: getattr(self, f"callbacks_{name}") for name in CALLBACK_NAMES}
        return CallbackCalls(self.callbacks_class, functions)

    @property
    def device(self) -> torch.device:
        """Where modules and batches are, of runners too: the learner's modules are those that act."""
        wanted = self.num_gpus_per_learner
        return torch.device("cuda" if (torch.cuda.is_available() if wanted == "auto" else wanted) else "cpu")

    def validate(self) -> None:
        """Raises ConfigError for settings that are of the wrong kind, or at odds with one another."""
        for name, value in self.to_dict().items():  # what a dict or list holds may have changed since it was set
            self._checked(name, value, type(self).__name__)
        check_settings(self)
        for module_id in self.algorithm_config_overrides_per_module:
            try:
                self.get_config_for_module(module_id).validate()
            except ConfigError as error:
                raise ConfigError(f"the overrides of module {module_id!r}: {error}") from error

    def build_algo(self) -> Algorithm:
        """The algorithm, ready to ``train()``."""
        from marl_connectors.algorithms.algorithm import Algorithm

        return Algorithm(self)

    def build(self) -> Algorithm:
        """Same as ``build_algo``."""
        return self.build_algo()
