"""Agents must recognise the first step of an episode. This finds recurrent states that leak between episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_envs.arguments import check_at_least, check_chances
from marl_envs.drawing import BLUE, GREY, YELLOW, Canvas
from marl_envs.small_env import SmallEnv, Step

__all__ = ["FirstStepEnv", "parallel_env"]


class FirstStepEnv(SmallEnv):
    """An agent's reward is 1 for action 0 in its first step and for action 1 in all other steps, and -1 otherwise.

    An observation is always ``[1.0]``, and each agent terminates with probability ``end_chance`` after each step. So a
    stateful policy whose state is reset in each episode recognises a first step, and gets ``optimal_return``. If the
    state is carried over from one episode to the next, or from one agent to another, the policy cannot recognise it,
    because earlier steps contain no information about it. Then the expected return is at most ``memoryless_return``
    (0 for the default arguments).

    All remaining agents are truncated after ``ep_len`` steps.

    Args:
        n_agents: The number of agents. They are called ``agent_0``, ``agent_1`` and so on.
        end_chance: The probability that an agent terminates in a step.
        ep_len: The number of steps after which all agents are truncated.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If an argument is outside its range.
    """

    metadata: dict[str, Any] = {
        "name": "first_step_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        n_agents: int = 2,
        end_chance: float = 0.5,
        ep_len: int = 50,
        render_mode: str | None = None,
    ) -> None:
        check_at_least(self._name, 1, ep_len=ep_len)
        check_chances(self._name, end_chance=end_chance)
        space = spaces.Box(0.0, 1.0, (1,), np.float32)
        super().__init__(n_agents=n_agents, observation_space=space, n_actions=2, render_mode=render_mode)
        self.end_chance = end_chance
        self.ep_len = ep_len
        self._t = 0
        self._lengths = np.zeros(n_agents, np.int64)

    @property
    def mean_length(self) -> float:
        """The mean number of steps of an agent."""
        return float(((1.0 - self.end_chance) ** np.arange(self.ep_len)).sum())

    @property
    def optimal_return(self) -> float:
        """The expected return of an agent that always acts right: 1 for each of its steps."""
        return self.mean_length

    @property
    def memoryless_return(self) -> float:
        """The highest expected return of an agent without a state of its own: that of the better action."""
        return abs(self.mean_length - 2.0)

    @property
    def random_return(self) -> float:
        """The expected return of an agent that acts uniformly at random."""
        return 0.0

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts an episode. ``seed`` seeds the sequence of ends; without a seed, it continues."""
        self._begin(seed, self.possible_agents)
        self._t = 0
        self._lengths[:] = 0
        return {agent: np.ones(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Plays a step.

        Raises:
            RuntimeError: If the episode is over, or if ``reset`` was never called.
            ValueError: If an agent has no action, or an action outside its action space.
        """
        rng, choices = self._choices(actions)
        right = int(self._t > 0)
        self._t += 1
        ends = dict(zip(self.possible_agents, rng.random(len(self.possible_agents)) < self.end_chance, strict=True))
        self._lengths += np.isin(self.possible_agents, self.agents)
        terminations = {agent: bool(ends[agent]) for agent in choices}
        truncations = {agent: not terminations[agent] and self._t >= self.ep_len for agent in choices}
        rewards = {agent: 1.0 if choice == right else -1.0 for agent, choice in choices.items()}
        self.agents = [agent for agent in choices if not (terminations[agent] or truncations[agent])]
        observations = {agent: np.ones(1, np.float32) for agent in choices}
        return observations, rewards, terminations, truncations, {agent: {} for agent in choices}

    def state(self) -> np.ndarray:
        """Returns ``[1 + n_agents]`` float32: 1 in the first step, and 1 for each live agent."""
        return np.append(self._t == 0, np.isin(self.possible_agents, self.agents)).astype(np.float32)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns ``[height, 330, 3]`` uint8: a row for each agent, yellow in its first step, grey after its end."""
        if not self._draws():
            return None
        canvas = Canvas(40 * len(self.possible_agents) + 10, 330)
        for row, agent in enumerate(self.possible_agents):
            steps = self._lengths[row] + (agent in self.agents)
            for t in range(min(steps, 8)):
                colour = YELLOW if t == 0 else BLUE
                canvas.disc(25 + 40 * t, 25 + 40 * row, 14, colour if agent in self.agents else GREY)
        return canvas.pixels


def parallel_env(
    *, n_agents: int = 2, end_chance: float = 0.5, ep_len: int = 50, render_mode: str | None = None
) -> FirstStepEnv:
    """Returns the environment, under the name that PettingZoo's modules use; see ``FirstStepEnv`` for the arguments."""
    return FirstStepEnv(n_agents=n_agents, end_chance=end_chance, ep_len=ep_len, render_mode=render_mode)
