"""Whether settings are of the right kind, and go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from marl_connectors.environments.wrappers import checked_wrappers
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.ops.schedule import check_schedule

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm_config import AlgorithmConfig


def check_settings(config: AlgorithmConfig) -> None:
    """Checks the settings that every algorithm has.

    Raises:
        ConfigError: For the first one that is of the wrong kind, or at odds with the others.
    """
    if config.env is None:
        raise ConfigError(f"{type(config).__name__}: no environment. Call .environment(env=...).")
    checked_wrappers(config.wrappers)
    for name in ("num_env_runners", "num_learners"):
        if getattr(config, name) != 0:
            raise ConfigError(
                f"{type(config).__name__}: {name}={getattr(config, name)!r}, but this version samples and learns in "
                f"one process. Set {name}=0, and more num_envs_per_env_runner for larger batches."
            )
    for name in ("num_envs_per_env_runner", "train_batch_size_per_learner", "num_epochs", "evaluation_duration"):
        require(config, name, _is_count(getattr(config, name)) and getattr(config, name) >= 1, "a whole number >= 1")
    for name in ("minibatch_size", "evaluation_interval"):
        value = getattr(config, name)
        require(config, name, value is None or (_is_count(value) and value >= 1), "a whole number >= 1, or None")
    require(config, "episode_lookback_horizon", _is_count(config.episode_lookback_horizon), "a whole number >= 0")
    fragment = config.rollout_fragment_length
    require(
        config,
        "rollout_fragment_length",
        fragment == "auto" or (_is_count(fragment) and fragment),
        "'auto' or a whole number >= 1",
    )
    require(config, "gamma", _is_number(config.gamma) and 0 <= config.gamma <= 1, "a number in [0, 1]")
    require(
        config,
        "grad_clip",
        config.grad_clip is None or (_is_number(config.grad_clip) and config.grad_clip > 0),
        "a number > 0, or None",
    )
    clip = config.clip_rewards
    require(
        config,
        "clip_rewards",
        clip is None or clip is False or clip is True or (_is_number(clip) and clip > 0),
        "True, a number > 0, or None",
    )
    require(config, "seed", config.seed is None or _is_count(config.seed), "a whole number >= 0, or None")
    for name, choices in (
        ("grad_clip_by", ("global_norm", "norm", "value")),
        ("batch_mode", ("truncate_episodes", "complete_episodes")),
        ("count_steps_by", ("env_steps", "agent_steps")),
    ):
        if getattr(config, name) not in choices:
            hint = did_you_mean(getattr(config, name), choices)
            raise ConfigError(f"{type(config).__name__}: {name}={getattr(config, name)!r}. {hint}")
    for name, default in vars(type(config)()).items():
        if isinstance(default, bool) and not name.startswith("_"):
            require(config, name, isinstance(getattr(config, name), bool), "True or False")
    require(config, "autocast_dtype", config.autocast_dtype in (None, "bfloat16"), "'bfloat16' or None")
    check_schedule(f"{type(config).__name__}: lr", config.lr)
    if config.num_gpus_per_learner and not torch.cuda.is_available():
        raise ConfigError(
            f"{type(config).__name__}: num_gpus_per_learner={config.num_gpus_per_learner}, but torch sees no GPU."
        )


def require(config: AlgorithmConfig, name: str, holds: object, expected: str) -> None:
    """Raises ConfigError, with the setting's name and value and what was ``expected``, unless something ``holds``."""
    if not holds:
        raise ConfigError(f"{type(config).__name__}: {name} must be {expected}, not {getattr(config, name)!r}.")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
