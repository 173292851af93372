"""The settings that every algorithm has: each is declared here, once, with its type, range, meaning and default."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

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
from marl_connectors.callbacks import Callbacks, Functions
from marl_connectors.environments.registry.wrapper_names import EnvWrapper
from marl_connectors.offline.choices import DEFAULT_FILE_SIZE, ORDERS, SHUFFLED, UNSTORABLE_INFOS
from marl_connectors.ops.schedule import Schedule, schedule
from marl_connectors.policy_mapping import SharedPolicy
from marl_connectors.rl_module.spec_fields import MODEL_CONFIG
from marl_connectors.typing import ModuleID
from marl_connectors.validators import (
    Given,
    Option,
    boolean,
    dict_of,
    either,
    integer,
    list_of,
    number,
    one_of,
    optional,
    section,
    setting,
    settings_of,
    subclass_of,
    text,
)

if TYPE_CHECKING:
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.multi_rl_module import MultiRLModuleSpec
    from marl_connectors.rl_module.rl_module import RLModuleSpec

NO_VIDEO = "none"
VIDEO_FORMATS = ("gif", "mp4", NO_VIDEO)
TRACKER_NAMES = ("tensorboard", "wandb", "mlflow", "trackio")


@section
class EnvironmentSettings:
    """Sets the environment, and how its observations and actions are treated."""

    env: Any = setting(
        ENVIRONMENT,
        'A name (``"simple_spread_v3"``, ``"my_package.my_env:make"``, a Gymnasium or PettingZoo id, '
        '``"vmas/balance"``, a name given to ``register_env``), a class, or a function of ``env_config`` '
        "(docs/environments.md).",
        default=None,
        kw_only=False,
        option=Option("ENV", "environment", "PettingZoo module, package.module:function, or Gymnasium id"),
    )
    env_config: dict[str, Any] = setting(
        or_empty(dict_of()),
        "Keyword arguments for the environment's constructor, or the dict for a function that takes one.",
        default={},
        converter=Given[Mapping[str, Any]],
        option=Option("--env-config KEY=VALUE", "environment", "a setting of ENV; repeatable"),
    )
    reset_options: dict[str, Any] | None = setting(
        optional(dict_of()),
        "The environment gets a copy with every reset, as ``options``. An error for natively batched environments "
        "and VectorEnvs that reset themselves.",
        default=None,
        converter=Given[Mapping[str, Any] | None],
    )
    wrappers: list[EnvWrapper] = setting(
        WRAPPERS,
        "Wrappers around each sub-environment, the innermost first: callables, or names such as "
        '``"frame_skip_v0:4"`` (docs/wrappers.md).',
        default=[],
        converter=Given[Iterable[EnvWrapper] | None],
        option=Option("--wrap NAME:ARGS", "environment", "a wrapper, as frame_skip_v0:4; repeatable", key="wrappers"),
    )
    observation_space: Any = setting(
        SPACES,
        "Replaces the environment's observation space, for all agents or for each.",
        default=None,
    )
    action_space: Any = setting(
        SPACES,
        "Replaces the environment's action space, for all agents or for each.",
        default=None,
    )
    render_env: bool = setting(
        boolean(),
        "Shows the first sub-environment of training in a window; for single environments in this process.",
        default=False,
    )
    clip_rewards: bool | float | None = setting(
        optional(either(boolean(), number(above=0, max=math.inf))),
        "Clips rewards for the loss only: True to their signs, a number ``x`` to ``[-x, x]``.",
        default=None,
    )
    normalize_actions: bool = setting(
        boolean(), "Stretches Box actions from [-1, 1] to the space's range.", default=True
    )
    clip_actions: bool = setting(boolean(), "Clips Box actions to the space's range.", default=False)
    disable_env_checking: bool = setting(
        boolean(),
        "Skips the smoke test, and allows observations outside their space. NaN and infinity stay errors.",
        default=False,
        changeable=True,
        option=Option("--env-check", "environment", "refuse observations outside their space", is_opposite=True),
    )
    action_mask_key: str | None = setting(
        MASK_KEY,
        'The key of action masks in observations or infos; ``"auto"`` for ``"action_mask"`` by PettingZoo\'s '
        "convention; None for no masks (docs/env_to_module.md).",
        default="auto",
        converter=Given[str | bool | None],
        option=Option(
            "--action-mask-key KEY",
            "environment",
            "key of action masks in observations or infos (auto: action_mask, if it exists), or none",
        ),
    )


@section
class MultiAgentSettings:
    """Sets the modules, and which agents use each of them."""

    policies: Any = setting(
        POLICIES,
        'The module ids; None for those of a first episode. ``"shared"``, ``"independent"`` or patterns '
        '(``"adversary*=red,agent*=green"``) set this and ``policy_mapping_fn``.',
        default=None,
        option=Option("--modules A,B", "policies", "all modules that FN can name, if some are used later only"),
    )
    policy_mapping_fn: Callable[..., ModuleID] = setting(
        POLICY_MAPPING,
        "Returns the module id, once for each agent and episode.",
        default=SharedPolicy(),
        converter=Given[str | Callable[..., ModuleID]],
        in_evaluations=True,
        option=(
            Option("--policies WHICH", "policies", 'shared, independent, or patterns: "adversary*=red,agent*=green"'),
            Option("--mapping MODULE:FN", "policies", "a policy mapping function of (agent_id, episode, **kwargs)"),
        ),
    )
    policies_to_train: Collection[ModuleID] | Callable[..., bool] | None = setting(
        POLICIES_TO_TRAIN,
        "The modules that are updated; None for all (docs/learner.md).",
        default=None,
    )
    count_steps_by: str = setting(
        one_of("env_steps", "agent_steps"),
        "What batch sizes and schedules count.",
        default="env_steps",
    )

    @staticmethod
    def _given(settings: dict[str, Any]) -> dict[str, Any]:
        policies = settings.get("policies")  # a text is a shorthand for two settings
        return settings | {"policies": None, "policy_mapping_fn": policies} if isinstance(policies, str) else settings


@section
class EnvRunnerSettings:
    """Sets how episodes are collected."""

    num_env_runners: int = setting(
        integer(min=0),
        "Env runners in Ray actors, each with its own sub-environments; 0 samples in this process (docs/cluster.md).",
        default=0,
        changeable=True,
        option=Option(
            "--num-env-runners N",
            "speed",
            "env runners in Ray actors, among which the sub-environments are divided; 0: in this process",
        ),
    )
    num_envs_per_env_runner: int = setting(
        integer(min=1),
        "Sub-environments of an env runner, stepped together. More make sampling faster.",
        default=1,
        in_evaluations=True,
    )
    num_cpus_per_env_runner: float = setting(
        number(min=0),
        "CPUs that Ray reserves for each, if there is a ``ray_address``, and torch's threads there, at least one.",
        default=1.0,
        changeable=True,
    )
    num_gpus_per_env_runner: float = setting(
        number(min=0),
        "GPUs that Ray reserves for each remote env runner, whose modules then act on the GPU.",
        default=0.0,
        changeable=True,
    )
    custom_resources_per_env_runner: dict[str, float] = setting(
        CUSTOM_RESOURCES,
        "Custom resources that Ray reserves for each remote env runner.",
        default={},
        converter=Given[Mapping[str, float] | None],
        changeable=True,
    )
    max_requests_in_flight_per_env_runner: int = setting(
        integer(min=1),
        "Samples that a remote env runner may be asked for at once, if ``rollout_fragment_length`` is a number. "
        "Results do not depend on it.",
        default=1,
        changeable=True,
    )
    merge_env_runner_states: bool | str = setting(
        either(one_of("training_only"), boolean()),
        "Whether what connector pieces learn is merged over remote env runners. If not, results depend on their "
        "number.",
        default="training_only",
    )
    broadcast_env_runner_states: bool = setting(
        boolean(),
        "Whether remote env runners continue with the merged states. If not, results depend on their number.",
        default=True,
    )
    gym_env_vectorize_mode: str = setting(
        VECTORIZE_MODE,
        "How sub-environments are made (docs/vector_environments.md).",
        default="sync",
        converter=Given[str | Enum],
    )
    num_env_workers: int | str = setting(
        either(one_of("auto"), integer(min=0)),
        'Worker processes that step the sub-environments; ``"auto"`` for as many as are worth it.',
        default="auto",
        in_evaluations=True,
        changeable=True,
        option=Option(
            "--num-env-workers N",
            "speed",
            "processes that step the sub-environments; auto: as many as are worth it, up to one per core",
        ),
    )
    sample_timeout_s: float | None = setting(
        optional(number(above=0, max=LONGEST_WAIT_S)),
        "Seconds for a step or reset of a worker or remote env runner, a gradient step of a remote learner, and, if "
        "above 300, a start; None for no limit (docs/cluster.md).",
        default=60.0,
        changeable=True,
    )
    env_to_module_connector: Callable[..., Any] | None = setting(
        builder("env_to_module_connector", 3),
        "``fn(env, spaces, device)``, ``fn(env)`` or ``fn()`` returns pieces that stand before the default ones "
        "(docs/custom_connectors.md).",
        default=None,
        option=Option(
            "--env-to-module PIECE",
            "policies",
            "connector pieces for observations: NAME, MODULE:NAME, then :ARGUMENT=VALUE,...; none for no pieces",
        ),
    )
    module_to_env_connector: Callable[..., Any] | None = setting(
        builder("module_to_env_connector", 2),
        "``fn(env, spaces)``, ``fn(env)`` or ``fn()`` returns pieces that stand before actions get the "
        "environment's range.",
        default=None,
    )
    add_default_connectors_to_env_to_module_pipeline: bool = setting(
        boolean(), "False to use your own pieces only.", default=True, fixed=True
    )
    add_default_connectors_to_module_to_env_pipeline: bool = setting(
        boolean(), "False to use your own pieces only.", default=True, fixed=True
    )
    episode_lookback_horizon: int = setting(
        integer(min=0), "Steps that a chunk of an episode keeps from before it.", default=1, fixed=True
    )
    rollout_fragment_length: int | str = setting(
        either(one_of("auto"), integer(min=1)),
        'Env steps of each sub-environment in a sample; ``"auto"`` fits the train batch.',
        default="auto",
        changeable=True,
    )
    batch_mode: str = setting(
        one_of("truncate_episodes", "complete_episodes"),
        "Whether samples cut episodes, or train batches hold whole episodes only.",
        default="truncate_episodes",
        changeable=True,
    )
    explore: bool = setting(
        boolean(), "Whether actions are sampled while training.", default=True, in_evaluations=True, changeable=True
    )


@section
class ExplorationSettings:
    """Sets whether actions are sampled, as ``env_runners(explore=...)`` does."""

    explore: bool = cast(Any, settings_of(EnvRunnerSettings)["explore"])


@section
class FaultToleranceSettings:
    """Sets what happens if an environment raises an error, returns invalid data or hangs, or if a process dies."""

    restart_failed_env_runners: bool = setting(
        boolean(),
        "Whether a remote env runner or learner that dies or hangs is replaced. Results do not change "
        "(docs/cluster.md).",
        default=True,
    )
    ignore_env_runner_failures: bool = setting(
        boolean(),
        "Whether training goes on without a lost env runner, if ``restart_failed_env_runners`` is False.",
        default=False,
    )
    max_num_env_runner_restarts: int = setting(
        integer(min=0),
        "Replacements after which the next loss stops the run, each of training, evaluation and learners.",
        default=1000,
    )
    env_runner_health_probe_timeout_s: float = setting(
        number(above=0, max=LONGEST_WAIT_S),
        "Seconds in which a remote env runner that is late has to answer before it counts as hung.",
        default=30.0,
    )
    env_runner_restore_timeout_s: float = setting(
        number(above=0, max=LONGEST_WAIT_S),
        "The most seconds that a new env runner may take to start and replay episodes, and that remote learners wait "
        "for resources.",
        default=1800.0,
    )
    restart_failed_sub_environments: bool = setting(
        boolean(),
        "Whether an environment that raises an error, gives invalid data, hangs or loses its process is replaced, "
        "and its episode dropped. A value outside a discrete space still stops the run.",
        default=False,
    )
    num_consecutive_env_failures_tolerance: int = setting(
        integer(min=0),
        "Failures of one sub-environment without a finished episode after which the next stops the run.",
        default=100,
    )


@section
class FrameworkSettings:
    """Accepts RLlib's setting for the library that computes. It changes nothing."""

    framework: str = setting(one_of("torch"), 'Always ``"torch"``.', default="torch", kw_only=False)

    @staticmethod
    def _given(settings: dict[str, Any]) -> dict[str, Any]:
        return {}


