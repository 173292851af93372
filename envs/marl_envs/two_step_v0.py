"""The first choice decides which game is played: a safe one, or one that pays more if both agents risk it."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_envs.drawing import PALETTE, Canvas
from marl_envs.small_env import SmallEnv, Step

__all__ = ["TwoStepEnv", "parallel_env"]

SAFE, RISKY = 1, 2
PAYOFFS = {SAFE: ((7.0, 7.0), (7.0, 7.0)), RISKY: ((0.0, 1.0), (1.0, 8.0))}
"""What both agents are paid in the second step, by the action of ``agent_0`` and that of ``agent_1``."""


class TwoStepEnv(SmallEnv):
    """The two-step game of Rashid et al. (2018), arXiv:1803.11485.

    In the first step, the action of ``agent_0`` chooses the second game: 0 the safe one, in which all joint actions pay
    7, and 1 the risky one, which pays 8 if both agents choose 1, 1 if one of them does, and 0 if none does. Both agents
    are paid the same.

    With actions at random, the risky game pays (0 + 1 + 1 + 8) / 4 = 2.5 and the safe one 7. Agents that learn
    independently while they explore therefore choose the safe one. So does a sum of values, which cannot represent the
    payoffs of the risky game.

    Args:
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If the render mode is unknown.

    The observation of each agent is the state as a one-hot vector of 3: first step, safe game, risky game.
    """

    metadata = {"name": "two_step_v0", "render_modes": ["rgb_array"], "is_parallelizable": True, "render_fps": 2}
    optimal_return = 8.0
    safe_return = 7.0
    random_return = (7.0 + 2.5) / 2

    def __init__(self, *, render_mode: str | None = None) -> None:
        super().__init__(
            n_agents=2,
            observation_space=spaces.Box(0.0, 1.0, (3,), np.float32),
            n_actions=2,
            render_mode=render_mode,
        )
        self.state_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self._state = 0

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts an episode. ``seed`` has no effect, as nothing is random."""
        self._begin(seed, self.possible_agents)
        self._state = 0
        return self._observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Plays a step.

        Raises:
            RuntimeError: If the episode is over, or if ``reset`` was never called.
            ValueError: If an agent has no action, or an action outside its action space.
        """
        _, choices = self._choices(actions)
        first, second = (choices[agent] for agent in self.possible_agents)
        is_over = self._state != 0
        reward = PAYOFFS[self._state][first][second] if is_over else 0.0
        if not is_over:
            self._state = RISKY if first else SAFE
        agents = self.agents
        if is_over:
            self.agents = []
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in agents}
        ends = dict.fromkeys(agents, is_over), dict.fromkeys(agents, False)
        return self._observations(), dict.fromkeys(agents, reward), *ends, infos

    def state(self) -> np.ndarray:
        """Returns ``[3]`` float32, what each agent observes."""
        return np.eye(3, dtype=np.float32)[self._state]

    def _observations(self) -> dict[str, np.ndarray]:
        return {agent: self.state() for agent in self.possible_agents}

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns ``[60, 160, 3]`` uint8: a disc for each state, of which the large one is the current one."""
        if not self._draws():
            return None
        canvas = Canvas(60, 160)
        for state in range(3):
            canvas.disc(30 + 50 * state, 30, 20 if state == self._state else 8, PALETTE[state])
        return canvas.pixels


def parallel_env(*, render_mode: str | None = None) -> TwoStepEnv:
    """Returns the environment, under the name that PettingZoo's modules use; see ``TwoStepEnv``."""
    return TwoStepEnv(render_mode=render_mode)
