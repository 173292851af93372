"""Staying is best if truncated episodes are bootstrapped. This finds truncations that are treated as terminations."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_envs.arguments import check_at_least, check_chances
from marl_envs.drawing import BLUE, GREY, RED, YELLOW, Canvas
from marl_envs.small_env import SmallEnv, Step

__all__ = ["LEAVE", "STAY", "StayEnv", "parallel_env"]

LEAVE, STAY = 0, 1


class StayEnv(SmallEnv):
    """An agent leaves (action 0), gets ``leave_reward`` and terminates, or stays (action 1) and gets the reward 1.

    An agent that stays is truncated with probability ``cut_chance`` after each step. All remaining agents are truncated
    after ``ep_len`` steps. Truncations cannot be predicted, as an observation is always ``[1.0]``.

    With the discount ``gamma``, the value of always staying is ``1 / (1 - gamma)`` (10 for 0.9), which is more than the
    3 for leaving. If a truncation is treated as a termination, the next step only has a value with probability
    ``1 - cut_chance``, and the value of staying is ``1 / (1 - gamma * (1 - cut_chance))`` (1.8), which is less than 3.
    So with ``gamma=0.9`` and the default arguments, an agent learns to stay if truncated episodes are bootstrapped,
    and to leave otherwise.

    Truncations are for training. Within an episode that is truncated soon, leaving has the higher return. So evaluate a
    policy by how often it stays, or without truncations (``cut_chance=0``), where the return of staying is ``ep_len``.

    Args:
        n_agents: The number of agents. They are called ``agent_0``, ``agent_1`` and so on.
        leave_reward: The reward for leaving.
        cut_chance: The probability that an agent that stays is truncated in a step.
        ep_len: The number of steps after which all agents are truncated.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If an argument is outside its range.
    """

    metadata: dict[str, Any] = {
        "name": "stay_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        n_agents: int = 4,
        leave_reward: float = 3.0,
        cut_chance: float = 0.5,
        ep_len: int = 50,
        render_mode: str | None = None,
    ) -> None:
        check_at_least(self._name, 1, ep_len=ep_len)
        check_at_least(self._name, 0.0, leave_reward=leave_reward)
        check_chances(self._name, cut_chance=cut_chance)
        space = spaces.Box(0.0, 1.0, (1,), np.float32)
        super().__init__(n_agents=n_agents, observation_space=space, n_actions=2, render_mode=render_mode)
        self.leave_reward = leave_reward
        self.cut_chance = cut_chance
        self.ep_len = ep_len
        self._t = 0
        self._left: dict[str, str] = {}

    @property
    def optimal_return(self) -> float:
        """The expected return of an agent that always stays."""
        return self._expected(staying=1.0)

    @property
    def leaving_return(self) -> float:
        """The return of an agent that leaves in its first step."""
        return float(self.leave_reward)

    @property
    def random_return(self) -> float:
        """The expected return of an agent that leaves with probability 1/2 in each step."""
        return self._expected(staying=0.5)

    def _expected(self, *, staying: float) -> float:
        there = (staying * (1.0 - self.cut_chance)) ** np.arange(self.ep_len)
        return float(there.sum() * (staying + (1.0 - staying) * self.leave_reward))

    def value_of_staying(self, gamma: float, *, bootstrapped: bool = True) -> float:
        """Returns the discounted value of always staying, without the limit of ``ep_len``.

        Args:
            gamma: The discount.
            bootstrapped: Whether truncated episodes are bootstrapped. Otherwise they are treated as terminated.
        """
        return 1.0 / (1.0 - gamma * (1.0 if bootstrapped else 1.0 - self.cut_chance))

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts an episode. ``seed`` seeds the sequence of cuts; without a seed, it continues."""
        self._begin(seed, self.possible_agents)
        self._t, self._left = 0, {}
        return {agent: np.ones(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Plays a step, and ends agents that leave or are truncated.

        Raises:
            RuntimeError: If the episode is over, or if ``reset`` was never called.
            ValueError: If an agent has no action, or an action outside its action space.
        """
        rng, choices = self._choices(actions)
        self._t += 1
        cuts = dict(zip(self.possible_agents, rng.random(len(self.possible_agents)) < self.cut_chance, strict=True))
        terminations = {agent: choice == LEAVE for agent, choice in choices.items()}
        truncations = {
            agent: choice == STAY and bool(cuts[agent] or self._t >= self.ep_len) for agent, choice in choices.items()
        }
        rewards = {agent: 1.0 if choice == STAY else float(self.leave_reward) for agent, choice in choices.items()}
        self._left.update(
            {a: "left" if terminations[a] else "cut" for a in choices if terminations[a] or truncations[a]}
        )
        self.agents = [agent for agent in choices if agent not in self._left]
        observations = {agent: np.ones(1, np.float32) for agent in choices}
        return observations, rewards, terminations, truncations, {agent: {} for agent in choices}

    def state(self) -> np.ndarray:
        """Returns ``[n_agents]`` float32: 1 for live agents."""
        return np.isin(self.possible_agents, self.agents).astype(np.float32)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns ``[60, width, 3]`` uint8: a disc for each agent, blue: stays, red: truncated, yellow: left."""
        if not self._draws():
            return None
        canvas = Canvas(60, 50 * len(self.possible_agents) + 10)
        for i, agent in enumerate(self.possible_agents):
            how = "there" if agent in self.agents else self._left.get(agent)
            colour = {"there": BLUE, "cut": RED, "left": YELLOW, None: GREY}[how]
            canvas.disc(30 + 50 * i, 30, 18, colour)
        return canvas.pixels


def parallel_env(
    *,
    n_agents: int = 4,
    leave_reward: float = 3.0,
    cut_chance: float = 0.5,
    ep_len: int = 50,
    render_mode: str | None = None,
) -> StayEnv:
    """Returns the environment, under the name that PettingZoo's modules use; see ``StayEnv`` for the arguments."""
    return StayEnv(
        n_agents=n_agents, leave_reward=leave_reward, cut_chance=cut_chance, ep_len=ep_len, render_mode=render_mode
    )
