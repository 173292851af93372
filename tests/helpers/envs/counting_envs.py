"""Environments whose observations and rewards follow from the step number: parallel, turn-based, for one agent.

Of agent ``i`` at step ``t``, each number of a Box observation is ``LEVELS[t] + i / 2``, a Discrete one is
``LEVELS[t] % n``.
Images of shape ``[h, w, 3]`` have ``10 * (c + 1) * LEVELS[t]`` in channel ``c``; those of shape ``[h, w]`` count their
pixels from ``LEVELS[t]`` in tens. What the environment is told to do is kept in ``played``. And wrappers for them.
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import BaseParallelWrapper

LEVELS = (0, 3, 1, 2, 5, 4, 6, 8, 7)
NUMBERS = spaces.Box(-10, 10, (2,), np.float32)
MOVES = spaces.Box(-1, 1, (2,), np.float32)
IMAGE = spaces.Box(0, 255, (2, 2, 3), np.uint8)
GREY = spaces.Box(0, 255, (2, 2), np.uint8)


def observation(space, t, i):
    """Of agent ``i`` at step ``t``."""
    if isinstance(space, spaces.Discrete):
        return LEVELS[t] % int(space.n)
    if isinstance(space, spaces.Dict):
        return {name: observation(part, t, i) for name, part in space.items()}
    if len(space.shape) == 3:
        return np.broadcast_to(10 * LEVELS[t] * np.arange(1, 4), space.shape).astype(space.dtype)
    if len(space.shape) == 2 and space.dtype == np.uint8:
        return (LEVELS[t] + 10 * np.arange(space.shape[0] * space.shape[1])).reshape(space.shape).astype(np.uint8)
    return np.full(space.shape, LEVELS[t] + i / 2, space.dtype)


class CountingEnv(ParallelEnv):
    """All act at once, ``steps`` times. Agent ``i`` is paid ``3 * t + i`` after step ``t``.

    Args:
        obs: An observation space, or one for each agent.
        act: An action space, or one for each agent.
        agents: Their ids.
        steps: Everybody is truncated then.
        die: At which step an agent terminates.
        has_rng: Whether there is the ``np_random`` that SuperSuit's ``frame_skip_v0`` asks for.
    """

    metadata = {"name": "counting", "render_modes": []}

    def __init__(self, obs=NUMBERS, act=MOVES, agents=("a_0", "a_1"), steps=4, die=None, has_rng=True):
        self.possible_agents = list(agents)
        self.spaces = obs, act
        self.steps, self.die, self.has_rng = steps, die or {}, has_rng
        self.agents, self.played = [], []

    def _space(self, kind, agent):
        space = self.spaces[kind]
        return space[agent] if isinstance(space, dict) else space

    def observation_space(self, agent):
        return self._space(0, agent)

    def action_space(self, agent):
        return self._space(1, agent)

    def _observe(self, agents):
        return {a: observation(self.observation_space(a), self.t, self.possible_agents.index(a)) for a in agents}

    def reset(self, seed=None, options=None):
        self.t, self.agents, self.played = 0, list(self.possible_agents), []
        if self.has_rng:
            self.np_random = np.random.default_rng(seed)
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        acting = self.agents
        assert list(actions) == acting
        self.played.append({agent: np.asarray(action).tolist() for agent, action in actions.items()})
        ends = {agent: self.die.get(agent) == self.t for agent in acting}
        over = self.t >= self.steps
        self.agents = [] if over else [agent for agent in acting if not ends[agent]]
        return (
            self._observe(acting),
            {agent: float(3 * self.t + self.possible_agents.index(agent)) for agent in acting},
            ends,
            {agent: over and not ends[agent] for agent in acting},
            {agent: {} for agent in acting},
        )


class CountingTurns(AECEnv):
    """The same by turns. Who acts in turn ``t`` is paid ``t``, the others -0.5; after ``steps`` turns it is over."""

    metadata = {"name": "counting turns", "render_modes": [], "is_parallelizable": False}
    render_mode = None

    def __init__(self, obs=NUMBERS, act=MOVES, agents=("a_0", "a_1"), steps=4):
        super().__init__()
        self.possible_agents = list(agents)
        self.spaces = obs, act
        self.steps, self.played = steps, []

    observation_space, action_space, _space = (
        CountingEnv.observation_space,
        CountingEnv.action_space,
        CountingEnv._space,
    )

    def observe(self, agent):
        return observation(self.observation_space(agent), self.t, self.possible_agents.index(agent))

    def reset(self, seed=None, options=None):
        self.t, self.agents, self.played = 0, list(self.possible_agents), []
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.t += 1
        self.played.append((agent, np.asarray(action).tolist()))
        self._cumulative_rewards[agent] = 0.0
        self.rewards = {other: float(self.t) if other == agent else -0.5 for other in self.agents}
        self.truncations = dict.fromkeys(self.agents, self.t >= self.steps)
        self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self._accumulate_rewards()


class CountingGym(gymnasium.Env):
    """The same for one agent, which is paid ``3 * t``."""

    def __init__(self, obs=NUMBERS, act=MOVES, steps=4):
        self.observation_space, self.action_space, self.steps, self.played = obs, act, steps, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.played = 0, []
        return observation(self.observation_space, 0, 0), {}

    def step(self, action):
        self.t += 1
        self.played.append(np.asarray(action).tolist())
        return observation(self.observation_space, self.t, 0), 3.0 * self.t, False, self.t >= self.steps, {}


class Plus(BaseParallelWrapper):
    """Adds a number to all observations."""

    def __init__(self, env, number=1.0):
        super().__init__(env)
        self.number = number

    def _add(self, observations):
        return {agent: value + np.float32(self.number) for agent, value in observations.items()}

    def reset(self, seed=None, options=None):
        observations, infos = super().reset(seed=seed, options=options)
        return self._add(observations), infos

    def step(self, actions):
        observations, *rest = super().step(actions)
        return self._add(observations), *rest


class Times(Plus):
    """Multiplies all observations."""

    def _add(self, observations):
        return {agent: value * np.float32(self.number) for agent, value in observations.items()}


def plus_seven(env):
    return Plus(env, 7)
