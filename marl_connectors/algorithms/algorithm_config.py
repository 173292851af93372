"""AlgorithmConfig: every setting of a run, in sections that chain."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import VectorizeMode

from marl_connectors.algorithms.callback_settings import CallbackSettings
from marl_connectors.algorithms.config_checks import check_overrides, check_settings, checked_evaluation, require
from marl_connectors.algorithms.failures import check_failures
from marl_connectors.algorithms.learning_sections import LearningSections
from marl_connectors.algorithms.section import UNSET, section
from marl_connectors.algorithms.vectorization import check_vectorization, vectorize_mode
from marl_connectors.environments.reset_options import checked_reset_options
from marl_connectors.environments.wrappers import EnvWrapper, checked_wrappers
from marl_connectors.errors import ConfigError
from marl_connectors.ops.schedule import Schedule
from marl_connectors.policy_mapping import SharedPolicy, policy_mapping
from marl_connectors.typing import ModuleID

if TYPE_CHECKING:
    from typing_extensions import Self

    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.learner.learner import Learner
    from marl_connectors.rl_module.multi_rl_module_spec import MultiRLModuleSpec
    from marl_connectors.rl_module.rl_module import RLModuleSpec


class AlgorithmConfig(LearningSections, CallbackSettings):
    """Settings that every algorithm has. Read them as attributes: ``config.gamma``.

    Sections chain, and an unknown setting is an error that names the closest known one::

        config = PPOConfig().environment("CartPole-v1").training(lr=3e-4).debugging(seed=1)
    """

    def __init__(self) -> None:
        super().__init__()
        # environment
        self.env: Any = None
        self.env_config: dict[str, Any] = {}
        self.reset_options: dict[str, Any] | None = None
        self.wrappers: list[EnvWrapper] = []
        self.observation_space: Any = None
        self.action_space: Any = None
        self.render_env = False
        self.clip_rewards: bool | float | None = None
        self.normalize_actions = True
        self.clip_actions = False
        self.disable_env_checking = False
        self.action_mask_key: str | None = "auto"
        # multi_agent
        self.policies: Any = None
        self.policy_mapping_fn: Callable[..., ModuleID] = SharedPolicy()
        self.policies_to_train: Collection[ModuleID] | Callable[..., bool] | None = None
        self.count_steps_by = "env_steps"
        # env_runners
        self.num_env_runners = 0
        self.num_envs_per_env_runner = 1
        self.gym_env_vectorize_mode = "sync"
        self.num_env_workers: int | str = "auto"
        self.double_buffering = True
        self.sample_timeout_s: float | None = 60.0
        self.env_to_module_connector: Callable[..., Any] | None = None
        self.module_to_env_connector: Callable[..., Any] | None = None
        self.add_default_connectors_to_env_to_module_pipeline = True
        self.add_default_connectors_to_module_to_env_pipeline = True
        self.episode_lookback_horizon = 1
        self.rollout_fragment_length: int | str = "auto"
        self.batch_mode = "truncate_episodes"
        self.explore = True
        # fault_tolerance
        self.restart_failed_sub_environments = False
        self.num_consecutive_env_failures_tolerance = 100
        # framework
        self.torch_compile_learner = False
        self.torch_compile_learner_dynamo_backend = "inductor"
        self.torch_compile_learner_dynamo_mode: str | None = None
        # learners
        self.num_learners = 0
        self.num_gpus_per_learner: int | float | str = "auto"
        self.learner_class: type[Learner] | None = None
        self.learner_connector: Callable[..., Any] | None = None
        self.add_default_connectors_to_learner_pipeline = True
        self.stack_modules = True
        self.autocast_dtype: str | None = None
        # rl_module
        self.model_config: Any = None
        self.rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None = None
        self.algorithm_config_overrides_per_module: dict[ModuleID, dict[str, Any]] = {}
        # training
        self.gamma = 0.99
        self.lr: Schedule = 0.001
        self.grad_clip: float | None = None
        self.grad_clip_by = "global_norm"
        self.train_batch_size_per_learner = 32
        self.num_epochs = 1
        self.minibatch_size: int | None = None
        self.shuffle_batch_per_epoch = False
        # evaluation, reporting, callbacks, debugging
        self.evaluation_interval: int | None = None
        self.evaluation_duration = 10
        self.evaluation_config: dict[str, Any] | None = None
        self.metrics_num_episodes_for_smoothing = 100
        self.seed: int | None = None

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
    ) -> dict[str, Any]:
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
            disable_env_checking: Skip the trial run of the environment, and let observations leave their space.
            action_mask_key: Under which key of observations or infos action masks are; puts ActionMasking first.
                ``"auto"`` for ``"action_mask"``, of those agents that have one by PettingZoo's convention; None (or
                False) to ignore masks.
        """
        instead: dict[str, Any] = {} if env_config is UNSET else {"env_config": dict(env_config or {})}
        if reset_options is not UNSET:
            instead["reset_options"] = checked_reset_options(reset_options)
        if wrappers is not UNSET:
            instead["wrappers"] = checked_wrappers(wrappers)
        if action_mask_key is False:
            instead["action_mask_key"] = None
        return instead

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
        instead: dict[str, Any] = {}
        if policy_mapping_fn is not UNSET:
            instead["policy_mapping_fn"] = policy_mapping(policy_mapping_fn)
        if isinstance(policies, str):
            instead.update(policies=None, policy_mapping_fn=policy_mapping(policies))
        return instead

    @section
    def env_runners(
        self,
        *,
        num_env_runners: int = UNSET,
        num_envs_per_env_runner: int = UNSET,
        gym_env_vectorize_mode: str | VectorizeMode = UNSET,
        num_env_workers: int | str = UNSET,
        double_buffering: bool = UNSET,
        sample_timeout_s: float | None = UNSET,
        env_to_module_connector: Callable[..., Any] | None = UNSET,
        module_to_env_connector: Callable[..., Any] | None = UNSET,
        add_default_connectors_to_env_to_module_pipeline: bool = UNSET,
        add_default_connectors_to_module_to_env_pipeline: bool = UNSET,
        episode_lookback_horizon: int = UNSET,
        rollout_fragment_length: int | str = UNSET,
        batch_mode: str = UNSET,
        explore: bool = UNSET,
    ) -> dict[str, Any]:
        """How episodes are collected.

        Args:
            num_env_runners: 0: environments are stepped in this process.
            num_envs_per_env_runner: Copies of the environment.
            gym_env_vectorize_mode: ``"sync"``: single copies, stepped wherever ``num_env_workers`` says. ``"async"``:
                in worker processes in any case. ``"vector_entry_point"``: the environment's maker gives them all, as a
                ``gymnasium.vector.VectorEnv``.
            num_env_workers: Processes over which the copies are spread; 0 for none, ``"auto"`` for as many as cores if
                steps are slow enough to be worth it, and nothing else can change by it.
            double_buffering: Let half of such processes step while actions are chosen for the other half, where nothing
                but the speed shows it.
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
        mode = gym_env_vectorize_mode
        return {} if mode is UNSET else {"gym_env_vectorize_mode": vectorize_mode(mode)}

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
        instead: dict[str, Any] = {}
        if model_config_dict is not UNSET:
            instead.update(model_config=model_config_dict, model_config_dict=UNSET)
        if algorithm_config_overrides_per_module is not UNSET:
            for overrides in algorithm_config_overrides_per_module.values():
                self._check_names(overrides)
            instead["algorithm_config_overrides_per_module"] = {
                module_id: dict(o) for module_id, o in algorithm_config_overrides_per_module.items()
            }
        return instead

    @section
    def evaluation(
        self,
        *,
        evaluation_interval: int | None = UNSET,
        evaluation_duration: int = UNSET,
        evaluation_config: Mapping[str, Any] | None = UNSET,
    ) -> dict[str, Any]:
        """When ``train()`` also evaluates, without exploration, and how.

        Args:
            evaluation_interval: Every so many iterations; None for never.
            evaluation_duration: Episodes of one evaluation.
            evaluation_config: Settings that are others in evaluations: ``policy_mapping_fn`` (to play against a fixed
                opponent, say), ``explore``, ``num_envs_per_env_runner``, ``num_env_workers``, ``callbacks_class``.
        """
        return {} if evaluation_config is UNSET else {"evaluation_config": checked_evaluation(evaluation_config)}

    @section
    def reporting(self, *, metrics_num_episodes_for_smoothing: int = UNSET) -> None:
        """Over how many of the newest episodes returns are averaged."""

    @section
    def exploration(self, *, explore: bool = UNSET) -> None:
        """Whether actions are sampled; the same setting as in ``env_runners``."""

    @section
    def debugging(self, *, seed: int | None = UNSET) -> None:
        """The run's seed. The same seed gives the same run; None draws one."""

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

    @property
    def device(self) -> torch.device:
        """Where modules and batches are, of runners too: the learner's modules are those that act."""
        wanted = self.num_gpus_per_learner
        return torch.device("cuda" if (torch.cuda.is_available() if wanted == "auto" else wanted) else "cpu")

    def validate(self) -> None:
        """Raises ConfigError for settings that are of the wrong kind, or at odds with one another."""
        check_settings(self)
        check_failures(self)
        check_vectorization(self)
        for module_id, overrides in self.algorithm_config_overrides_per_module.items():
            check_overrides(module_id, overrides, AlgorithmConfig().to_dict())
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

    def _require(self, name: str, holds: object, expected: str) -> None:
        require(self, name, holds, expected)
