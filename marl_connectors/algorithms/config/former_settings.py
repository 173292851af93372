"""Settings of RLlib and others that have another name or place here, or that do not exist, for messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from marl_connectors.errors import ConfigError, did_you_mean

_NUM_RUNNERS = ".env_runners(num_env_runners=...)"
_RESTART = ".fault_tolerance(restart_failed_env_runners=...)"
_TOLERANCE = ".fault_tolerance(num_consecutive_env_failures_tolerance=...)"

RENAMED: Final[dict[str, str]] = {
    "algorithm_config_overrides_per_module": ".rl_module(algorithm_config_overrides_per_module=...)",
    "batch_size": ".training(train_batch_size_per_learner=...) for train batches, or .training(minibatch_size=...) for "
    "minibatches",
    "buffer_size": ".training(replay_buffer_config={'capacity': ...})",
    "clip_range": ".training(clip_param=...)",
    "ent_coef": ".training(entropy_coeff=...)",
    "entropy_coeff_schedule": ".training(entropy_coeff=[[env_step, value], ...])",
    "evaluation_num_workers": ".evaluation(evaluation_num_env_runners=...)",
    "evaluation_sample_timeout_s": ".env_runners(sample_timeout_s=...)",
    "explore": ".env_runners(explore=...)",
    "exploration_config": ".env_runners(explore=...)",
    "gae_lambda": ".training(lambda_=...)",
    "horizon": ".environment(wrappers=...), with a wrapper that ends episodes",
    "hiddens": ".rl_module(model_config={'head_fcnet_hiddens': ...})",
    "ignore_worker_failures": ".fault_tolerance(ignore_env_runner_failures=...)",
    "lambda": ".training(lambda_=...)",
    "learning_rate": ".training(lr=...)",
    "learning_starts": ".training(num_steps_sampled_before_learning_starts=...)",
    "lr_schedule": ".training(lr=[[env_step, value], ...])",
    "max_grad_norm": ".training(grad_clip=...)",
    "max_num_worker_restarts": ".fault_tolerance(max_num_env_runner_restarts=...)",
    "model": ".rl_module(model_config=...), with a dict or DefaultModelConfig(...)",
    "n_envs": ".env_runners(num_envs_per_env_runner=...)",
    "n_epochs": ".training(num_epochs=...)",
    "num_consecutive_env_runner_failures_tolerance": _TOLERANCE,
    "num_consecutive_worker_failures_tolerance": _TOLERANCE,
    "num_cpus_per_learner_worker": ".learners(num_cpus_per_learner=...)",
    "num_cpus_per_worker": ".env_runners(num_cpus_per_env_runner=...)",
    "num_envs_per_worker": ".env_runners(num_envs_per_env_runner=...)",
    "num_gpus": ".learners(num_gpus_per_learner=...)",
    "num_gpus_per_learner_worker": ".learners(num_gpus_per_learner=...)",
    "num_gpus_per_worker": ".env_runners(num_gpus_per_env_runner=...)",
    "num_learner_workers": ".learners(num_learners=...)",
    "num_rollout_workers": _NUM_RUNNERS,
    "num_sgd_iter": ".training(num_epochs=...)",
    "num_workers": _NUM_RUNNERS,
    "observation_filter": ".env_runners(env_to_module_connector=lambda env: MeanStdFilter())",
    "optimization": ".training(actor_lr=..., critic_lr=..., alpha_lr=...)",
    "optimization_config": ".training(actor_lr=..., critic_lr=..., alpha_lr=...)",
    "optimizer": "a Learner with configure_optimizers_for_module, and .learners(learner_class=...)",
    "policy_model_config": ".rl_module(model_config=...)",
    "preprocessor_pref": ".env_runners(env_to_module_connector=...), with pieces such as FlattenObservations",
    "prioritized_replay_alpha": ".training(replay_buffer_config={'alpha': ...})",
    "prioritized_replay_beta": ".training(replay_buffer_config={'beta': ...})",
    "q_model_config": ".rl_module(model_config=...)",
    "recreate_failed_env_runners": _RESTART,
    "recreate_failed_workers": _RESTART,
    "remote_worker_envs": ".env_runners(num_env_workers=...)",
    "sgd_minibatch_size": ".training(minibatch_size=...)",
    "train_batch_size": ".training(train_batch_size_per_learner=...), the steps of each learner",
    "vf_coef": ".training(vf_loss_coeff=...)",
    "vf_share_layers": ".rl_module(model_config={'vf_share_layers': ...})",
    "worker_health_probe_timeout_s": ".fault_tolerance(env_runner_health_probe_timeout_s=...)",
    "worker_restore_timeout_s": ".fault_tolerance(env_runner_restore_timeout_s=...)",
}
"""Settings of RLlib, and frequent ones of Stable-Baselines3, that have another name or section here: what to use."""

_ONE_BATCH = "An iteration has one train batch, so leave it out."

_FILES = "Episodes are in local files, so leave it out."
_NO_NOISE = "There are no noisy networks, so leave it out; epsilon says how DQN explores."
_ONE_VALUE = "There are no distributional Q-networks, so leave it out."
_PLAIN_COLUMNS = "Columns are not compressed, so leave it out."
_READER = "EpisodeReader reads the files without Ray Data, so leave it out."
_RECORDED = "Recorded episodes say whose actions they hold, so leave it out; from_parquet takes it for other tables."
_ROWS = "Files hold episodes. from_parquet reads tables of steps."

NOT_HERE: Final[dict[str, str]] = {
    "adam_epsilon": "Adam's epsilon is 1e-8. A Learner that overrides configure_optimizers_for_module registers an "
    "optimizer with another one (docs/learner.md); epsilon is the probability of random actions.",
    "compress_observations": "Observations are not compressed, so leave it out.",
    "enable_connectors": "Connector pieces are always on, so leave it out.",
    "env_runner_cls": "Callbacks and connector pieces change what env runners do, so leave it out.",
    "env_task_fn": "Give the environment get_task and set_task instead (docs/checkpoints.md).",
    "evaluation_duration_unit": "An evaluation has evaluation_duration episodes, so leave it out.",
    "is_atari": "Use wrappers or connector pieces for images (docs/wrappers.md).",
    "log_level": 'Use logging.getLogger("marl_connectors").setLevel(...).',
    "min_sample_timesteps_per_iteration": _ONE_BATCH,
    "min_time_s_per_iteration": _ONE_BATCH,
    "min_train_timesteps_per_iteration": _ONE_BATCH,
    "actions_in_input_normalized": _RECORDED,
    "dataset_num_iters_per_learner": _ONE_BATCH,
    "ignore_final_observation": "Recorded episodes have their last observations, so leave it out.",
    "input_compress_columns": _PLAIN_COLUMNS,
    "input_config": "Pass paths in input_ instead.",
    "input_filesystem": _FILES,
    "input_filesystem_kwargs": _FILES,
    "input_read_batch_size": "train_batch_size_per_learner is the size of samples, so leave it out.",
    "input_read_method": _READER,
    "input_read_method_kwargs": _READER,
    "input_read_sample_batches": _ROWS,
    "input_read_schema": _ROWS,
    "iter_batches_kwargs": _READER,
    "map_batches_kwargs": _READER,
    "materialize_data": _READER,
    "materialize_mapped_data": _READER,
    "noisy": _NO_NOISE,
    "num_atoms": _ONE_VALUE,
    "observation_fn": "Use an env-to-module connector piece instead.",
    "offline_sampling": "A run with input_ reads recorded episodes, and one without it samples. Leave it out.",
    "output_compress_columns": _PLAIN_COLUMNS,
    "output_config": "Pass a folder in output instead.",
    "output_filesystem": _FILES,
    "output_filesystem_kwargs": _FILES,
    "output_write_method": _FILES,
    "output_write_method_kwargs": _FILES,
    "output_write_remaining_data": "All episodes are written at once, so leave it out.",
    "policy_map_capacity": "All modules stay in memory, so leave it out.",
    "postprocess_inputs": "Learner connector pieces prepare train batches, so leave it out.",
    "prelearner_buffer_class": _READER,
    "prelearner_buffer_kwargs": _READER,
    "prelearner_class": "The learner pipeline prepares train batches, so leave it out.",
    "prelearner_module_synch_period": "The learner pipeline prepares train batches, so leave it out.",
    "sigma0": _NO_NOISE,
    "shuffle_buffer_size": "input_order='shuffled' shuffles all episodes, so leave it out.",
    "v_max": _ONE_VALUE,
    "v_min": _ONE_VALUE,
    "validate_env_runners_after_construction": "Env runners are always checked, so leave it out.",
}
"""Settings of RLlib that do not exist here, and what to do."""

SECTIONS: Final[dict[str, str]] = {
    "api_stack": "There is one API stack here, which is RLlib's new one. Leave the section out.",
    "checkpointing": "Checkpoints have no settings. Leave the section out.",
    "experimental": "There are no experimental settings. Leave the section out.",
    "python_environment": "There are no settings of Ray's runtime environments. Leave the section out.",
    "rollouts": "Its name is .env_runners(...): num_rollout_workers is num_env_runners there, and num_envs_per_worker "
    "is num_envs_per_env_runner.",
}
"""RLlib's sections that do not exist here, and what to do."""