@section
class LearnerSettings:
    """Sets how modules are updated."""

    num_learners: int = setting(
        integer(min=0),
        "Learners in Ray actors, which share every train batch; 0 updates in this process (docs/cluster.md).",
        default=0,
        changeable=True,
        option=Option(
            "--num-learners N",
            "speed",
            "learners in Ray actors, which update the modules together; 0: in this process",
        ),
    )
    num_cpus_per_learner: float | str = setting(
        either(one_of("auto"), number(min=0)),
        'CPUs that Ray reserves for each remote learner; ``"auto"`` for 1 if it has no GPU, else 0.',
        default="auto",
        changeable=True,
    )
    num_gpus_per_learner: float | str = setting(
        either(one_of("auto"), number(min=0, max=1)),
        '1 puts modules and batches on the GPU, 0 on the CPU; ``"auto"`` on the GPU if there are enough. Remote '
        "learners can share one by a fraction.",
        default="auto",
        changeable=True,
        option=Option(
            "--num-gpus-per-learner N",
            "speed",
            "1 to put modules on the GPU, 0 on the CPU; auto: on the GPU if one exists",
        ),
    )
    learner_class: type[Learner] | None = setting(
        optional(subclass_of("marl_connectors.learner.learner:Learner")),
        "Replaces the algorithm's own learner class.",
        default=None,
        changeable=False,
        converter=Given["type[Learner]"],
    )
    learner_connector: Callable[..., Any] | None = setting(
        builder("learner_connector", 2),
        "``fn(observation_space, action_space)``, ``fn(observation_space)`` or ``fn()`` returns pieces that stand "
        "before the default ones.",
        default=None,
        changeable=False,
        option=Option("--learner-connector PIECE", "policies", "connector pieces for train batches, in the same form"),
    )
    learner_config_dict: dict[str, Any] = setting(
        or_empty(dict_of()),
        "Settings that a learner class of your own reads.",
        default={},
        converter=Given[Mapping[str, Any] | None],
    )
    add_default_connectors_to_learner_pipeline: bool = setting(
        boolean(), "False to use your own pieces only.", default=True, fixed=True
    )
    stack_modules: bool = setting(
        boolean(),
        "Updates modules of one architecture as one computation, not one after another (docs/learner.md).",
        default=True,
        changeable=True,
    )
    autocast_dtype: str | None = setting(
        optional(one_of("bfloat16")),
        "Runs the forward passes of updates in half precision.",
        default=None,
        changeable=True,
    )


