"""How many worker processes a run has where its settings leave that open."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from marl_connectors.callbacks import CALLBACK_NAMES, Callbacks
from marl_connectors.environments.env_setup import EnvSetup
from marl_connectors.environments.env_worker import EnvFactory
from marl_connectors.environments.worker_count import auto_num_workers

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm_config import AlgorithmConfig


def auto_env_workers(config: AlgorithmConfig, setup: EnvSetup, make_env: EnvFactory, num_envs: int) -> int:
    """As many as are worth it; none where somebody, or a callback, wants to see the environments."""
    if config.render_env or looks_at_environments(config):
        return 0
    return auto_num_workers(setup, make_env, num_envs)


def looks_at_environments(config: AlgorithmConfig) -> bool:
    """Whether a callback of the user's gets environments, which are out of its reach in worker processes."""
    told = (name for name in CALLBACK_NAMES if "env" in inspect.signature(getattr(Callbacks, name)).parameters)
    return config.make_callbacks().wants(*told)
