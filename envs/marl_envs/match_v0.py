"""Agents must act on their own observations. This finds swapped agents, rows and actions."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from gymnasium import logger, spaces
from gymnasium.utils import seeding
from pettingzoo import ParallelEnv

from marl_envs.arguments import check_render_mode
from marl_envs.drawing import PALETTE, Canvas

__all__ = ["MatchEnv", "parallel_env"]

_SHOWN = 8
"""The number of steps in a picture."""


class MatchEnv(ParallelEnv[str, Any, Any]):
    """Every agent observes a target action of its own. Its reward is 1 for choosing the target, and 0 otherwise.

    In each step, a target is drawn for each agent, independently of other targets and of all actions. So the optimal
    return is known, and other agents' data contain no useful information. A framework that gives an agent the action,
    the observation or the reward of another agent or of another step cannot learn to be better than chance.

    An observation is the target as a one-hot vector. With ``continuous_actions=True``, an action is a score for each
    choice, and the choice with the highest score is taken (the first one if several are highest).

    Every agent's optimal return is ``ep_len``; a uniformly random agent expects ``ep_len / n_actions``.

    Args:
        n_agents: The number of agents. They are called ``agent_0``, ``agent_1`` and so on.
        n_actions: The number of choices. Observations are ``[n_actions]`` float32.
        ep_len: The number of steps after which all agents are truncated.
        continuous_actions: Whether actions are ``[n_actions]`` float32 scores in [-1, 1] instead of integers.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If one of the sizes is below 1, or the render mode is unknown.
    """

    metadata: dict[str, Any] = {
        "name": "match_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        n_agents: int = 4,
        n_actions: int = 5,
        ep_len: int = 25,
        continuous_actions: bool = False,
        render_mode: str | None = None,
    ) -> None:
        for name, size in {"n_agents": n_agents, "n_actions": n_actions, "ep_len": ep_len}.items():
            if size < 1:
                raise ValueError(f"match_v0: {name} must be at least 1, but is {size}. Pass a positive integer.")
        check_render_mode("match_v0", render_mode)
        self.render_mode = render_mode
        self.n_actions = n_actions
        self.ep_len = ep_len
        self.continuous_actions = continuous_actions
        self.possible_agents = [f"agent_{i}" for i in range(n_agents)]
        self.agents: list[str] = []
        self.observation_spaces = {a: spaces.Box(0.0, 1.0, (n_actions,), np.float32) for a in self.possible_agents}
        self.action_spaces = {
            a: spaces.Box(-1.0, 1.0, (n_actions,), np.float32) if continuous_actions else spaces.Discrete(n_actions)
            for a in self.possible_agents
        }
        self._targets = np.zeros(n_agents, np.int64)
        self._played: deque[list[tuple[int, int]]] = deque(maxlen=_SHOWN - 1)
        self._t = 0
        self._rng: np.random.Generator | None = None

    @property
    def optimal_return(self) -> float:
        """The return of one agent that always chooses its target."""
        return float(self.ep_len)

    @property
    def random_return(self) -> float:
        """The expected return of one agent that chooses uniformly at random."""
        return self.ep_len / self.n_actions

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts an episode. ``seed`` seeds the sequence of targets; without a seed, it continues."""
        rng = self._rng
        if seed is not None or rng is None:
            rng, _ = seeding.np_random(seed)
        self._rng = rng
        self._t = 0
        self._played.clear()
        self.agents = self.possible_agents[:]
        return self._draw_targets(rng), {a: {} for a in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Plays a step, and draws the next targets.

        Raises:
            RuntimeError: If the episode is over, or if ``reset`` was never called.
            ValueError: If an agent has no action, or an action outside its action space.
        """
        if not self.agents or self._rng is None:
            raise RuntimeError("match_v0: step() was called without a running episode. Call reset() first.")
        targets, choices = self._targets.tolist(), [self._choice(agent, actions) for agent in self.possible_agents]
        rewards = {
            agent: float(choice == target)
            for agent, target, choice in zip(self.possible_agents, targets, choices, strict=True)
        }
        if self.render_mode is not None:
            self._played.append(list(zip(targets, choices, strict=True)))
        self._t += 1
        observations = self._draw_targets(self._rng)
        over = self._t >= self.ep_len
        terminations = dict.fromkeys(self.agents, False)
        truncations = dict.fromkeys(self.agents, over)
        infos: dict[str, dict[str, Any]] = {a: {} for a in self.agents}
        if over:
            self.agents = []
        return observations, rewards, terminations, truncations, infos

    def state(self) -> np.ndarray:
        """Returns ``[n_agents, n_actions]`` float32: every agent's target as a one-hot row."""
        return np.eye(self.n_actions, dtype=np.float32)[self._targets]

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns ``[height, 460, 3]`` uint8: a row for each agent, a column for each of the newest steps.

        A large disc is a target, and the small disc beside it is the choice. The last column has no choices yet.
        """
        if self.render_mode is None:
            logger.warn("match_v0: render() draws nothing, because render_mode is None. Pass 'rgb_array'.")
            return None
        canvas = Canvas(30 * len(self.possible_agents) + 10, 57 * _SHOWN + 4)
        waiting = [(target, None) for target in self._targets.tolist()]
        for column, step in enumerate([*self._played, waiting]):
            for row, (target, choice) in enumerate(step):
                x, y = 30 + 57 * column, 20 + 30 * row
                canvas.disc(x, y, 11, PALETTE[target % len(PALETTE)])
                if choice is not None:
                    canvas.disc(x + 20, y, 6, PALETTE[choice % len(PALETTE)])
        return canvas.pixels

    def close(self) -> None:
        """Does nothing, because there are no resources to free."""

    def _draw_targets(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        self._targets = rng.integers(self.n_actions, size=len(self.possible_agents))
        return dict(zip(self.possible_agents, self.state(), strict=True))

    def _choice(self, agent: str, actions: dict[str, Any]) -> int:
        if agent not in actions:
            raise ValueError(
                f"match_v0: expected an action for every agent, but {agent!r} is missing in {list(actions)}. "
                f"Pass one action for each of env.agents."
            )
        action, space = actions[agent], self.action_spaces[agent]
        if self.continuous_actions:
            action = np.asarray(action, np.float32)
        if not space.contains(action):
            raise ValueError(
                f"match_v0: {agent!r} needs an action in {space}, but got {action!r}. Clip or unsquash it first."
            )
        return int(np.argmax(action)) if self.continuous_actions else int(action)


def parallel_env(
    *,
    n_agents: int = 4,
    n_actions: int = 5,
    ep_len: int = 25,
    continuous_actions: bool = False,
    render_mode: str | None = None,
) -> MatchEnv:
    """Returns the environment, under the name that PettingZoo's modules use; see ``MatchEnv`` for the arguments."""
    return MatchEnv(
        n_agents=n_agents,
        n_actions=n_actions,
        ep_len=ep_len,
        continuous_actions=continuous_actions,
        render_mode=render_mode,
    )