@section
class RLModuleSettings:
    """Sets the classes, sizes and settings of the modules."""

    model_config: Any = setting(
        MODEL_CONFIG,
        "A ``DefaultModelConfig`` or a dict with its settings; for modules of your own, any dict.",
        default=None,
        per_module=True,
        fixed=True,
        option=Option(
            "--model KEY=VALUE",
            "policies",
            "a setting of the modules, such as use_lstm=true or lstm_cell_size=64; repeatable",
        ),
    )
    rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None = setting(
        MODULE_SPEC, "One ``RLModuleSpec`` for all modules, or a ``MultiRLModuleSpec``.", default=None, fixed=True
    )
    algorithm_config_overrides_per_module: dict[ModuleID, dict[str, Any]] = setting(
        or_empty(dict_of(text(), dict_of(), expected="a dict {module_id: {setting: value}}")),
        '``{"red": {"lr": 1e-4}}``: other values for some modules of ``gamma``, ``grad_clip``, ``grad_clip_by``, '
        "``lr``, ``minibatch_size``, ``model_config``, ``num_epochs``, and the algorithm's own settings. For "
        "modules added later, see ``add_module(..., config_overrides=...)``.",
        default={},
        converter=Given[Mapping[ModuleID, Mapping[str, Any]]],
    )


