"""Half of all actions are forbidden, and only the mask contains which. This finds masks that are ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_envs.arguments import check_at_least
from marl_envs.drawing import BLUE, GREY, RED, Canvas
from marl_envs.small_env import SmallEnv, Step

__all__ = ["MaskedEnv", "parallel_env"]


class MaskedEnv(SmallEnv):
    """Every agent observes a price for each action, drawn in each step. Its reward is the price of its action.

    In each step, half of the actions (rounded down) are forbidden. They are drawn for each agent. An agent that takes
    one of them gets ``illegal_reward`` and terminates; with ``illegal="raise"``, ``step`` raises an error instead. The
    other agents continue, and are truncated after ``ep_len`` steps.

    An observation is a Dict, as in PettingZoo's classic games: ``observation`` is ``[n_actions]`` float32 prices in
    [0, 1], and ``action_mask`` is ``[n_actions]`` int8, 1 for allowed actions. Only the mask contains which actions are
    allowed, and it does not depend on the prices. A policy that ignores it terminates after two steps on average,
    whatever it has learned.

    Args:
        n_agents: The number of agents. They are called ``agent_0``, ``agent_1`` and so on.
        n_actions: The number of actions, at least 2.
        ep_len: The number of steps after which all agents are truncated.
        illegal: ``"lose"`` if an agent that takes a forbidden action terminates, ``"raise"`` for a ValueError.
        illegal_reward: The reward for a forbidden action.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If an argument is outside its range.
    """

    metadata: dict[str, Any] = {
        "name": "masked_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        n_agents: int = 2,
        n_actions: int = 6,
        ep_len: int = 20,
        illegal: str = "lose",
        illegal_reward: float = -1.0,
        render_mode: str | None = None,
    ) -> None:
        check_at_least(self._name, 2, n_actions=n_actions)
        check_at_least(self._name, 1, ep_len=ep_len)
        if illegal not in ("lose", "raise"):
            raise ValueError(f"masked_v0: illegal must be 'lose' or 'raise', but is {illegal!r}.")
        space = spaces.Dict(
            {
                "observation": spaces.Box(0.0, 1.0, (n_actions,), np.float32),
                "action_mask": spaces.Box(0, 1, (n_actions,), np.int8),
            }
        )
        super().__init__(n_agents=n_agents, observation_space=space, n_actions=n_actions, render_mode=render_mode)
        self.n_actions = n_actions
        self.n_allowed = n_actions - n_actions // 2
        self.ep_len = ep_len
        self.illegal = illegal
        self.illegal_reward = illegal_reward
        self._t = 0
        self._prices = np.zeros((n_agents, n_actions), np.float32)
        self._allowed = np.zeros((n_agents, n_actions), np.int8)

    @property
    def optimal_return(self) -> float:
        """The expected return of an agent that always takes the best allowed action."""
        return self.ep_len * self.n_allowed / (self.n_allowed + 1)

    @property
    def random_return(self) -> float:
        """The expected return of an agent that draws allowed actions uniformly at random."""
        return self.ep_len / 2

    @property
    def unmasked_return(self) -> float:
        """The expected return of an agent that takes the best of all actions and ignores the mask."""
        allowed = self.n_allowed / self.n_actions
        paid = allowed * self.n_actions / (self.n_actions + 1) + (1.0 - allowed) * self.illegal_reward
        return float((allowed ** np.arange(self.ep_len)).sum() * paid)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, dict[str, Any]]]:
        """Starts an episode. ``seed`` seeds the sequence of prices and masks; without a seed, it continues."""
        rng = self._begin(seed, self.possible_agents)
        self._t = 0
        self._draw(rng)
        return self._observations(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Plays a step, and ends agents that took a forbidden action.

        Raises:
            RuntimeError: If the episode is over, or if ``reset`` was never called.
            ValueError: If an agent has no action, an action outside its action space, or, with ``illegal="raise"``, a
                forbidden action.
        """
        rng, choices = self._choices(actions)
        rewards, terminations = {}, {}
        for i, agent in enumerate(self.possible_agents):
            if agent not in choices:
                continue
            choice = choices[agent]
            terminations[agent] = not self._allowed[i, choice]
            rewards[agent] = float(self.illegal_reward if terminations[agent] else self._prices[i, choice])
            if terminations[agent] and self.illegal == "raise":
                raise ValueError(
                    f"masked_v0: {agent!r} took action {choice}, but its action_mask allows only "
                    f"{np.flatnonzero(self._allowed[i]).tolist()}. Apply the mask when actions are chosen."
                )
        self._t += 1
        truncations = {agent: not terminations[agent] and self._t >= self.ep_len for agent in choices}
        self._draw(rng)
        observations = self._observations(choices)
        self.agents = [agent for agent in choices if not (terminations[agent] or truncations[agent])]
        return observations, rewards, terminations, truncations, {agent: {} for agent in choices}

    def _draw(self, rng: np.random.Generator) -> None:
        shape = self._prices.shape
        self._prices = rng.random(shape, np.float32)
        ranks = rng.permuted(np.tile(np.arange(self.n_actions), (shape[0], 1)), axis=1)
        self._allowed = (ranks < self.n_allowed).astype(np.int8)

    def _observations(self, agents: Any) -> dict[str, dict[str, np.ndarray]]:
        return {
            agent: {"observation": prices, "action_mask": mask}
            for agent, prices, mask in zip(self.possible_agents, self._prices, self._allowed, strict=True)
            if agent in agents
        }

    def state(self) -> np.ndarray:
        """Returns ``[n_agents, 2 * n_actions]`` float32: the prices and masks of all agents."""
        return np.concatenate([self._prices, self._allowed], axis=1, dtype=np.float32)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns ``[height, width, 3]`` uint8: a row of prices for each agent, forbidden actions in red."""
        if not self._draws():
            return None
        canvas = Canvas(80 * len(self.possible_agents) + 10, 40 * self.n_actions + 20)
        for row, agent in enumerate(self.possible_agents):
            bottom = 80 * (row + 1)
            for i, (price, allowed) in enumerate(zip(self._prices[row], self._allowed[row], strict=True)):
                colour = GREY if agent not in self.agents else BLUE if allowed else RED
                canvas.bar(15 + 40 * i, bottom - 66 * price, 30, 66 * price, colour)
            canvas.bar(10, bottom, 40 * self.n_actions, 2, GREY)
        return canvas.pixels


def parallel_env(
    *,
    n_agents: int = 2,
    n_actions: int = 6,
    ep_len: int = 20,
    illegal: str = "lose",
    illegal_reward: float = -1.0,
    render_mode: str | None = None,
) -> MaskedEnv:
    """Returns the environment, under the name that PettingZoo's modules use; see ``MaskedEnv`` for the arguments."""
    return MaskedEnv(
        n_agents=n_agents,
        n_actions=n_actions,
        ep_len=ep_len,
        illegal=illegal,
        illegal_reward=illegal_reward,
        render_mode=render_mode,
    )
