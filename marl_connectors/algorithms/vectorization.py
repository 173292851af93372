"""Chooses the processes in which the sub-environments of a run are stepped, and which of them are rendered."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Collection
from typing import Any

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.callbacks import CALLBACK_NAMES, Callbacks
from marl_connectors.env_runners.run_metrics import EpisodeSummary
from marl_connectors.environments.registry.spec import EnvSpec
from marl_connectors.environments.registry.worker_count import auto_num_workers, num_cores
from marl_connectors.errors import ConfigError

ASYNC, VECTOR_ENTRY_POINT = "async", "vector_entry_point"
LEAST_EPISODES_S = 5.0
"""The seconds that an evaluation has to take in this process before starting workers for it is worth the cost."""
UNKNOWN_LENGTH = 100
"""The assumed length of an episode in env steps before any has ended."""


def num_env_workers(config: AlgorithmConfig, setup: EnvSpec, num_envs: int) -> Any:
    """Returns the number of processes over which the sub-environments are spread.

    Raises:
        ConfigError: If processes are requested for an environment that holds all sub-environments itself.
    """
    if config.num_env_workers not in (0, "auto"):
        return config.num_env_workers
    if config.gym_env_vectorize_mode != ASYNC:
        return auto_env_workers(config, setup, num_envs) if config.num_env_workers else 0
    if setup.is_batched:
        raise ConfigError(
            f"gym_env_vectorize_mode='async': {setup.name} holds all sub-environments itself and steps them in one "
            f"call: there is nothing to spread over processes. Use 'sync'; a gymnasium.vector.AsyncVectorEnv brings "
            f"its own."
        )
    return min(num_envs, num_cores())


def auto_env_workers(config: AlgorithmConfig, setup: EnvSpec, num_envs: int) -> int:
    """Returns the number of workers that is worth its cost; 0 if environments are shown or passed to callbacks."""
    is_shown = config.render_env or getattr(setup.user_env, "render_mode", None) == "human"
    if is_shown or looks_at_environments(config):
        return 0
    return auto_num_workers(setup, num_envs, config.sample_timeout_s)


def looks_at_environments(config: AlgorithmConfig) -> bool:
    """Whether a user's callback gets environments. It could not reach them in worker processes."""
    names = (name for name in CALLBACK_NAMES if "env" in inspect.signature(getattr(Callbacks, name)).parameters)
    return config.make_callbacks().wants(*names)


def are_worth_workers(setup: EnvSpec, num_episodes: int, recent: Collection[EpisodeSummary]) -> bool:
    """Whether a number of episodes takes so long that workers for them may be worth the cost.

    Args:
        setup: The environment, which knows how long a step takes.
        num_episodes: The number of episodes.
        recent: The newest episodes. The length of the others is estimated from theirs.
    """
    length = statistics.fmean(summary.length for summary in recent) if recent else UNKNOWN_LENGTH
    return (setup.step_s or 0.0) * length * num_episodes >= LEAST_EPISODES_S


def human_render_mode(config: AlgorithmConfig, setup: EnvSpec) -> str | None:
    """Returns ``"human"`` if the first sub-environment opens a window; else None.

    Raises:
        ConfigError: If a window is requested and the environment cannot open one.
    """
    if not config.render_env:
        return None
    if setup.is_batched:
        raise ConfigError(
            f"render_env=True: {setup.name} holds all sub-environments itself, and one cannot be drawn alone. Look at "
            f"single episodes with algo.render_episode(), or use a single environment."
        )
    modes = (getattr(setup.sample_env, "metadata", None) or {}).get("render_modes") or ()
    if "human" not in modes:
        raise ConfigError(
            f"render_env=True: {setup.name} does not open windows; its metadata name the render modes "
            f"{', '.join(map(repr, modes)) or '(none)'}, without 'human'. Leave render_env out, or look at single "
            f"episodes with algo.render_episode()."
        )
    return "human"
