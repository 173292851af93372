"""Chooses the VectorEnv that fits a kind of environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_connectors.environments.adapters.batched import is_batched
from marl_connectors.environments.adapters.gymnasium_vector import NEXT_STEP, GymnasiumBatch
from marl_connectors.environments.adapters.multi_agent_env import agents_wait
from marl_connectors.environments.vector.batched_vector_env import (
    BatchedVectorEnv,
    GymnasiumVectorEnv,
    NextStepVectorEnv,
)
from marl_connectors.environments.vector.turn_based_vector_env import TurnBasedVectorEnv
from marl_connectors.environments.vector.vector_env import VectorEnv


def vector_env_of(envs: Sequence[Any], **settings: Any) -> VectorEnv:
    """Returns the VectorEnv of the class that fits some environments.

    Args:
        envs: Environments of one kind, or a single natively batched one.
        **settings: The arguments of the class, such as ``seed``.
    """
    first = envs[0]
    if isinstance(first, GymnasiumBatch):
        has_reset_steps = first.autoreset_mode == NEXT_STEP and not first.resets_alone
        return (NextStepVectorEnv if has_reset_steps else GymnasiumVectorEnv)(first, **settings)
    if is_batched(first):
        return BatchedVectorEnv(first, **settings)
    return (TurnBasedVectorEnv if agents_wait(first) else VectorEnv)(envs, **settings)