_ACTS = "Use load_policy(checkpoint), and policy(observation, agent_id) or policy.actions(observations)."
_WEIGHTS = "Use .get_module(module_id), and get_state() and set_state(state) of it."
METHODS: Final[dict[str, str]] = {
    "add_policy": "Use .add_module(module_id, spec).",
    "cleanup": "Use .stop().",
    "compute_action": _ACTS,
    "compute_actions": _ACTS,
    "compute_single_action": _ACTS,
    "evaluation_workers": "Use .eval_env_runner_group.",
    "export_policy_checkpoint": "Use .get_module(module_id).save_to_path(path).",
    "export_policy_model": "Use load_policy(checkpoint).export_onnx(folder).",
    "get_policy": "Use .get_module(module_id).",
    "get_weights": _WEIGHTS,
    "load_checkpoint": "Use .restore_from_path(path).",
    "logdir": "Use .fit(folder=...), which writes metrics and checkpoints.",
    "remove_policy": "Use .remove_module(module_id).",
    "restore": "Use .restore_from_path(path).",
    "save": "Use .save_to_path(path).",
    "save_checkpoint": "Use .save_to_path(path).",
    "set_weights": _WEIGHTS,
    "step": "Use .train().",
    "training_iteration": "Use .iteration.",
    "training_step": "Use .train().",
    "workers": "Use .env_runner_group, or .env_runner for the one in this process.",
}
"""Attributes of RLlib's algorithms that do not exist here, and what to do."""