@section
class RLModuleArguments(RLModuleSettings):
    """Sets the classes, sizes and settings of the modules."""

    model_config_dict: Any = setting(MODEL_CONFIG, "An older name of ``model_config``.", default=None)

    @staticmethod
    def _given(settings: dict[str, Any]) -> dict[str, Any]:
        return {"model_config" if name == "model_config_dict" else name: value for name, value in settings.items()}


_OF_LEARNERS: Any = settings_of(LearnerSettings)


@section
class TrainingSettings:
    """Sets how the modules learn."""

    gamma: float = setting(number(min=0, max=1), "Discount per agent step.", default=0.99, per_module=True)
    lr: Schedule = setting(
        schedule(min=0),
        "Learning rate, or a schedule: linear between its points, ``t`` in sampled steps (``count_steps_by``).",
        default=0.001,
        per_module=True,
    )
    grad_clip: float | None = setting(
        optional(number(above=0, max=math.inf)), "Bound for gradients; None for none.", default=None, per_module=True
    )
    grad_clip_by: str = setting(
        one_of("global_norm", "norm", "value"),
        "Bounds the norm over each optimizer of a module, the norm of each tensor, or each number.",
        default="global_norm",
        per_module=True,
    )
    train_batch_size_per_learner: int = setting(
        integer(min=1),
        "Steps (``count_steps_by``) in the batch of one update, for each learner.",
        default=32,
    )
    num_epochs: int = setting(integer(min=1), "How often an update goes through its batch.", default=1, per_module=True)
    minibatch_size: int | None = setting(
        optional(integer(min=1)),
        "Rows of one module in one gradient step; None for all rows.",
        default=None,
        per_module=True,
    )
    shuffle_batch_per_epoch: bool = setting(boolean(), "Whether the rows are shuffled in each epoch.", default=False)
    learner_class: type[Learner] | None = _OF_LEARNERS["learner_class"]
    learner_connector: Callable[..., Any] | None = _OF_LEARNERS["learner_connector"]
    learner_config_dict: dict[str, Any] = _OF_LEARNERS["learner_config_dict"]


