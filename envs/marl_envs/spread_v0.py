"""Agents spread out to cover landmarks. Many sub-environments are stepped together with arrays."""

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
"""The x and y components of staying, left, right, down and up."""


class SpreadBatch:
    """``num_envs`` independent square worlds in which agents are rewarded for being near all landmarks.

    Agents move in the square [-1, 1]², and stop at its edges. The reward of every agent of a sub-environment is minus
    the mean, over the landmarks, of the distance to the agent that is nearest to the landmark. In addition, each agent
    loses ``collision_penalty`` for each other agent that is closer to it than ``2 * radius``. So agents have to share
    the landmarks among them. Positions and landmarks are drawn uniformly in each reset.

    An observation is ``[2 + 2 * n_landmarks + 2 * (n_agents - 1)]`` float32: the agent's position, the x and then the y
    distances to the landmarks, and then those to the other agents, in cyclic order after the agent: 3, 0, 1 for
    ``agent_2`` of four.

    No return can reach 0. A step consists of about twenty array operations for all sub-environments together. The
    arrays that ``step`` and ``reset`` return are used again in the next call.

    Args:
        num_envs: The number of sub-environments.
        n_agents: The number of agents in a sub-environment. They are called ``agent_0``, ``agent_1`` and so on.
        n_landmarks: The number of landmarks; None for as many as agents.
        ep_len: The number of steps after which all agents of a sub-environment are truncated.
        speed: The largest distance that an agent moves in a step, along each axis.
        radius: The radius of an agent, for collisions.
        collision_penalty: The reward that each of two agents that touch loses in a step.
        continuous_actions: Whether actions are velocities, ``[2]`` float32 in [-1, 1], instead of the integers 0 to 4,
            which stand for staying, left, right, down and up.
        render_mode: ``"rgb_array"``, or None if ``render`` is not used.

    Raises:
        ValueError: If an argument is outside its range.
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
        self._t = np.full(num_envs, ep_len)  # no episode is running before the first reset
        # The last axis of all arrays is that of the sub-environments, which is several times faster than the first one.
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
        """Returns the observation space of one agent. It is the same for all agents."""
        return self._observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Returns the action space of one agent. It is the same for all agents."""
        return self._action_space

    def reset(self, seeds: Sequence[int | None], mask: np.ndarray | None = None) -> np.ndarray:
        """Starts episodes.

        Args:
            seeds: A seed for each sub-environment, on which alone its episode depends. Without one, the episode follows
                from the previous one.
            mask: ``[num_envs]`` bool, the sub-environments to reset; None for all. Seeds of others are not used.

        Returns:
            ``[num_envs, n_agents, ...]`` float32, the observations of all sub-environments, reset or not.

        Raises:
            ValueError: If the number of seeds or of mask entries is not ``num_envs``.
        """
        if len(seeds) != self.num_envs:
            raise ValueError(
                f"spread_v0: expected a seed for each of {self.num_envs} sub-environments, but got {len(seeds)}."
            )
        if mask is None:
            which = np.arange(self.num_envs)
        elif np.shape(mask) == (self.num_envs,) and np.asarray(mask).dtype == bool:
            which = np.flatnonzero(mask)
        else:
            raise ValueError(
                f"spread_v0: mask must be [{self.num_envs}] bool, one for each sub-environment, but is "
                f"{np.asarray(mask).dtype} of shape {np.shape(mask)}."
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
        """Moves all agents of all sub-environments, with array operations only, because it must be fast.

        Args:
            actions: ``[num_envs, n_agents]`` integers, or ``[num_envs, n_agents, 2]`` velocities.

        Returns:
            Observations ``[num_envs, n_agents, ...]``, then ``[num_envs, n_agents]`` float32 rewards, terminations
            (always False) and truncations, and empty infos.

        Raises:
            RuntimeError: If the episode of a sub-environment is over.
            ValueError: If the actions are not in their space.
        """
        if self._t.max() >= self.ep_len:
            over = np.flatnonzero(self._t >= self.ep_len).tolist()
            raise RuntimeError(
                f"spread_v0: step() needs running episodes, but those of sub-environments {over[:5]} ({len(over)} of "
                f"{self.num_envs}) are over or were never started. Call reset(seeds, mask) for them first."
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
        """Returns ``[N, M, E]`` squared distances from x and y distances, ``[2, N, M, E]``."""
        squares = self._squares[:, :, : parts.shape[2]]
        np.multiply(parts, parts, out=squares)
        squares[0] += squares[1]
        return squares[0]

    def _moved(self, actions: np.ndarray) -> np.ndarray:
        """Returns ``[2, n_agents, num_envs]``: the x and y movement of each agent."""
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
            f"{actions.shape}{found}. Pass an action for each agent of each sub-environment."
        )

    def state(self) -> np.ndarray:
        """Returns ``[num_envs, 2 * (n_agents + n_landmarks)]`` float32: x of all agents and landmarks, then y."""
        return np.concatenate([self._positions, self._landmarks], axis=1).reshape(-1, self.num_envs).T.copy()

    def render(self, copy: int = 0) -> np.ndarray | None:
        """Returns ``[200, 200, 3]`` uint8: landmarks in green, agents in blue, or red while they touch another one.

        Args:
            copy: The index of the sub-environment.
        """
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
        """Does nothing, because there are no resources to free."""


def _look(positions: np.ndarray, landmarks: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Writes the observations of all ``N`` agents of ``E`` sub-environments.

    Args:
        positions: ``[2, N, E]``.
        landmarks: ``[2, L, E]``.
        seen: ``[N, size, E]``, the array to write to.

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
    around = np.concatenate([positions, positions], axis=1)[:, 1:]  # those after agent i begin at index i
    along_xy, along_agents, along_copies = around.strides
    following = as_strided(
        around, to_others.shape, (along_xy, along_agents, along_agents, along_copies), writeable=False
    )
    np.subtract(following, positions[:, :, None], out=to_others)
    return to_landmarks, to_others


class SpreadEnv(ParallelEnv[str, Any, Any]):
    """``SpreadBatch`` with one sub-environment as a PettingZoo environment. A seed starts the same episode in both.

    Args:
        **settings: The arguments of ``SpreadBatch`` except ``num_envs``.
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
        """Starts an episode. Without a seed, it follows from the previous one."""
        observations = self.batch.reset([seed])
        self.agents = self.possible_agents[:]
        return self._by_agent(observations[0].copy()), {agent: {} for agent in self.agents}

    def step(
        self, actions: dict[str, Any]
    ) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Moves all agents.

        Raises:
            RuntimeError: If the episode is over, or if ``reset`` was never called.
            ValueError: If an agent has no action, or an action outside its action space.
        """
        if not self.agents:
            raise RuntimeError("spread_v0: step() was called without a running episode. Call reset() first.")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise ValueError(f"spread_v0: agents {missing} have no action. Pass an action for each of env.agents.")
        joint = np.stack([np.asarray(actions[agent]) for agent in self.agents])[None]
        observations, rewards, terminations, truncations, _ = self.batch.step(joint)
        results = (
            self._by_agent(observations[0].copy()),
            self._by_agent(rewards[0].tolist()),
            self._by_agent(terminations[0].tolist()),
            self._by_agent(truncations[0].tolist()),
            {agent: {} for agent in self.agents},
        )
        if truncations[0, 0]:
            self.agents = []
        return results

    def _by_agent(self, values: Any) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))

    def state(self) -> np.ndarray:
        """Returns ``[2 * (n_agents + n_landmarks)]`` float32: x of all agents and landmarks, then y."""
        return self.batch.state()[0]

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """Returns a picture; see ``SpreadBatch.render``."""
        return self.batch.render()

    def close(self) -> None:
        """Does nothing, because there are no resources to free."""


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
    """Returns a natively batched environment. The arguments are those of ``SpreadBatch``."""
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
    """Returns the environment, under the name that PettingZoo's modules use. See ``SpreadBatch`` for arguments."""
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
