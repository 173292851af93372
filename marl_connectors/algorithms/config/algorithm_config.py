"""AlgorithmConfig: all settings of a run, set with chainable methods."""

from __future__ import annotations

import copy
import math
import os
import reprlib
from abc import ABCMeta
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypedDict

import torch
from gymnasium import VectorizeMode

from marl_connectors.algorithms.config.former_settings import UnknownSectionError, hint_at, unknown_attribute
from marl_connectors.algorithms.config.sections import UNSET, section, section_of
from marl_connectors.algorithms.config.setting_types import (
    ALWAYS_EPISODES,
    CALLBACKS,
    CUSTOM_RESOURCES,
    ENVIRONMENT,
    FUNCTIONS,
    LONGEST_WAIT_S,
    MASK_KEY,
    MODULE_SPEC,
    PATH,
    PATHS,
    POLICIES,
    POLICIES_TO_TRAIN,
    POLICY_MAPPING,
    SPACES,
    VECTORIZE_MODE,
    WRAPPERS,
    builder,
    or_empty,
)
from marl_connectors.callbacks import CALLBACK_NAMES, CallbackCalls, Callbacks, Functions
from marl_connectors.environments.making.wrappers import EnvWrapper
from marl_connectors.errors import ConfigError
from marl_connectors.html_tables import html_table
from marl_connectors.learner.learner import Learner
from marl_connectors.names import import_attribute, qualified_name
from marl_connectors.never_called import RefusesIgnoredMethods
from marl_connectors.offline.episode_reader import AS_RECORDED, ORDERS, SHUFFLED
from marl_connectors.offline.episode_writer import DEFAULT_FILE_SIZE, UNSTORABLE_INFOS
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.policy_mapping import SharedPolicy
from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec
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

    from marl_connectors.connectors.env_to_module.env_to_module_pipeline import EnvToModulePipeline
    from marl_connectors.connectors.learner.learner_connector_pipeline import LearnerConnectorPipeline
    from marl_connectors.connectors.module_to_env.module_to_env_pipeline import ModuleToEnvPipeline
_OF_MODULES = ("gamma", "grad_clip", "grad_clip_by", "lr", "minibatch_size", "model_config", "num_epochs")
"""The settings of ``AlgorithmConfig`` in which modules can differ."""
_IN_EVALUATIONS = ("policy_mapping_fn", "explore", "num_envs_per_env_runner", "num_env_workers", "callbacks_class")
"""The settings that evaluations can have instead of those of training."""


