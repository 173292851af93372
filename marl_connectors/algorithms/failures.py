"""Whether and how a run goes on after an environment has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config_checks import require
from marl_connectors.environments.env_failures import EnvRestarts

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm_config import AlgorithmConfig


def check_failures(config: AlgorithmConfig) -> None:
    """Checks the settings for worker processes and failures.

    Raises:
        ConfigError: For the first one that is of the wrong kind.
    """
    workers, tolerance = config.num_env_workers, config.num_consecutive_env_failures_tolerance
    require(config, "num_env_workers", workers == "auto" or _is_count(workers), "a whole number >= 0, or 'auto'")
    require(config, "num_consecutive_env_failures_tolerance", _is_count(tolerance), "a whole number >= 0")
    limit = config.sample_timeout_s
    is_time = isinstance(limit, (int, float)) and not isinstance(limit, bool) and limit > 0
    require(config, "sample_timeout_s", limit is None or is_time, "a number of seconds > 0, or None")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def env_restarts(config: AlgorithmConfig, make_env: Callable[[], Any]) -> EnvRestarts | None:
    """How environments that failed are replaced; None if a failure stops the run."""
    if not config.restart_failed_sub_environments:
        return None
    return EnvRestarts(make_env, config.num_consecutive_env_failures_tolerance, config.observation_space)
