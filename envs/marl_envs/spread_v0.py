"""Agents spread out to cover landmarks: many copies of the world in one set of arrays, stepped together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import logger, spaces
from numpy.lib.stride_tricks import as_strided
from pettingzoo import ParallelEnv

from marl_envs.arguments import check_at_least, check_render_mode
from marl_envs.drawing import BLUE, GREEN, RED, Canvas
from marl_envs.splitmix import first_keys, following_keys, keys_of_seeds, uniform

__all__ = ["SpreadBatch", "SpreadEnv", "batched_env", "parallel_env"]

_MOVES = np.array([[0, -1, 1, 0, 0], [0, 0, 0, -1, 1]], np.float32)
"""x and y of staying, left, right, down, up."""


class SpreadBatch:
    """``num_envs`` independent copies of a square world in which agents are paid for being near all landmarks.

    Agents move in the square [-1, 1]², and stop at its edges. At each step, every agent of a copy is paid minus the
    mean, over the copy's landmarks, of the distance to the agent that is nearest to the landmark; and each agent loses
    ``collision_penalty`` for each other agent that is closer to it than ``2 * radius``. So they have to share the
    landmarks out among them. Positions and landmarks are drawn uniformly at each reset.

    An agent observes, as ``[2 + 2 * n_landmarks + 2 * (n_agents - 1)]`` float32, its own position, then the x and then
    the y distances to the landmarks, then those to the other agents, who are counted from itself: for ``agent_2`` of
    four they are 3, 0, 1.

    No return can reach 0. A step is some twenty array operations for all copies together; nothing is done for single
    copies or agents. The arrays that ``step`` and ``reset`` give are used again at the next call.

    Args:
        num_envs: Number of copies.
        n_agents: Number of agents in a copy, ``agent_0`` and so on.
        n_landmarks: Number of landmarks; None for as many as agents.
        ep_len: Steps after which every agent of a copy is truncated.
        speed: How far an agent moves in a step, along each axis.
        radius: Of an agent, for collisions.
        collision_penalty: What each of two agents that touch loses in a step.
        continuous_actions: Take velocities, ``[2]`` float32 in [-1, 1], in the place of the integers 0 to 4, which
            stand for staying, left, right, down and up.
        render_mode: ``"rgb_array"`` or None.

    Raises:
        ValueError: If an argument is out of its range.
    """

    metadata: dict[str, Any] = {
        "name": "spread_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        *,
        num_envs: int,
        n_agents: int = 8,
        n_landmarks: int | None = None,
        ep_len: int = 50,
        speed: float = 0.1,
        radius: float = 0.05,
        collision_penalty: float = 0.25,
        continuous_actions: bool = False,
        render_mode: str | None = None,
    ) -> None:
        n_landmarks = n_agents if n_landmarks is None else n_landmarks
        check_at_least("spread_v0", 1, num_envs=num_envs, n_agents=n_agents, n_landmarks=n_landmarks, ep_len=ep_len)
        check_at_least("spread_v0", 0.0, speed=speed, radius=radius, collision_penalty=collision_penalty)
        check_render_mode("spread_v0", render_mode)
        self.num_envs = num_envs
        self.n_landmarks = n_landmarks
        self.ep_len = ep_len
        self.speed = speed
        self.radius = radius
        self.collision_penalty = collision_penalty
        self.continuous_actions = continuous_actions
        self.render_mode = render_mode
        self.possible_agents = [f"agent_{i}" for i in range(n_agents)]
        size = 2 + 2 * n_landmarks + 2 * (n_agents - 1)
        self._observation_space = spaces.Box(-2.0, 2.0, (size,), np.float32)
        self._action_space = (
            spaces.Box(-1.0, 1.0, (2,), np.float32) if continuous_actions else spaces.Discrete(_MOVES.shape[1])
        )
        self._keys = first_keys(num_envs)
        self._t = np.full(num_envs, ep_len)  # nothing runs before the first reset
        # All arithmetic is on arrays whose last axis counts the copies, several times as fast as the other way round.
        self._positions = np.zeros((2, n_agents, num_envs), np.float32)
        self._landmarks = np.zeros((2, n_landmarks, num_envs), np.float32)
        self._moves = np.zeros_like(self._positions)
        self._seen = np.zeros((n_agents, size, num_envs), np.float32)
        self._squares = np.zeros((2, n_agents, max(n_landmarks, n_agents - 1), num_envs), np.float32)
        self._observations = np.zeros((num_envs, n_agents, size), np.float32)
        self._rewards = np.zeros((num_envs, n_agents), np.float32)
        self._terminations = np.zeros((num_envs, n_agents), bool)
        self._truncations = np.zeros((num_envs, n_agents), bool)

    def observation_space(self, agent: str) -> spaces.Box:
        """Of one agent; the same for all."""
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Of one agent; the same for all."""
        return self._action_space

    def reset(self, seeds: Sequence[int | None], mask: np.ndarray | None = None) -> np.ndarray:
        """Starts episodes.

        Args:
            seeds: One for each copy. A copy's world depends on its own seed only; None goes on from the one before.
            mask: ``[num_envs]`` bool, which copies to reset; None for all. The seeds of the others are not used.

        Returns:
            ``[num_envs, n_agents, ...]`` float32, the observations of all copies, reset or not.

        Raises:
            ValueError: If there is not one seed, or one entry of the mask, for each copy.
        """
        if len(seeds) != self.num_envs:
            raise ValueError(f"spread_v0: {self.num_envs} copies need as many seeds, but got {len(seeds)}.")
        if mask is None:
            which = np.arange(self.num_envs)
        elif np.shape(mask) == (self.num_envs,) and np.asarray(mask).dtype == bool:
            which = np.flatnonzero(mask)
        else:
            raise ValueError(
                f"spread_v0: mask must be [{self.num_envs}] bool, one for each copy, but is {np.asarray(mask).dtype} "
                f"of shape {np.shape(mask)}."
            )
        keys = keys_of_seeds([seeds[i] for i in which.tolist()], following_keys(self._keys[which]), "spread_v0")
        self._keys[which] = keys
        agents, landmarks = len(self.possible_agents), self.n_landmarks
        places = 2.0 * uniform(keys, 2 * (agents + landmarks)).T.reshape(2, agents + landmarks, len(which)) - 1.0
        self._positions[..., which] = places[:, :agents]
        self._landmarks[..., which] = places[:, agents:]
        self._t[which] = 0
        seen = np.empty((*self._seen.shape[:2], len(which)), np.float32)
        _look(places[:, :agents], places[:, agents:], seen)
        self._observations[which] = seen.transpose(2, 0, 1)
        return self._observations

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Moves all agents of all copies. A hot path: array operations only.

        Args:
            actions: ``[num_envs, n_agents]`` integers, or ``[num_envs, n_agents, 2]`` velocities.

        Returns:
            Observations ``[num_envs, n_agents, ...]``, then ``[num_envs, n_agents]`` rewards (float32), terminations
            (never) and truncations, then no infos.

        Raises:
            RuntimeError: If a copy's episode is over.
            ValueError: If the actions are not in their space.
        """
        if self._t.max() >= self.ep_len:
            over = np.flatnonzero(self._t >= self.ep_len).tolist()
            raise RuntimeError(
                f"spread_v0: step() needs running episodes, but those of copies {over[:5]} ({len(over)} of "
                f"{self.num_envs}) are over or were never started. Call reset(seeds, mask) with a mask of them first."
            )
        positions = self._positions
        positions += self._moved(np.asarray(actions))
        np.maximum(positions, -1.0, out=positions)
        np.minimum(positions, 1.0, out=positions)
        to_landmarks, to_others = _look(positions, self._landmarks, self._seen)
        np.copyto(self._observations, self._seen.transpose(2, 0, 1))

        nearest = np.sqrt(self._squared_distances(to_landmarks).min(axis=0))
        self._rewards[...] = -nearest.mean(axis=0)[:, None]
        if self.collision_penalty and len(self.possible_agents) > 1:
            touching = self._squared_distances(to_others) < (2.0 * self.radius) ** 2
            self._rewards -= np.float32(self.collision_penalty) * touching.sum(axis=1, dtype=np.float32).T

        self._t += 1
        self._truncations[...] = (self._t >= self.ep_len)[:, None]
        self._terminations[...] = False
        return self._observations, self._rewards, self._terminations, self._truncations, {}

    def _squared_distances(self, parts: np.ndarray) -> np.ndarray:
        """``[N, M, E]`` from x and y distances, ``[2, N, M, E]``."""
        squares = self._squares[:, :, : parts.shape[2]]
        np.multiply(parts, parts, out=squares)
        squares[0] += squares[1]
        return squares[0]

    def _moved(self, actions: np.ndarray) -> np.ndarray:
        """``[2, n_agents, num_envs]``, by how much each agent moves."""
        moves, shape = self._moves, self._rewards.shape
        if self.continuous_actions:
            if actions.shape != (*shape, 2) or actions.dtype.kind not in "iuf" or not (np.abs(actions) <= 1.0).all():
                raise self._bad_actions(actions, "velocities in [-1, 1]")
            return np.multiply(actions.T, np.float32(self.speed), out=moves, casting="same_kind")
        if actions.shape != shape or actions.dtype.kind not in "iu":
            raise self._bad_actions(actions, "integers")
        if actions.min() < 0 or actions.max() >= _MOVES.shape[1]:
            raise self._bad_actions(actions, f"integers in [0, {_MOVES.shape[1]})")
        return np.take(np.float32(self.speed) * _MOVES, actions.T, axis=1, out=moves, mode="clip")

    def _bad_actions(self, actions: np.ndarray, wanted: str) -> ValueError:
        shape = (*self._rewards.shape, 2) if self.continuous_actions else self._rewards.shape
        found = f", from {actions.min()} to {actions.max()}" if actions.size and actions.dtype.kind in "iuf" else ""
        return ValueError(
            f"spread_v0: step() needs {wanted}, of shape {shape}, but got {actions.dtype} of shape "
            f"{actions.shape}{found}. Pass an action for each agent of each copy."
        )

    def state(self) -> np.ndarray:
        """``[num_envs, 2 * (n_agents + n_landmarks)]`` float32: x of all agents and landmarks of a copy, then y."""
        return np.concatenate([self._positions, self._landmarks], axis=1).reshape(-1, self.num_envs).T.copy()

    def render(self, copy: int = 0) -> np.ndarray | None:
        """``[200, 200, 3]`` uint8 of one copy: landmarks in green, agents in blue, or red while they touch another."""
        if self.render_mode is None:
            logger.warn("spread_v0: render() draws nothing, because render_mode is None. Pass 'rgb_array'.")
            return None
        canvas = Canvas(200, 200)

        def place(points: np.ndarray) -> list[tuple[float, float]]:
            x, y = 100.0 + 90.0 * points[0, :, copy], 100.0 - 90.0 * points[1, :, copy]
            return list(zip(x.tolist(), y.tolist(), strict=True))

        for x, y in place(self._landmarks):
            canvas.disc(x, y, 7.0, GREEN)
        points = self._positions[:, :, copy]
        apart = np.hypot(*(points[:, :, None] - points[:, None, :]))
        touching = (apart < 2.0 * self.radius).sum(axis=0) > 1
        for (x, y), touches in zip(place(self._positions), touching.tolist(), strict=True):
            canvas.disc(x, y, 90.0 * self.radius, RED if touches else BLUE)
        return canvas.pixels

    def close(self) -> None:
        """Releases nothing."""


def _look(positions: np.ndarray, landmarks: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Writes what all agents of E copies observe.

    Args:
        positions: ``[2, N, E]``.
        landmarks: ``[2, L, E]``.
        seen: ``[N, size, E]``, to write to.

    Returns:
        The parts of ``seen`` with the distances to the landmarks, ``[2, N, L, E]``, and to the others,
        ``[2, N, N - 1, E]``.
    """
    _, agents, copies = positions.shape
    n_landmarks, others = landmarks.shape[1], agents - 1
    seen[:, :2] = positions.swapaxes(0, 1)
    split = 2 + 2 * n_landmarks
    to_landmarks = seen[:, 2:split].reshape(agents, 2, n_landmarks, copies).swapaxes(0, 1)
    to_others = seen[:, split:].reshape(agents, 2, others, copies).swapaxes(0, 1)
    np.subtract(landmarks[:, None], positions[:, :, None], out=to_landmarks)
    around = np.concatenate([positions, positions], axis=1)[:, 1:]  # the others of agent i stand from place i on
    along_xy, along_agents, along_copies = around.strides
    following = as_strided(
        around, to_others.shape, (along_xy, along_agents, along_agents, along_copies), writeable=False
    )
    np.subtract(following, positions[:, :, None], out=to_others)
    return to_landmarks, to_others