@section
class EvaluationSettings:
    """Sets when and how ``train()`` also evaluates. The policies act as they were trained (``draws_actions``)."""

    evaluation_interval: int | None = setting(
        optional(integer(min=1)),
        "``train()`` also evaluates every so many iterations; None for never.",
        default=None,
        changeable=True,
    )
    evaluation_duration: int = setting(integer(min=1), "Episodes of one evaluation.", default=10, changeable=True)
    evaluation_config: dict[str, Any] | None = setting(
        optional(dict_of()),
        "What differs in evaluations: ``policy_mapping_fn`` (docs/self_play.md), ``explore`` (docs/results.md), "
        "``num_envs_per_env_runner`` (here of all env runners), ``num_env_workers``, ``callbacks_class``.",
        default=None,
        converter=Given[Mapping[str, Any] | None],
    )
    evaluation_num_env_runners: int = setting(
        integer(min=0),
        "Remote env runners that play evaluations only; 0 to play them in this process.",
        default=0,
        changeable=True,
    )
    evaluation_parallel_to_training: bool = setting(
        boolean(),
        "Whether evaluations run during an iteration, with the parameters of its beginning. It needs "
        "``evaluation_num_env_runners``.",
        default=False,
        changeable=True,
    )
    offline_evaluation_interval: int | None = setting(
        optional(integer(min=1)),
        "``train()`` also computes the losses of held-out episodes every so many iterations (docs/imitation.md).",
        default=None,
    )