class TrainingSettings(TypedDict, total=False):
    """The settings that ``training`` accepts for every algorithm.

    Attributes:
        gamma: Discount per agent step.
        lr: Learning rate, a number or a schedule ``[[t, value], ...]`` over sampled steps, counted by
            ``count_steps_by``, as in all schedules.
        grad_clip: The bound for gradients; None for no bound.
        grad_clip_by: ``"global_norm"`` (of each optimizer of a module), ``"norm"`` (of each tensor) or ``"value"``.
        train_batch_size_per_learner: The number of steps in one update, counted by ``count_steps_by``.
        num_epochs: The number of passes of an update over its batch.
        minibatch_size: The rows of one module in one gradient step, at most those of a train batch; None for all.
        shuffle_batch_per_epoch: Whether the rows are shuffled for each epoch.
        learner_class: A learner class that replaces the algorithm's own, as in ``learners``.
        learner_connector: As in ``learners``.
        learner_config_dict: As in ``learners``.
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
    learner_config_dict: dict[str, Any]


class _ConfigType(ABCMeta):
    """Ends the time in which a config may get new settings when ``__init__`` of its class has returned."""

    if not TYPE_CHECKING:  # which would take every config for Any

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__call__(*args, **kwargs)
            made._is_made = True
            return made


class AlgorithmConfig(RefusesIgnoredMethods, metaclass=_ConfigType):
    """Settings that every algorithm has. Read them as attributes: ``config.gamma``.

    Sections chain, and an unknown setting is an error that names the closest known one::

        config = PPOConfig().environment("CartPole-v1").training(lr=3e-4).debugging(seed=1)

    Each setting is declared here with its type, its range and its default. A value is checked whenever it is set: in a
    section, as an attribute, by name, for one module or for evaluations, and when a checkpoint is read. A subclass
    declares its own settings in the same way, or simply sets them in ``__init__``. No attribute can be added later,
    unless its name begins with ``_``.
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
    num_env_runners: Annotated[int, integer(min=0)] = 0
    num_envs_per_env_runner: Annotated[int, integer(min=1)] = 1
    num_cpus_per_env_runner: Annotated[float, number(min=0)] = 1.0
    num_gpus_per_env_runner: Annotated[float, number(min=0)] = 0.0
    custom_resources_per_env_runner: Annotated[dict[str, float], CUSTOM_RESOURCES] = {}
    max_requests_in_flight_per_env_runner: Annotated[int, integer(min=1)] = 1
    merge_env_runner_states: Annotated[bool | str, either(one_of("training_only"), boolean())] = "training_only"
    broadcast_env_runner_states: Switch = True
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
    restart_failed_env_runners: Switch = True
    ignore_env_runner_failures: Switch = False
    max_num_env_runner_restarts: Annotated[int, integer(min=0)] = 1000
    env_runner_health_probe_timeout_s: Annotated[float, number(above=0, max=LONGEST_WAIT_S)] = 30.0
    env_runner_restore_timeout_s: Annotated[float, number(above=0, max=LONGEST_WAIT_S)] = 1800.0
    restart_failed_sub_environments: Switch = False
    num_consecutive_env_failures_tolerance: Annotated[int, integer(min=0)] = 100
    # learners
    num_learners: Annotated[int, integer(min=0)] = 0
    num_cpus_per_learner: Annotated[float | str, either(one_of("auto"), number(min=0))] = "auto"
    num_gpus_per_learner: Annotated[float | str, either(one_of("auto"), number(min=0, max=1))] = "auto"
    learner_class: Annotated[type[Learner] | None, optional(subclass_of(Learner))] = None
    learner_connector: Annotated[Callable[..., Any] | None, builder("learner_connector", 2)] = None
    add_default_connectors_to_learner_pipeline: Switch = True
    learner_config_dict: Annotated[dict[str, Any], or_empty(dict_of())] = {}
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
    evaluation_num_env_runners: Annotated[int, integer(min=0)] = 0
    evaluation_parallel_to_training: Switch = False
    offline_evaluation_interval: Annotated[int | None, optional(integer(min=1))] = None
    metrics_num_episodes_for_smoothing: Annotated[int, integer(min=1)] = 100
    # offline_data
    input_: Annotated[list[str] | None, PATHS] = None
    input_order: Annotated[str, one_of(*ORDERS)] = SHUFFLED
    input_read_episodes: Annotated[bool, ALWAYS_EPISODES] = True
    live_fraction: Annotated[float, number(min=0, max=1)] = 0.0
    held_out_fraction: Annotated[float, number(min=0, max=1)] = 0.0
    held_out_input_: Annotated[list[str] | None, PATHS] = None
    output: Annotated[str | None, PATH] = None
    output_max_file_size: Annotated[int | None, optional(integer(min=1))] = DEFAULT_FILE_SIZE
    output_max_rows_per_file: Annotated[int | None, optional(integer(min=1))] = None
    output_write_episodes: Annotated[bool, ALWAYS_EPISODES] = True
    output_unstorable_infos: Annotated[str, one_of(*UNSTORABLE_INFOS)] = "error"
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
    # resources
    ray_address: Annotated[str | None, optional(text())] = None
    # debugging
    seed: Annotated[int | None, optional(integer(min=0))] = None

    fixed_settings: ClassVar[frozenset[str]] = frozenset(
        {
            *("model_config", "rl_module_spec", "episode_lookback_horizon"),
            *(f"add_default_connectors_to_{kind}_pipeline" for kind in ("env_to_module", "module_to_env", "learner")),
        }
    )
    """The settings that a run which goes on from a checkpoint cannot change: its modules, learners and ongoing episodes
    depend on them, or they are values at the beginning, in whose place the checkpoint has later ones. A subclass of
    yours adds those of its own settings that are used when modules and learners are built."""
    settings_of_all_modules: ClassVar[frozenset[str]] = frozenset()
    """The settings of an algorithm that are the same for all modules of a run, so that no module has its own."""
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
        """Sets the environment, and how its observations and actions are treated.

        Args:
            env: An importable PettingZoo environment (``"mpe2.simple_spread_v3"``, ``"my_package.my_env:make"``), a
                Gymnasium id, a name given to ``register_env``, a class, or a function of ``env_config``.
            env_config: The arguments for the environment's constructor or function.
            reset_options: The options of every reset, ``reset(seed=..., options=...)``; None for no options.
            wrappers: The wrappers around each sub-environment, the innermost first: callables ``env -> env``, or names
                with arguments such as ``"frame_skip_v0:4"`` (of SuperSuit) and ``"my_module.my_wrapper:0.5"``.
            observation_space: A space that replaces the environment's own, for all agents or ``{agent_id: space}``.
            action_space: A space that replaces the environment's own, for all agents or ``{agent_id: space}``.
            render_env: Whether the first sub-environment is made with ``render_mode="human"``, so that you can watch
                it during training.
            clip_rewards: How rewards are clipped in the loss only: True for their sign, a number x for [-x, x].
            normalize_actions: Whether Box actions are scaled from [-1, 1] to the space's range.
            clip_actions: Whether Box actions are clipped to the space's range.
            disable_env_checking: Whether to skip the smoke test of the environment, and to accept observations outside
                their space.
            action_mask_key: The key of action masks in observations or infos; adds ActionMasking as the first piece.
                ``"auto"`` applies ``"action_mask"`` for the agents that have one by PettingZoo's convention; None (or
                False) ignores masks.
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
        """Sets the modules, and which agents use each of them.

        Args:
            policies: The module ids: a collection, or ``{module_id: RLModuleSpec or None}``. None for the ids that the
                mapping function returns for the environment's agents. Or, as a shorthand for both settings,
                ``"shared"``, ``"independent"`` or patterns such as ``"adversary*=red,agent*=green"``.
            policy_mapping_fn: ``fn(agent_id, episode, **kwargs)`` that returns the module id; or one of these
                shorthands. It is called once for each agent and episode.
            policies_to_train: The modules that are updated: a collection, ``fn(module_id)`` or
                ``fn(module_id, batch)``; None for all.
            count_steps_by: Whether batch sizes and schedules count ``"env_steps"`` or ``"agent_steps"``.
        """
        return {"policies": None, "policy_mapping_fn": policies} if isinstance(policies, str) else {}

    @section
    def env_runners(
        self,
        *,
        num_env_runners: int = UNSET,
        num_envs_per_env_runner: int = UNSET,
        num_cpus_per_env_runner: float = UNSET,
        num_gpus_per_env_runner: float = UNSET,
        custom_resources_per_env_runner: Mapping[str, float] | None = UNSET,
        max_requests_in_flight_per_env_runner: int = UNSET,
        merge_env_runner_states: bool | str = UNSET,
        broadcast_env_runner_states: bool = UNSET,
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
        """Sets how episodes are collected.

        Args:
            num_env_runners: The number of env runners, each a Ray actor with its own sub-environments and copies of the
                modules; 0 for one env runner in this process. The results of a run depend only on the total number of
                sub-environments.
            num_envs_per_env_runner: The number of sub-environments of each env runner.
            num_cpus_per_env_runner: The CPUs that Ray reserves for each remote env runner.
            num_gpus_per_env_runner: The GPUs that Ray reserves for each remote env runner, whose modules act there.
            custom_resources_per_env_runner: The custom resources that Ray reserves, ``{name: quantity}``.
            max_requests_in_flight_per_env_runner: The number of samples that a remote env runner may be asked for at
                once. It matters if a train batch needs several, which happens if rollout_fragment_length is a number.
                It changes no result.
            merge_env_runner_states: Whether the states of connector pieces, such as filters, are merged over all remote
                env runners after each sample. ``"training_only"`` means the same as True, because pieces learn nothing
                in evaluations. False leaves each env runner with what it has seen itself, and then the results depend
                on the number of env runners.
            broadcast_env_runner_states: Whether remote env runners continue with the merged states. False leaves each
                with its own, as above.
            gym_env_vectorize_mode: ``"sync"``: single sub-environments, which are stepped in as many processes as
                ``num_env_workers`` says. ``"async"``: always in worker processes. ``"vector_entry_point"``: the
                environment's maker returns all of them, as one ``gymnasium.vector.VectorEnv``.
            num_env_workers: The number of processes over which the sub-environments are spread; 0 for this process
                alone, ``"auto"`` for one per core if the environment was given by an importable name and its steps are
                slow enough to be worth it.
            sample_timeout_s: The seconds that a worker process or a remote env runner may take for one step or reset of
                its sub-environments, and a remote learner for one gradient step, before it counts as hung. If above
                300, also the limit for the start of an env runner. None for no limit.
            env_to_module_connector: ``fn(env, spaces, device)``, ``fn(env)`` or ``fn()`` that returns a connector piece
                or a list of pieces. They come before the default pieces.
            module_to_env_connector: ``fn(env, spaces)``, ``fn(env)`` or ``fn()`` that returns a connector piece or a
                list of pieces. They come before the piece that scales and clips actions.
            add_default_connectors_to_env_to_module_pipeline: False to use your own pieces only.
            add_default_connectors_to_module_to_env_pipeline: False to use your own pieces only.
            episode_lookback_horizon: The number of earlier steps that a chunk of an episode keeps.
            rollout_fragment_length: The env steps of each sub-environment in one sample; ``"auto"`` to fit the train
                batch.
            batch_mode: ``"truncate_episodes"`` or ``"complete_episodes"``.
            explore: Whether actions are sampled.
        """

    @section
    def fault_tolerance(
        self,
        *,
        restart_failed_env_runners: bool = UNSET,
        ignore_env_runner_failures: bool = UNSET,
        max_num_env_runner_restarts: int = UNSET,
        env_runner_health_probe_timeout_s: float = UNSET,
        env_runner_restore_timeout_s: float = UNSET,
        restart_failed_sub_environments: bool = UNSET,
        num_consecutive_env_failures_tolerance: int = UNSET,
    ) -> None:
        """Sets what happens if an environment raises an error, returns invalid data or hangs, or if a process dies.

        Args:
            restart_failed_env_runners: Whether a remote env runner or learner that dies or hangs is replaced. The new
                one continues from the last state and repeats the call, so that the results do not change.
            ignore_env_runner_failures: Whether training continues without a lost env runner and its sub-environments.
                It has no
                effect if ``restart_failed_env_runners`` is True, nor on learners.
            max_num_env_runner_restarts: The most replacements in a run, counted separately for training,
                evaluation and learners. The next loss stops it.
            env_runner_health_probe_timeout_s: The seconds in which a remote env runner that is late has to answer how
                far it is, before it counts as hung.
            env_runner_restore_timeout_s: An upper bound in seconds for the start of a new env runner, with the replay
                of ongoing episodes. The limit is 300 s or sample_timeout_s, whichever is longer, but never more than
                this. Remote learners wait about so long for resources.
            restart_failed_sub_environments: Whether to drop the failed sub-environment's episode and to continue with a
                new sub-environment, instead of stopping.
            num_consecutive_env_failures_tolerance: The number of failures that one sub-environment may have without a
                finished episode in between. After more, the run stops.
        """

    @section
    def framework(self, framework: str = UNSET) -> dict[str, Any]:
        """Accepts RLlib's setting for the library that computes. It changes nothing.

        Args:
            framework: ``"torch"``, the only framework.
        """
        if framework is not UNSET:
            one_of("torch").check(framework, f"{type(self).__name__}.framework", "framework")
        return {"framework": UNSET}

    @section
    def learners(
        self,
        *,
        num_learners: int = UNSET,
        num_cpus_per_learner: float | str = UNSET,
        num_gpus_per_learner: float | str = UNSET,
        learner_class: type[Learner] = UNSET,
        learner_connector: Callable[..., Any] | None = UNSET,
        add_default_connectors_to_learner_pipeline: bool = UNSET,
        learner_config_dict: Mapping[str, Any] | None = UNSET,
        stack_modules: bool = UNSET,
        autocast_dtype: str | None = UNSET,
    ) -> None:
        """Sets how modules are updated.

        Args:
            num_learners: The number of learners, each a Ray actor that updates the modules with its share of each train
                batch; 0 to update them in this process. Train batches have ``train_batch_size_per_learner`` steps for
                each learner.
            num_cpus_per_learner: The CPUs that Ray reserves for each remote learner; ``"auto"`` for 1 if it has no GPU,
                else 0.
            num_gpus_per_learner: 1 to put modules and batches on a GPU, 0 for the CPU. ``"auto"`` is, in this process,
                the GPU if torch sees one (CUDA); for remote learners, one GPU each if the cluster has enough. A
                fraction lets remote learners share a GPU.
            learner_class: A learner class that replaces the algorithm's own.
            learner_connector: ``fn(observation_space, action_space)``, a function of one argument, or ``fn()`` that
                returns a connector piece or a list of pieces. They come before the default pieces.
            add_default_connectors_to_learner_pipeline: False to use your own pieces only.
            learner_config_dict: Settings for a learner class of your own, which reads them there.
            stack_modules: Whether modules of one architecture are updated in one computation, instead of one after
                another.
            autocast_dtype: ``"bfloat16"`` to run the forward passes of updates in half precision; None for full.
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
        """Sets the classes, sizes and settings of the modules.

        Args:
            model_config: A DefaultModelConfig or dict for the default modules, or a dict for your own modules.
            rl_module_spec: One spec for all modules, or a MultiRLModuleSpec.
            algorithm_config_overrides_per_module: ``{module_id: {setting: value}}``, such as a learning rate.
            model_config_dict: An older name of ``model_config``.
        """
        return {} if model_config_dict is UNSET else {"model_config": model_config_dict, "model_config_dict": UNSET}

    @section_of(TrainingSettings)
    def training(self, **settings: Unpack[TrainingSettings]) -> None:
        """Sets how the modules learn. ``TrainingSettings`` lists the settings."""

    @section
    def evaluation(
        self,
        *,
        evaluation_interval: int | None = UNSET,
        evaluation_duration: int = UNSET,
        evaluation_config: Mapping[str, Any] | None = UNSET,
        evaluation_num_env_runners: int = UNSET,
        evaluation_parallel_to_training: bool = UNSET,
        offline_evaluation_interval: int | None = UNSET,
    ) -> None:
        """Sets when and how ``train()`` also evaluates. The policies act as they were trained (``draws_actions``).

        Args:
            evaluation_interval: The number of iterations from one evaluation to the next; None for no evaluations.
            evaluation_duration: The number of episodes of one evaluation.
            evaluation_config: Settings that differ in evaluations: ``policy_mapping_fn`` (for example to play against a
                fixed opponent), ``explore``, ``num_envs_per_env_runner`` (here the number of all sub-environments),
                ``num_env_workers``, ``callbacks_class``.
            evaluation_num_env_runners: The number of remote env runners for evaluations; 0 to play in this process.
            evaluation_parallel_to_training: Whether ``train()`` evaluates while it samples and updates, with the
                parameters of the iteration's beginning. It needs ``evaluation_num_env_runners``.
            offline_evaluation_interval: The number of iterations from one ``algo.evaluate_offline()``, on held-out
                recorded episodes, to the next; None for none.
        """

    @section
    def offline_data(
        self,
        *,
        input_: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = UNSET,
        input_order: str = UNSET,
        input_read_episodes: bool = UNSET,
        live_fraction: float = UNSET,
        held_out_fraction: float = UNSET,
        held_out_input_: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = UNSET,
        output: str | os.PathLike[str] | None = UNSET,
        output_max_file_size: int | None = UNSET,
        output_max_rows_per_file: int | None = UNSET,
        output_write_episodes: bool = UNSET,
        output_unstorable_infos: str = UNSET,
    ) -> None:
        """Sets the recorded episodes that the run reads, and where it records what it samples.

        Args:
            input_: A folder or file of recorded episodes, or a list of them, from which train batches are made, or
                which go to the replay buffer; None to sample. With ``batch_mode="complete_episodes"``, episodes that
                were recorded in chunks are put together, and incomplete ones are left out.
            input_order: ``"shuffled"`` shuffles the episodes before each pass over the data, ``"in_order"`` reads them
                as they were recorded, and ``"as_recorded"`` makes a batch of each sample that was recorded.
            input_read_episodes: Always True: the files hold episodes. ``from_parquet`` reads tables of steps.
            live_fraction: The share of the steps of each train batch, or of those that go to the replay buffer, that
                env runners sample, below 1. The rest is read from ``input_``.
            held_out_fraction: The share of the episodes of ``input_`` that is not trained on, for evaluations on
                recorded episodes (``algo.evaluate_offline()``): at least one episode, and the same ones in each run.
            held_out_input_: A folder or file of recorded episodes for these evaluations, or a list of them, instead.
            output: The folder for the episodes of all samples that train batches are made of; None to record nothing.
            output_max_file_size: The bytes after which another file is begun; None for no limit.
            output_max_rows_per_file: The agent steps after which another file is begun; None for no limit.
            output_write_episodes: Always True. ``to_parquet`` makes tables of steps.
            output_unstorable_infos: What happens to values of infos that no file can hold: ``"error"``, or ``"drop"``
                to leave them out and warn.
        """

    @section
    def reporting(self, *, metrics_num_episodes_for_smoothing: int = UNSET) -> None:
        """Sets the number of newest episodes over which returns are averaged."""

    @section
    def exploration(self, *, explore: bool = UNSET) -> None:
        """Sets whether actions are sampled, as ``env_runners(explore=...)`` does."""

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
        """Sets the callbacks of a run. The methods of Callbacks describe when they are called.

        Args:
            callbacks_class: A subclass of Callbacks, or a list of subclasses; None for no callbacks. Each runner, and
                the algorithm, makes an object of each.
            on_algorithm_init: A function or a list of functions, which are called after the method of that name of
                the classes.
            on_train_result: As for ``on_algorithm_init``.
            on_evaluate_start: As for ``on_algorithm_init``.
            on_evaluate_end: As for ``on_algorithm_init``.
            on_env_runners_recreated: As for ``on_algorithm_init``.
            on_checkpoint_loaded: As for ``on_algorithm_init``.
            on_environment_created: As for ``on_algorithm_init``.
            on_episode_created: As for ``on_algorithm_init``.
            on_episode_start: As for ``on_algorithm_init``.
            on_episode_step: As for ``on_algorithm_init``.
            on_episode_end: As for ``on_algorithm_init``.
            on_sample_end: As for ``on_algorithm_init``.
        """
        given = {name: value for name, value in locals().items() if name in CALLBACK_NAMES}
        return {f"callbacks_{name}": value for name, value in given.items()} | dict.fromkeys(given, UNSET)

    @section
    def resources(self, *, ray_address: str | None = UNSET) -> None:
        """Sets where remote env runners and learners run.

        Args:
            ray_address: The address of a running Ray cluster, such as ``"auto"`` for the one on this machine or
                ``"10.0.0.5:6379"``. None starts a cluster on this machine for this run alone, unless this process is
                connected to a cluster already.
        """

    @section
    def debugging(self, *, seed: int | None = UNSET) -> None:
        """Sets the run's seed. The same seed leads to the same run; None draws a random one."""

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

    def change(self, **settings: Any) -> None:
        """Changes settings even of a frozen config, for algorithms that add and remove modules."""
        who = f"{type(self).__name__}.change"
        self._check_names(settings, who)
        vars(self).update({name: self._checked(name, value, who) for name, value in settings.items()})
        self._module_configs.clear()

    def __repr__(self) -> str:
        """Returns the settings that differ from the defaults: ``PPOConfig(env='CartPole-v1', lr=0.001)``."""
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in self._changed().items())})"

    def _repr_html_(self) -> str:
        """Returns the same as a table, for notebooks."""
        caption = f"{type(self).__name__}, what differs from the defaults"
        return html_table(caption, self._changed(), code=True)

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
        _check_overrides(module_id, overrides, {*declared(AlgorithmConfig), *self.settings_of_all_modules}, who)
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
        device = None if device is None else torch.device(device)
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

    def get_config_for_module(self, module_id: ModuleID) -> Any:
        """Returns the config with a module's overrides; this object itself if it has none."""
        overrides = self.algorithm_config_overrides_per_module.get(module_id)
        if not overrides:
            return self
        if module_id not in self._module_configs:
            own = self.copy()
            own.algorithm_config_overrides_per_module = {}
            self._module_configs[module_id] = own.update_from_dict(overrides)
        return self._module_configs[module_id]

    def configs_of_algorithms(self) -> dict[str, Any]:
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

    def get_default_rl_module_class(self) -> Any:
        """Returns the module class that is used if the user names none."""
        raise ConfigError(f"{type(self).__name__}: has no default RLModule. Pass rl_module_spec in .rl_module(...).")

    def get_default_learner_class(self) -> type[Learner]:
        """Returns the learner class that is used if the user names none."""
        raise ConfigError(f"{type(self).__name__}: has no default Learner. Pass learner_class in .learners(...).")

    def complete_rl_module_spec(self, spec: RLModuleSpec, setup: Any, env_to_module: Any) -> RLModuleSpec:
        """Adds what an algorithm needs to a module's spec, whose spaces and model config are known."""
        return spec

    def default_learner_pieces(self, setup: Any, env_to_module: Any) -> list[Any]:
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
    def algo_class(self) -> Any:
        """The class of the algorithm that ``build_algo`` makes."""
        # Algorithms are built on configs, so a config finds their class by name.
        given = self._algo_class
        return import_attribute(given, who="algo_class", error=ConfigError) if isinstance(given, str) else given

    def build_algo(self, env: Any = None) -> Any:
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

    def build(self, env: Any = None) -> Any:
        """Does the same as ``build_algo``."""
        return self.build_algo(env)