class SpreadEnv(ParallelEnv[str, Any, Any]):
    """One copy of ``SpreadBatch``, whose arguments it takes, as a PettingZoo environment.

    A seed starts the same episode in both.

    Args:
        **settings: As for ``SpreadBatch``, but for ``num_envs``.
    """

    metadata = SpreadBatch.metadata

    def __init__(self, **settings: Any) -> None:
        self.batch = SpreadBatch(num_envs=1, **settings)
        self.render_mode = self.batch.render_mode
        self.possible_agents = list(self.batch.possible_agents)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Box:
        return self.batch.observation_space(agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.batch.action_space(agent)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Starts an episode; without a seed it follows from the one before."""
        observations = self.batch.reset([seed])
        self.agents = self.possible_agents[:]
        return self._by_agent(observations[0].copy()), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Moves all agents.

        Raises:
            RuntimeError: If the episode is over or was never started.
            ValueError: If an agent has no action, or one outside its action space.
        """
        if not self.agents:
            raise RuntimeError("spread_v0: step() needs a running episode, but there is none. Call reset() first.")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ValueError(f"spread_v0: agents {missing} have no action. Pass one for each of env.agents.")
        joint = np.stack([np.asarray(actions[agent]) for agent in self.agents])[None]
        observations, rewards, terminations, truncations, _ = self.batch.step(joint)
        told = (
            self._by_agent(observations[0].copy()),
            self._by_agent(rewards[0].tolist()),
            self._by_agent(terminations[0].tolist()),
            self._by_agent(truncations[0].tolist()),
            {agent: {} for agent in self.agents},
        )
        if truncations[0, 0]:
            self.agents = []
        return told

    def _by_agent(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))

    def state(self) -> np.ndarray:
        """``[2 * (n_agents + n_landmarks)]`` float32: x of all agents and landmarks, then y."""
        return self.batch.state()[0]

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """As ``SpreadBatch.render``."""
        return self.batch.render()

    def close(self) -> None:
        """Releases nothing."""