@section
class OfflineDataSettings:
    """Sets the recorded episodes that the run reads, and where it records what it samples."""

    input_: list[str] | None = setting(
        PATHS,
        "Folders or files of recorded episodes, from which train batches or the replay buffer are filled "
        "(docs/offline_data.md).",
        default=None,
        converter=Given[str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None],
    )
    input_order: str = setting(
        one_of(*ORDERS),
        'How episodes are read; ``"as_recorded"``: in the samples in which they were recorded.',
        default=SHUFFLED,
    )
    input_read_episodes: bool = setting(
        ALWAYS_EPISODES,
        "RLlib's name: files always hold episodes.",
        default=True,
    )
    live_fraction: float = setting(
        number(min=0, max=1),
        "The share of steps, below 1, that env runners sample; the rest is read from ``input_``.",
        default=0.0,
    )
    held_out_fraction: float = setting(
        number(min=0, max=1),
        "The share of the episodes of ``input_``, below 1, that is kept for ``algo.evaluate_offline()``.",
        default=0.0,
    )
    held_out_input_: list[str] | None = setting(
        PATHS,
        "Recorded episodes for ``algo.evaluate_offline()``, instead.",
        default=None,
        converter=Given[str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None],
    )
    output: str | None = setting(
        PATH,
        "A folder in which the episodes of all train batches are recorded.",
        default=None,
        converter=Given[str | os.PathLike[str] | None],
    )
    output_max_file_size: int | None = setting(
        optional(integer(min=1)),
        "Bytes after which another file is begun; None for no limit.",
        default=DEFAULT_FILE_SIZE,
    )
    output_max_rows_per_file: int | None = setting(
        optional(integer(min=1)), "Agent steps after which another file is begun; None for no limit.", default=None
    )
    output_write_episodes: bool = setting(
        ALWAYS_EPISODES,
        "RLlib's name: files always hold episodes.",
        default=True,
    )
    output_unstorable_infos: str = setting(
        one_of(*UNSTORABLE_INFOS),
        "Whether infos that no file can hold are an error, or left out with a warning.",
        default="error",
    )


@section
class ReportingSettings:
    """Sets the number of newest episodes over which returns are averaged."""

    metrics_num_episodes_for_smoothing: int = setting(
        integer(min=1), "Newest episodes over which returns are averaged.", default=100
    )


_CALLED = "See docs/callbacks.md."


@section
class CallbackSettings:
    """Sets the callbacks of a run. The methods of Callbacks describe when they are called."""

    callbacks_class: type[Callbacks] | Sequence[type[Callbacks]] = setting(
        CALLBACKS,
        "None for no callbacks. Each runner, and the algorithm, makes an object of each class.",
        default=Callbacks,
        kw_only=False,
        converter=Given[type[Callbacks] | Sequence[type[Callbacks]] | None],
        in_evaluations=True,
    )
    callbacks_on_algorithm_init: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_algorithm_init")
    callbacks_on_train_result: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_train_result")
    callbacks_on_evaluate_start: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_evaluate_start")
    callbacks_on_evaluate_end: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_evaluate_end")
    callbacks_on_env_runners_recreated: Functions = setting(
        FUNCTIONS, _CALLED, default=None, alias="on_env_runners_recreated"
    )
    callbacks_on_checkpoint_loaded: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_checkpoint_loaded")
    callbacks_on_environment_created: Functions = setting(
        FUNCTIONS, _CALLED, default=None, alias="on_environment_created"
    )
    callbacks_on_episode_created: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_episode_created")
    callbacks_on_episode_start: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_episode_start")
    callbacks_on_episode_step: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_episode_step")
    callbacks_on_episode_end: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_episode_end")
    callbacks_on_sample_end: Functions = setting(FUNCTIONS, _CALLED, default=None, alias="on_sample_end")


