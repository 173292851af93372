"""An environment whose steps take almost no time, for measuring the overhead of a framework."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import logger, spaces
from pettingzoo import ParallelEnv

from marl_envs.arguments import check_render_mode
from marl_envs.drawing import BLUE, RED, WHITE

__all__ = ["NullEnv", "parallel_env"]

_CELL = 14
"""The width of a number in a picture, in pixels."""


class NullEnv(ParallelEnv[str, Any, Any]):
    """Agents observe noise that was drawn in advance, always get the reward ``0.5``, and are truncated together.

    A step with 8 agents takes well under 3 µs, nearly all of it for copying five small dicts. The arrays in these dicts
    are read-only and are used again every ``pool`` steps. Writing to an observation raises a ``ValueError``.

    Args:
        n_agents: The number of agents. They are called ``agent_0``, ``agent_1`` and so on.
        obs_dim: Observations are ``[obs_dim]`` float32 in [-10, 10].
        n_actions: Actions are integers in [0, ``n_actions``).
        ep_len: The number of steps after which all agents are truncated.
        pool: The number of different joint observations.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If one of the sizes is below 1, or the render mode is unknown.
    """

    metadata: dict[str, Any] = {
        "name": "null_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        n_agents: int = 8,
        obs_dim: int = 16,
        n_actions: int = 5,
        ep_len: int = 100,
        pool: int = 64,
        render_mode: str | None = None,
    ) -> None:
        sizes = {"n_agents": n_agents, "obs_dim": obs_dim, "n_actions": n_actions, "ep_len": ep_len, "pool": pool}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"null_v0: {name} must be at least 1, but is {size}. Pass a positive integer.")
        check_render_mode("null_v0", render_mode)
        self.render_mode = render_mode
        self.ep_len = ep_len
        self.possible_agents = [f"agent_{i}" for i in range(n_agents)]
        self.agents: list[str] = []
        self.observation_spaces = {a: spaces.Box(-10.0, 10.0, (obs_dim,), np.float32) for a in self.possible_agents}
        self.action_spaces = {a: spaces.Discrete(n_actions) for a in self.possible_agents}

        noise = np.random.default_rng(0).standard_normal((pool, n_agents, obs_dim)).astype(np.float32).clip(-10.0, 10.0)
        noise.flags.writeable = False
        self._noise = noise
        self._observations = [dict(zip(self.possible_agents, joint, strict=True)) for joint in noise]
        self._rewards = dict.fromkeys(self.possible_agents, 0.5)
        self._no = dict.fromkeys(self.possible_agents, False)
        self._yes = dict.fromkeys(self.possible_agents, True)
        self._infos: dict[str, dict[str, Any]] = {a: {} for a in self.possible_agents}
        self._index = 0
        self._t = 0

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts an episode. ``seed`` selects the first joint observation; without a seed, the next one is used."""
        if seed is not None:
            self._index = seed % len(self._observations)
        self._t = 0
        self.agents = self.possible_agents[:]
        return self._observations[self._index].copy(), self._infos.copy()

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Plays a step and ignores ``actions``. It only copies five dicts, because it must be fast."""
        self._t += 1
        self._index = index = (self._index + 1) % len(self._observations)
        truncations = self._no
        if self._t >= self.ep_len:
            self.agents = []
            truncations = self._yes
        return (
            self._observations[index].copy(),
            self._rewards.copy(),
            self._no.copy(),
            truncations.copy(),
            self._infos.copy(),
        )

    def state(self) -> np.ndarray:
        """Returns ``[n_agents, obs_dim]`` float32: the current joint observation."""
        return self._noise[self._index]

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns ``[height, width, 3]`` uint8: a row of observed numbers for each agent, negative ones in red."""
        if self.render_mode is None:
            logger.warn("null_v0: render() draws nothing, because render_mode is None. Pass 'rgb_array'.")
            return None
        seen = self.state()[..., None] / 3.0
        strength = np.minimum(np.abs(seen), 1.0)
        colours = (1.0 - strength) * np.array(WHITE) + strength * np.where(seen > 0, BLUE, RED)
        return np.rint(colours).astype(np.uint8).repeat(_CELL, axis=0).repeat(_CELL, axis=1)

    def close(self) -> None:
        """Does nothing, because there are no resources to free."""


def parallel_env(
    *,
    n_agents: int = 8,
    obs_dim: int = 16,
    n_actions: int = 5,
    ep_len: int = 100,
    pool: int = 64,
    render_mode: str | None = None,
) -> NullEnv:
    """Returns the environment, under the name that PettingZoo's modules use; see ``NullEnv`` for the arguments."""
    return NullEnv(
        n_agents=n_agents, obs_dim=obs_dim, n_actions=n_actions, ep_len=ep_len, pool=pool, render_mode=render_mode
    )