def batched_env(
    *,
    num_envs: int,
    n_agents: int = 8,
    n_landmarks: int | None = None,
    ep_len: int = 50,
    speed: float = 0.1,
    radius: float = 0.05,
    collision_penalty: float = 0.25,
    continuous_actions: bool = False,
    render_mode: str | None = None,
) -> SpreadBatch:
    """Many copies as one set of arrays; arguments as in ``SpreadBatch``."""
    return SpreadBatch(
        num_envs=num_envs,
        n_agents=n_agents,
        n_landmarks=n_landmarks,
        ep_len=ep_len,
        speed=speed,
        radius=radius,
        collision_penalty=collision_penalty,
        continuous_actions=continuous_actions,
        render_mode=render_mode,
    )


def parallel_env(
    *,
    n_agents: int = 8,
    n_landmarks: int | None = None,
    ep_len: int = 50,
    speed: float = 0.1,
    radius: float = 0.05,
    collision_penalty: float = 0.25,
    continuous_actions: bool = False,
    render_mode: str | None = None,
) -> SpreadEnv:
    """One copy under the name that PettingZoo's modules use; arguments as in ``SpreadBatch``."""
    return SpreadEnv(
        n_agents=n_agents,
        n_landmarks=n_landmarks,
        ep_len=ep_len,
        speed=speed,
        radius=radius,
        collision_penalty=collision_penalty,
        continuous_actions=continuous_actions,
        render_mode=render_mode,
    )