def _building(name: str) -> Any:
    # What builds the parts of a run depends on configs, so it is found by name.
    return import_attribute(f"marl_connectors.algorithms.build:{name}", who="build", error=ConfigError)


def evaluation_settings(config: AlgorithmConfig) -> dict[str, Any]:
    """Returns the settings of a config that evaluations can have instead of those of training."""
    return {name: getattr(config, name) for name in _IN_EVALUATIONS}


# Checks.


def _check_settings(config: AlgorithmConfig) -> None:
    """Checks settings against one another and against this machine. Each alone is checked when it is set.

    Raises:
        ConfigError: For the first settings that contradict each other.
    """
    who = type(config).__name__
    if config.env is None:
        raise ConfigError(f"{who}: no environment. Call .environment(env=...).")
    gpus = config.num_gpus_per_learner
    if gpus != "auto" and gpus and not config.num_learners and not torch.cuda.is_available():
        raise ConfigError(
            f"{who}: num_gpus_per_learner={gpus:g}, but torch {torch.__version__} sees no CUDA device. "
            f"Set num_gpus_per_learner='auto' or 0 to use the CPU, or install a build of torch for your GPU."
        )
    _check_offline_data(config, who)
    _check_vectorization(config)
    _check_remote(config, who)


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


def _check_overrides(module_id: ModuleID, overrides: Mapping[str, Any], of_all: Collection[str], who: str) -> None:
    """Checks that one module can have other settings than the rest.

    Args:
        module_id: The module.
        overrides: The settings.
        of_all: The names of the settings that every algorithm has, and of others that modules have in common. They may
            differ in the rest.
        who: The first words of the message.

    Raises:
        ConfigError: For a setting of the run as a whole.
    """
    for name in overrides:
        if name in of_all and name not in _OF_MODULES:
            raise ConfigError(
                f"{who}: {name!r} is a setting of the whole run, so module {module_id!r} cannot have its own. Modules "
                f"can differ in {', '.join(_OF_MODULES)} and the settings of the algorithm's loss."
            )


def _check_evaluation(settings: Mapping[str, Any], who: str) -> None:
    """Checks that evaluations can have other settings than training.

    Raises:
        ConfigError: For a setting that they share with training.
    """
    for name in settings:
        if name not in _IN_EVALUATIONS:
            raise ConfigError(
                f"{who}: evaluation_config: {name!r} cannot differ in evaluations, only "
                f"{', '.join(_IN_EVALUATIONS)} can. Leave it out."
            )
