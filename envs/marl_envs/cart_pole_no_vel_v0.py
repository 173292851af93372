"""Gymnasium's CartPole without the velocities, which a policy has to remember positions to find."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

__all__ = ["CartPoleNoVelEnv", "env"]


class CartPoleNoVelEnv(gymnasium.ObservationWrapper):
    """``CartPole-v1`` whose observations are only the cart's position and the pole's angle.

    One observation does not say in which direction the cart and the pole move. So a policy without a memory balances
    the pole for some 50 steps only, and a recurrent one for all 500. The task is known as ``CartPoleNoVel`` in the
    benchmarks of RL Baselines3 Zoo.

    Observations are float32 arrays of shape ``[2]``: the position in the track's units and the angle in radians. The
    actions and rewards are those of ``CartPole-v1``.

    Args:
        **kwargs: The settings of ``CartPole-v1``, such as ``render_mode``.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(gymnasium.make("CartPole-v1", disable_env_checker=True, **kwargs))
        whole = self.env.observation_space
        assert isinstance(whole, spaces.Box)
        self.observation_space = spaces.Box(whole.low[[0, 2]], whole.high[[0, 2]], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


def env(**kwargs: Any) -> CartPoleNoVelEnv:
    """Makes the environment. For the settings see ``CartPoleNoVelEnv``."""
    return CartPoleNoVelEnv(**kwargs)