@section
class RunSettings:
    """Sets how long ``Algorithm.fit`` trains, and what it keeps in the folder of the run. Its arguments change them."""

    steps: int | None = setting(
        optional(integer(min=1)),
        "Agent steps at which the whole run ends; None if something else ends it.",
        default=None,
        option=Option("--steps N", "run", "agent steps to train for"),
    )
    checkpoint_every: int = setting(
        integer(min=1),
        "Iterations from one checkpoint to the next.",
        default=20,
        option=Option("--checkpoint-every N", "output", "iterations from checkpoint to checkpoint"),
    )
    keep_checkpoints: int | None = setting(
        optional(integer(min=1)),
        "Newest checkpoints to keep besides the best one; None for all.",
        default=None,
        option=Option("--keep-checkpoints N", "output", "newest checkpoints to keep besides the best"),
    )
    keep_best: str | None = setting(
        optional(text("a metric")),
        'The metric of the best checkpoint, such as ``"env_runners/episode_return_mean"``, or ``"min:NAME"``; '
        '``"auto"`` for the success, else the return, of evaluations or else of training; None for no best one.',
        default="auto",
        option=Option(
            "--keep-best METRIC",
            "output",
            "metric of the best checkpoint, as env_runners/episode_return_mean, min:METRIC for its lowest value, "
            "or none; auto: success, then return, of evaluations or else of training",
        ),
    )
    eval_episodes: int = setting(
        integer(min=0),
        "Episodes of each evaluation before and after training; 0 for no such evaluation.",
        default=0,
        option=Option("--eval-episodes N", "run", "episodes of each evaluation"),
    )
    baseline_seconds: float = setting(
        number(min=0),
        "Seconds for measuring random play, and again for the untrained policies; 0 for neither.",
        default=0.0,
        option=Option(
            "--baseline-seconds N",
            "run",
            "seconds for measuring random play, and as many for the untrained policies",
        ),
    )
    video: str = setting(
        one_of(*VIDEO_FORMATS),
        "The format of videos.",
        default=NO_VIDEO,
        option=Option("--video FORMAT", "output", "format of the video at the end"),
    )
    video_every: int = setting(
        integer(min=0),
        "Iterations from one video to the next; 0 for a video at the end alone.",
        default=0,
        option=Option("--video-every N", "output", "iterations from video to video; 0: at the end"),
    )
    track: Sequence[str] = setting(
        list_of(one_of(*TRACKER_NAMES), f"a list of {', '.join(TRACKER_NAMES)}"),
        "Trackers to which results are written.",
        default=(),
        option=Option("--track NAME,NAME", "output", f"write metrics to {', '.join(TRACKER_NAMES)}, or none"),
    )


@section
class ResourceSettings:
    """Sets where remote env runners and learners run."""

    ray_address: str | None = setting(
        optional(text()),
        'The Ray cluster, such as ``"auto"`` or ``"10.0.0.5:6379"``; None for one on this machine for this run alone '
        "(docs/cluster.md).",
        default=None,
        option=Option(
            "--ray-address ADDRESS",
            "speed",
            "a running Ray cluster: auto for the one on this machine, or HOST:6379; none: a cluster on this "
            "machine for this run alone",
        ),
    )


@section
class DebuggingSettings:
    """Sets the run's seed. The same seed leads to the same run; None draws a random one."""

    seed: int | None = setting(
        optional(integer(min=0)),
        "The same seed gives the same run; None draws one.",
        default=None,
        option=Option("--seed N", "run", "seed of all random streams"),
    )