class UnknownSectionError(ConfigError, AttributeError):
    """A config has no attribute, setting or section of this name."""


def hint_at(name: str, known: Iterable[str]) -> str:
    """Returns a closing sentence about a setting that is not known where it was given.

    >>> hint_at("num_sgd_iter", ["num_epochs", "gamma"])
    'Use .training(num_epochs=...).'
    >>> hint_at("gama", ["num_epochs", "gamma"])
    "Did you mean 'gamma'?"

    Args:
        name: The unknown name.
        known: The settings that are known there.
    """
    if name in RENAMED:
        return f"Use {RENAMED[name]}."
    return NOT_HERE[name] if name in NOT_HERE else did_you_mean(name, known)


def unknown_algorithm_attribute(algorithm: object, name: str) -> AttributeError:
    """Returns the error for an attribute that an algorithm does not have."""
    who, hint = type(algorithm).__name__, f". {METHODS[name]}" if name in METHODS else ""
    return AttributeError(f"{who!r} object has no attribute {name!r}{hint}", name=name, obj=algorithm)


def unknown_attribute(config: object, name: str) -> UnknownSectionError:
    """Returns the error for an attribute that a config does not have."""
    who = type(config).__name__
    if name in SECTIONS:
        return UnknownSectionError(f"{who}: there is no section .{name}(...). {SECTIONS[name]}")
    known = [known for known in dir(config) if not known.startswith("_")]
    return UnknownSectionError(f"{who}: there is no {name!r}. {hint_at(name, known)}")
