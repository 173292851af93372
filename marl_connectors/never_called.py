"""Methods that RLlib calls and this library does not: a subclass that defines one of them would be silently ignored."""

from __future__ import annotations

from typing import Any, Final

from marl_connectors.errors import ConfigError

_LIBRARY: Final = __name__.partition(".")[0]
_ITERATION = (
    "train() samples and updates by itself. A Learner, callbacks and connector pieces change what an iteration does; "
    "for a loop of your own, call algo.env_runner.sample(...) and algo.learner_group.update(episodes=...)."
)
_PARTS = "A component is saved by what its get_state returns, and made again with the arguments of its constructor."
_CHECKPOINT = {
    _PARTS: "get_checkpointable_components get_ctor_args_and_kwargs get_metadata _get_subcomponents",
}
_STATE = (
    "Checkpoints are restored in one step that can be undone. Learners, modules and connector pieces have a state of "
    "their own (get_state and set_state), which checkpoints include."
)
_OPTIMIZERS = "Override configure_optimizers_for_module, which is called for each module."
_GRADIENTS = "Override compute_loss_for_module or postprocess_gradients_for_module."
_RUNNER = "Callbacks and connector pieces change what env runners do."
_EPISODE = "Override on_episode_created, on_episode_step or on_episode_end."

_BY_ADVICE: Final[dict[str, dict[str, str]]] = {
    "Algorithm": {
        _ITERATION: "training_step _training_step_new_api_stack step _run_one_training_iteration "
        "_run_one_training_iteration_and_evaluation_in_parallel",
        "Everything is built in __init__(config, env), before on_algorithm_init of the callbacks.": "setup",
        "Override evaluate.": "_before_evaluate _run_one_evaluation _evaluate_on_local_env_runner "
        "_evaluate_with_custom_eval_function",
        "Override evaluate_offline.": "_run_one_offline_evaluation",
        "Add to the result in on_train_result of the callbacks.": "_compile_iteration_results log_result "
        "get_auto_filled_metrics _set_up_metrics",
        "Override stop.": "cleanup",
        "Override validate of the config.": "validate_env",
        "Override save_to_path.": "save_checkpoint",
        "Override restore_from_path.": "load_checkpoint",
        "Build a new algorithm for other settings.": "reset_config",
        ".env_runners(...) and .learners(...) say what Ray reserves.": "default_resource_request",
        _STATE: "set_state",
        **_CHECKPOINT,
    },
    "AlgorithmConfig": {
        "Override get_default_rl_module_class, or set .rl_module(rl_module_spec=...).": "get_default_rl_module_spec "
        "get_multi_rl_module_spec get_rl_module_spec",
        "Set .rl_module(model_config=...) in __init__.": "_model_config_auto_includes",
        "Override default_learner_pieces, or set .learners(learner_connector=...).": "build_learner_connector",
        "Set .env_runners(env_to_module_connector=...).": "build_env_to_module_connector",
        "Set .env_runners(module_to_env_connector=...).": "build_module_to_env_connector",
        "Override get_default_learner_class.": "build_learner build_learner_group",
        "Override get_evaluation_config.": "get_evaluation_config_object",
        "Set .env_runners(rollout_fragment_length=...).": "get_rollout_fragment_length",
        "Set .multi_agent(policies=..., policy_mapping_fn=...).": "get_multi_agent_setup",
        "Override validate.": "validate_train_batch_size_vs_rollout_fragment_length _validate_env_runner_settings "
        "_validate_evaluation_settings _validate_multi_agent_settings _validate_offline_settings "
        "_validate_resources_settings",
        "Checkpoints hold the settings that are declared in the class.": "get_state from_state from_dict serialize",
    },
    "Learner": {
        _GRADIENTS: "compute_losses compute_gradients apply_gradients postprocess_gradients "
        "_uncompiled_update _get_clip_function _get_global_norm_function",
        _OPTIMIZERS: "configure_optimizers filter_param_dict_for_optimizer get_param_ref _get_optimizer_lr "
        "_set_optimizer_lr",
        "Freeze parameters with requires_grad_(False), or override configure_optimizers_for_module.": "get_parameters",
        "Override update.": "update_from_batch",
        "Connector pieces make train batches.": "_make_batch_if_necessary _convert_batch_type "
        "_create_iterator_if_necessary",
        "Modules are made by their specs, before the learner.": "_make_module",
        "Override build, and look at self.module there.": "rl_module_required_apis rl_module_is_compatible",
        "Override after_gradient_based_update.": "_update_module_kl_coeff _log_steps_trained_metrics",
    },
    "EnvRunner": {
        "Set .environment(...).": "make_env",
        "Set .rl_module(...).": "make_module",
        _RUNNER: "_reset_envs _reset_envs_and_episodes _try_env_reset _try_env_step assert_healthy ping "
        "sample_get_state_and_metrics",
        _EPISODE: "_new_episode _make_on_episode_callback _log_episode_metrics _increase_sampled_metrics",
        **_CHECKPOINT,
    },
    "Callbacks": {
        "Override on_environment_created, which env_index tells of replaced sub-environments.": (
            "on_sub_environment_created"
        ),
        "Override on_env_runners_recreated.": "on_workers_recreated on_offline_eval_runners_recreated",
        "Override evaluate_offline of the algorithm.": "on_evaluate_offline_start on_evaluate_offline_end",
        "Override on_sample_end, or write a learner connector piece.": "on_postprocess_trajectory",
        "Write a learner connector piece.": "on_learn_on_batch",
        "Override setup of the RLModule.": "on_create_policy",
    },
    "Checkpointable": _CHECKPOINT,
}
NEVER_CALLED: Final[dict[str, dict[str, str]]] = {
    base: {name: advice for advice, names in by_advice.items() for name in names.split()}
    for base, by_advice in _BY_ADVICE.items()
}
"""By base class: the names of methods that RLlib calls and this library does not, with what to do in their place."""


class RefusesIgnoredMethods:
    """A base of classes that users derive from, which refuses what would be ignored when a subclass is created."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raises a ConfigError for a method of ``NEVER_CALLED`` that a subclass or a mixin of it defines."""
        super().__init_subclass__(**kwargs)
        tables = [NEVER_CALLED[base.__name__] for base in cls.__mro__ if base.__name__ in NEVER_CALLED]
        users = [own for own in cls.__mro__ if own.__module__.partition(".")[0] != _LIBRARY]
        for name, advice in ((name, advice) for table in tables for name, advice in table.items()):
            if any(name in vars(own) for own in users):
                raise ConfigError(f"{cls.__name__}.{name}: RLlib's method, which is never called here. {advice}")
