"""How many worker processes a run has where its settings leave that open."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Collection
from typing import TYPE_CHECKING

from marl_connectors.callbacks import CALLBACK_NAMES, Callbacks
from marl_connectors.env_runners.episode_metrics import EpisodeTally
from marl_connectors.environments.spec import EnvSpec
from marl_connectors.environments.vector.worker_count import auto_num_workers

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm_config import AlgorithmConfig


LEAST_EPISODES_S = 5.0
"""What an evaluation must take in this process, or starting workers for it costs more than they gain."""
UNKNOWN_LENGTH = 100
"""Env steps that an episode is taken to have before any has ended."""


def are_worth_workers(setup: EnvSpec, num_episodes: int, recent: Collection[EpisodeTally]) -> bool:
    """Whether playing so many episodes, and no more, may be worth workers of its own.

    Args:
        setup: Says what a step takes.
        num_episodes: How many.
        recent: The newest episodes, which are about as long.
    """
    length = statistics.fmean(tally.length for tally in recent) if recent else UNKNOWN_LENGTH
    return (setup.step_s or 0.0) * length * num_episodes >= LEAST_EPISODES_S


def auto_env_workers(config: AlgorithmConfig, setup: EnvSpec, num_envs: int) -> int:
    """As many as are worth it; none where somebody, or a callback, wants to see the environments."""
    is_shown = config.render_env or getattr(setup.user_env, "render_mode", None) == "human"
    if is_shown or looks_at_environments(config):
        return 0
    return auto_num_workers(setup, num_envs, config.sample_timeout_s)


def looks_at_environments(config: AlgorithmConfig) -> bool:
    """Whether a callback of the user's gets environments, which are out of its reach in worker processes."""
    told = (name for name in CALLBACK_NAMES if "env" in inspect.signature(getattr(Callbacks, name)).parameters)
    return config.make_callbacks().wants(*told)
