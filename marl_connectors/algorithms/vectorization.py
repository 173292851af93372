"""How the copies of an environment are put together, and which of them are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.env_workers import auto_env_workers
from marl_connectors.environments.vector.worker_count import num_cores
from marl_connectors.errors import ConfigError

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm_config import AlgorithmConfig
    from marl_connectors.environments.spec import EnvSpec

ASYNC, VECTOR_ENTRY_POINT = "async", "vector_entry_point"


def num_env_workers(config: AlgorithmConfig, setup: EnvSpec, num_envs: int) -> Any:
    """Over how many processes the copies are spread.

    Raises:
        ConfigError: If processes are wanted for an environment that holds all copies itself.
    """
    if config.num_env_workers not in (0, "auto"):
        return config.num_env_workers
    if config.gym_env_vectorize_mode != ASYNC:
        return auto_env_workers(config, setup, num_envs) if config.num_env_workers else 0
    if setup.is_batched:
        raise ConfigError(
            f"gym_env_vectorize_mode='async': {setup.name} holds all copies itself and steps them in one call: there "
            f"is nothing to spread over processes. Use 'sync'; a gymnasium.vector.AsyncVectorEnv brings its own."
        )
    return min(num_envs, num_cores())


def human_render_mode(config: AlgorithmConfig, setup: EnvSpec) -> str | None:
    """``"human"`` if the first copy is to draw itself.

    Raises:
        ConfigError: If it cannot.
    """
    if not config.render_env:
        return None
    if setup.is_batched:
        raise ConfigError(
            f"render_env=True: {setup.name} holds all copies itself, and one cannot be drawn alone. Look at single "
            f"episodes with algo.render_episode(), or give a single environment."
        )
    modes = (getattr(setup.sample_env, "metadata", None) or {}).get("render_modes") or ()
    if "human" not in modes:
        raise ConfigError(
            f"render_env=True: {setup.name} does not open windows; its metadata name the render modes "
            f"{', '.join(map(repr, modes)) or '(none)'}, without 'human'. Leave render_env out, or look at single "
            f"episodes with algo.render_episode()."
        )
    return "human"
