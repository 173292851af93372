"""Agents join, die, leave and return at different times. This finds errors in the handling of such agents."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from marl_envs.arguments import check_at_least
from marl_envs.drawing import GREEN, GREY, INK, PALETTE, RED, Canvas
from marl_envs.small_env import SmallEnv, Step

__all__ = ["VisitorsEnv", "parallel_env"]


class VisitorsEnv(SmallEnv):
    """Every visitor observes a target of its own, gets the reward 1 for choosing it, and otherwise loses a life.

    A visit begins with ``lives`` lives. A visitor that loses the last one dies (terminated). A visitor that survives
    ``visit_len`` steps leaves (truncated). In both cases, it returns with the same id ``absence`` steps later, if
    ``returns`` is True. Meanwhile, new ids join, one every ``arrival_every`` steps until all have joined, or at once if
    no other visitor would be left. After ``ep_len`` steps, no more visitors join or return, and the episode ends with
    the last visit. So no visit is cut short, and the return of a visit does not depend on other visitors.

    An observation is ``[n_actions + 2]`` float32: the target as a one-hot vector, the fraction of lives that are left,
    and the fraction of the visit that is left. This also holds for the final observation of a visit, so that 0 lives
    mean that the visitor died. A visitor that joins gets its first observation, with the reward 0, in the step after
    which it takes part.

    A visit's optimal return is ``visit_len``; ``random_return`` is the expected return of a uniformly random visitor.

    Note:
        PettingZoo's ``parallel_api_test`` forbids that agents return, so it passes with ``returns=False`` only.

    Args:
        n_agents: The number of ids, ``agent_0``, ``agent_1`` and so on.
        n_start: The number of visitors at the reset.
        n_actions: The number of choices.
        lives: The number of wrong choices after which a visitor dies.
        visit_len: The number of steps after which a visitor leaves.
        absence: The number of steps from the end of a visit to the first observation of the next visit.
        arrival_every: The number of steps from one new id to the next.
        ep_len: The number of steps after which no visitor joins or returns.
        returns: Whether visitors return.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If one of the sizes is below 1, or ``n_start`` above ``n_agents``.
    """

    metadata: dict[str, Any] = {
        "name": "visitors_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        n_agents: int = 6,
        n_start: int = 2,
        n_actions: int = 4,
        lives: int = 3,
        visit_len: int = 10,
        absence: int = 4,
        arrival_every: int = 5,
        ep_len: int = 40,
        returns: bool = True,
        render_mode: str | None = None,
    ) -> None:
        sizes = {
            "n_start": n_start,
            "n_actions": n_actions,
            "lives": lives,
            "visit_len": visit_len,
            "absence": absence,
            "arrival_every": arrival_every,
            "ep_len": ep_len,
        }
        check_at_least(self._name, 1, **sizes)
        space = spaces.Box(0.0, 1.0, (n_actions + 2,), np.float32)
        super().__init__(n_agents=n_agents, observation_space=space, n_actions=n_actions, render_mode=render_mode)
        if n_start > n_agents:
            raise ValueError(
                f"visitors_v0: n_start must be at most n_agents, {n_agents}, but is {n_start}. Raise n_agents."
            )
        self.n_start = n_start
        self.n_actions = n_actions
        self.lives = lives
        self.visit_len = visit_len
        self.absence = absence
        self.arrival_every = arrival_every
        self.ep_len = ep_len
        self.returns = returns
        self._t = 0
        self._targets = np.zeros(n_agents, np.int64)
        self._lives = np.zeros(n_agents, np.int64)
        self._ages = np.zeros(n_agents, np.int64)
        self._back_at: dict[str, int] = {}
        self._new: list[str] = []
        self._number = {agent: i for i, agent in enumerate(self.possible_agents)}

    @property
    def optimal_return(self) -> float:
        """The return of a visit in which every target is chosen."""
        return float(self.visit_len)

    @property
    def random_return(self) -> float:
        """The expected return of a visit with uniformly random choices."""
        right = 1.0 / self.n_actions
        chances = np.zeros(self.lives)  # the probabilities of taking part with 0, 1, ... lost lives
        chances[0] = 1.0
        expected = 0.0
        for _ in range(self.visit_len):
            expected += right * chances.sum()
            lost = np.append(0.0, chances[:-1])
            chances = right * chances + (1.0 - right) * lost
        return float(expected)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts an episode. ``seed`` seeds the sequence of targets; without a seed, it continues."""
        rng = self._begin(seed, self.possible_agents[: self.n_start])
        self._new = self.possible_agents[self.n_start :]
        self._back_at = {}
        self._t = 0
        self._lives[:], self._ages[:] = self.lives, 0
        self._targets = rng.integers(self.n_actions, size=len(self.possible_agents))
        return {agent: self._observe(agent) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Step:
        """Plays a step, in which visitors may join, leave and die.

        Raises:
            RuntimeError: If the episode is over, or if ``reset`` was never called.
            ValueError: If an agent has no action, or an action outside its action space.
        """
        rng, choices = self._choices(actions)
        self._t += 1
        rewards = {}
        for agent, choice in choices.items():
            i = self._number[agent]
            rewards[agent] = float(choice == self._targets[i])
            self._lives[i] -= not rewards[agent]
            self._ages[i] += 1
        terminations = {agent: bool(self._lives[self._number[agent]] == 0) for agent in choices}
        truncations = {
            agent: not terminations[agent] and bool(self._ages[self._number[agent]] == self.visit_len)
            for agent in choices
        }
        self._targets = rng.integers(self.n_actions, size=len(self.possible_agents))
        observations = {agent: self._observe(agent) for agent in choices}

        gone = [agent for agent in choices if terminations[agent] or truncations[agent]]
        staying = [agent for agent in choices if agent not in gone]
        joining = self._arrivals(anybody=bool(staying))
        if self.returns:
            self._back_at.update(dict.fromkeys(gone, self._t + self.absence))
        for agent in joining:
            i = self._number[agent]
            self._lives[i], self._ages[i] = self.lives, 0
            observations[agent] = self._observe(agent)
            rewards[agent] = 0.0
            terminations[agent] = truncations[agent] = False
        self.agents = staying + joining
        return observations, rewards, terminations, truncations, {agent: {} for agent in observations}

    def _arrivals(self, *, anybody: bool) -> list[str]:
        """Returns the visitors that return or join now. A new id joins early if there are no other visitors."""
        if self._t >= self.ep_len:
            return []
        due = [agent for agent, t in self._back_at.items() if t <= self._t]
        for agent in due:
            del self._back_at[agent]
        if self._new and (self._t % self.arrival_every == 0 or not (anybody or due)):
            due.append(self._new.pop(0))
        return due

    def _observe(self, agent: str) -> np.ndarray:
        i = self._number[agent]
        seen = np.zeros(self.n_actions + 2, np.float32)
        seen[self._targets[i]] = 1.0
        seen[-2:] = self._lives[i] / self.lives, 1.0 - self._ages[i] / self.visit_len
        return seen

    def state(self) -> np.ndarray:
        """Returns ``[n_agents, n_actions + 2]`` float32: the observations of visitors, and rows of 0 for absent ids."""
        there = np.isin(self.possible_agents, self.agents)
        return np.stack([self._observe(agent) for agent in self.possible_agents]) * there[:, None].astype(np.float32)

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns ``[height, width, 3]`` uint8: for each id its target's colour, its lives, and the rest of its visit.

        Absent ids have an empty place. The bar at the top shows the time until no more visitors join.
        """
        if not self._draws():
            return None
        canvas = Canvas(110, 60 * len(self.possible_agents) + 10)
        width = canvas.pixels.shape[1] - 20
        canvas.bar(10, 6, width, 6, GREY)
        canvas.bar(10, 6, width * max(0.0, 1.0 - self._t / self.ep_len), 6, INK)
        for i, agent in enumerate(self.possible_agents):
            x = 40 + 60 * i
            if agent not in self.agents:
                canvas.ring(x, 46, 20, GREY)
                continue
            canvas.disc(x, 46, 20, PALETTE[self._targets[i] % len(PALETTE)])
            for life in range(self.lives):
                canvas.disc(x + 12 * (life - (self.lives - 1) / 2), 80, 4, RED if life < self._lives[i] else GREY)
            canvas.bar(x - 20, 92, 40, 6, GREY)
            canvas.bar(x - 20, 92, 40 * (1.0 - self._ages[i] / self.visit_len), 6, GREEN)
        return canvas.pixels


def parallel_env(
    *,
    n_agents: int = 6,
    n_start: int = 2,
    n_actions: int = 4,
    lives: int = 3,
    visit_len: int = 10,
    absence: int = 4,
    arrival_every: int = 5,
    ep_len: int = 40,
    returns: bool = True,
    render_mode: str | None = None,
) -> VisitorsEnv:
    """Returns the environment, under the name that PettingZoo's modules use; see ``VisitorsEnv`` for the arguments."""
    return VisitorsEnv(
        n_agents=n_agents,
        n_start=n_start,
        n_actions=n_actions,
        lives=lives,
        visit_len=visit_len,
        absence=absence,
        arrival_every=arrival_every,
        ep_len=ep_len,
        returns=returns,
        render_mode=render_mode,
    )
