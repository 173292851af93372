"""Environments whose steps take almost no time, like ``null_v0``, with other spaces, infos, masks and deaths."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

NOISE = spaces.Box(-10.0, 10.0, (16,), np.float32)
OBSERVATIONS = {
    "float32": NOISE,
    "float64": spaces.Box(-10.0, 10.0, (16,), np.float64),
    "Dict": spaces.Dict({"far": spaces.Box(-10, 10, (8,), np.float32), "near": spaces.Box(-10, 10, (8,), np.float32)}),
    "mask": spaces.Dict({"action_mask": spaces.Box(0, 1, (5,), np.int8), "observation": NOISE}),
}
ACTIONS = {
    "Discrete": spaces.Discrete(5),
    "Box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "MultiDiscrete": spaces.MultiDiscrete([3, 3]),
    "Dict": spaces.Dict({"move": spaces.Box(-1.0, 1.0, (2,), np.float32), "say": spaces.Discrete(3)}),
}
POOL = 40
"""The number of different steps, which are made in advance."""


class NullVariant(ParallelEnv):
    """Agents observe noise and always get the reward 0.5, until all are truncated.

    Args:
        n_agents: The number of agents.
        obs: A key of ``OBSERVATIONS``.
        act: A key of ``ACTIONS``.
        infos: Whether infos are not empty.
        go: Whether a tenth of the agents ends in every step, and returns two steps later.
        ep_len: The number of steps of an episode.
    """

    metadata = {"name": "null_variant", "render_modes": []}

    def __init__(
        self,
        *,
        n_agents: int = 8,
        obs: str = "float32",
        act: str = "Discrete",
        infos: bool = False,
        go: bool = False,
        ep_len: int = 100,
    ):
        self.possible_agents = [f"agent_{i}" for i in range(n_agents)]
        self.agents: list[str] = []
        self._spaces = OBSERVATIONS[obs], ACTIONS[act]
        self._ep_len, self._t = ep_len, 0
        self._steps = _steps(n_agents, obs, infos, go)
        self._first = self.possible_agents if not go else [a for i, a in enumerate(self.possible_agents) if i % 10 > 1]
        self._first = self._first or self.possible_agents

    def observation_space(self, agent: str) -> spaces.Space:
        return self._spaces[0]

    def action_space(self, agent: str) -> spaces.Space:
        return self._spaces[1]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self._t = 0
        seen, *_, infos, _, _ = self._steps[5]
        self.agents = list(self._first)
        return {a: seen.get(a, self._steps[0][0].get(a)) for a in self.agents}, {
            a: infos.get(a, {}) for a in self.agents
        }

    def step(self, actions: Any) -> Any:
        self._t += 1
        seen, rewards, ends, truncations, infos, at_last, there = self._steps[self._t % POOL]
        self.agents = there[:]
        if self._t >= self._ep_len:
            self.agents, truncations = [], at_last
        return seen.copy(), rewards.copy(), ends.copy(), truncations.copy(), infos.copy()

    def close(self) -> None:
        pass


@cache
def _steps(n_agents: int, obs: str, infos: bool, go: bool) -> list[Any]:
    """Returns the data of each step: five dicts, the truncations of a last step, and the live agents after it."""
    agents = [f"agent_{i}" for i in range(n_agents)]
    noise = np.random.default_rng(0).standard_normal((POOL, n_agents, 16)).clip(-10, 10).astype(np.float32)
    steps = []
    for k in range(POOL):
        phase = {agent: (k + i) % 10 if go else 5 for i, agent in enumerate(agents)}
        seen = {a: _seen(obs, noise[k, i]) for i, a in enumerate(agents) if phase[a] != 1}
        ends = {a: phase[a] == 0 for a in seen}
        steps.append(
            (
                seen,
                {a: 0.0 if phase[a] == 2 else 0.5 for a in seen},
                ends,
                dict.fromkeys(seen, False),
                {a: {"k": k} if infos else {} for a in seen},
                {a: not ends[a] for a in seen},
                [a for a in seen if not ends[a]],
            )
        )
    return steps


def _seen(obs: str, noise: np.ndarray) -> Any:
    if obs == "Dict":
        return {"far": noise[:8], "near": noise[8:]}
    if obs == "mask":
        return {"action_mask": np.array([1, 1, 0, 1, 1], np.int8), "observation": noise}
    return noise.astype(OBSERVATIONS[obs].dtype)


class NullTurns(AECEnv):
    """The turn-based variant without rewards: agents act in turn until all are truncated."""

    metadata = {"name": "null_turns", "render_modes": [], "is_parallelizable": False}
    render_mode = None

    def __init__(self, *, n_agents: int = 8, ep_len: int = 100):
        super().__init__()
        self.possible_agents = [f"agent_{i}" for i in range(n_agents)]
        self._ep_len = ep_len
        self._noise = np.random.default_rng(0).standard_normal((POOL, 16)).clip(-10, 10).astype(np.float32)

    def observation_space(self, agent: str) -> spaces.Space:
        return NOISE

    def action_space(self, agent: str) -> spaces.Space:
        return ACTIONS["Discrete"]

    def observe(self, agent: str) -> np.ndarray:
        return self._noise[self._t % POOL]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self._t, self.agents = 0, self.possible_agents[:]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = self.rewards.copy()
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = self.terminations.copy()
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def step(self, action: Any) -> None:
        if self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self._t += 1
        self.agent_selection = self.agents[self._t % len(self.agents)]
        if self._t >= self._ep_len:
            self.truncations = dict.fromkeys(self.agents, True)

    def close(self) -> None:
        pass
