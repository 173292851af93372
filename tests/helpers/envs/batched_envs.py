"""Worlds that follow from their seeds: many in one set of arrays, and one at a time as a PettingZoo environment."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

OBSERVATIONS = {
    "box": spaces.Box(-1000.0, 1000.0, (2,), np.float32),
    "float64": spaces.Box(-1000.0, 1000.0, (2,), np.float64),
    "discrete": spaces.Discrete(5),
    "dict": spaces.Dict(
        {"place": spaces.Box(-1000.0, 1000.0, (2, 1), np.float64), "code": spaces.Tuple((spaces.Discrete(5),))}
    ),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "from 5": spaces.Discrete(3, start=5),
    "box": spaces.Box(0.0, 10.0, (2,), np.float32),
    "matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
}


class World:
    """One copy: how long it lasts, what agents see and how it ends follows from the seed and the actions."""

    def __init__(self, num_agents, max_len):
        self.num_agents, self.max_len = num_agents, max_len

    def reset(self, seed):
        self.rng = np.random.default_rng(seed)
        self.length = int(self.rng.integers(1, self.max_len + 1))
        self.is_truncated = bool(self.rng.random() < 0.5)
        self.t = 0
        self.paid = np.zeros(self.num_agents)
        return self._seen()

    def step(self, actions):
        assert self.t < self.length, "a copy whose episode is over was stepped"
        self.t += 1
        self.paid += [float(np.sum(action)) for action in actions]
        rewards = [float(np.sum(action)) + 10 * i + 100 * self.t for i, action in enumerate(actions)]
        over = self.t == self.length
        return self._seen(), rewards, over and not self.is_truncated, over and self.is_truncated

    def _seen(self):
        """For each agent a place, which its actions have moved, and a code."""
        places = self.rng.uniform(-1, 1, (self.num_agents, 2)) + self.paid[:, None]
        return list(zip(places, self.rng.integers(0, 5, self.num_agents), strict=True))


def observation_of(kind, place, code):
    """An agent's observation."""
    if kind == "discrete":
        return code
    if kind == "dict":
        return {"place": place[:, None], "code": (code,)}
    return place.astype(OBSERVATIONS[kind].dtype)


class OneWorld(ParallelEnv):
    """One copy."""

    metadata = {"name": "one_world", "render_modes": []}

    def __init__(self, *, agents=("a", "b", "c"), max_len=6, obs="box", act="discrete", infos=False):
        self.possible_agents = list(agents)
        self.agents = []
        self.world = World(len(agents), max_len)
        self.obs, self.act, self.with_infos = obs, act, infos

    def observation_space(self, agent):
        return OBSERVATIONS[self.obs]

    def action_space(self, agent):
        return ACTIONS[self.act]

    def _by_agent(self, seen):
        return {a: observation_of(self.obs, *own) for a, own in zip(self.possible_agents, seen, strict=True)}

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return self._by_agent(self.world.reset(seed)), {a: {} for a in self.agents}

    def step(self, actions):
        agents = self.agents
        for agent, action in actions.items():
            assert self.action_space(agent).contains(action), action
        seen, rewards, terminated, truncated = self.world.step(list(actions.values()))
        if terminated or truncated:
            self.agents = []
        numbers = self.world.t * 10 + np.arange(len(agents))
        told = {a: {"n": n, "pair": np.array([n, -n])} for a, n in zip(agents, numbers.tolist(), strict=True)}
        infos = told if self.with_infos else {a: {} for a in agents}
        return (
            self._by_agent(seen),
            dict(zip(agents, rewards, strict=True)),
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            infos,
        )


class Worlds:
    """Many copies. The arrays that it gives are the same at every call, and a reset spoils those of the step before."""

    def __init__(self, *, num_envs, agents=("a", "b", "c"), max_len=6, obs="box", act="discrete", infos=False):
        self.num_envs = num_envs
        self.possible_agents = list(agents)
        self.worlds = [World(len(agents), max_len) for _ in range(num_envs)]
        self.obs, self.act, self.with_infos = obs, act, infos
        lead = num_envs, len(agents)
        self.places, self.codes = np.zeros((*lead, 2)), np.zeros(lead, np.int64)
        self.float32 = self.places.astype(np.float32)
        self.rewards, self.terminations, self.truncations = np.zeros(lead), np.zeros(lead, bool), np.zeros(lead, bool)
        self.numbers = np.zeros((*lead, 2), np.int64)
        self.num_steps = self.num_closed = 0

    def observation_space(self, agent):
        return OBSERVATIONS[self.obs]

    def action_space(self, agent):
        return ACTIONS[self.act]

    def _observations(self):
        if self.obs == "discrete":
            return self.codes
        if self.obs == "dict":
            return {"place": self.places[..., None], "code": (self.codes,)}
        if self.obs == "float64":
            return self.places
        self.float32[...] = self.places
        return self.float32

    def _note(self, index, seen):
        for i, (place, code) in enumerate(seen):
            self.places[index, i], self.codes[index, i] = place, code

    def reset(self, seeds, mask=None):
        for index in range(self.num_envs) if mask is None else np.flatnonzero(mask):
            assert seeds[index] is not None
            self._note(index, self.worlds[index].reset(seeds[index]))
        self.rewards[...], self.terminations[...], self.truncations[...], self.numbers[...] = np.nan, 1, 1, -1
        return self._observations()

    def step(self, actions):
        assert isinstance(actions, np.ndarray)
        assert actions.shape == (*self.rewards.shape, *ACTIONS[self.act].shape)
        self.num_steps += 1
        for index, world in enumerate(self.worlds):
            seen, self.rewards[index], self.terminations[index], self.truncations[index] = world.step(actions[index])
            self._note(index, seen)
            numbers = world.t * 10 + np.arange(len(self.possible_agents))
            self.numbers[index] = np.stack([numbers, -numbers], axis=1)
        infos = {"n": self.numbers[..., 0], "pair": self.numbers} if self.with_infos else {}
        return self._observations(), self.rewards, self.terminations, self.truncations, infos

    def close(self):
        self.num_closed += 1


KINDS = {"a": ("box", "discrete"), "b": ("dict", "box"), "c": ("box", "discrete"), "d": ("discrete", "from 5")}
"""Agents, and the kinds of their observations and actions."""


class OneUnlikeWorld(OneWorld):
    """One copy, with agents that have unlike spaces."""

    def __init__(self, **settings):
        super().__init__(agents=KINDS, **settings)

    def observation_space(self, agent):
        return OBSERVATIONS[KINDS[agent][0]]

    def action_space(self, agent):
        return ACTIONS[KINDS[agent][1]]

    def _by_agent(self, seen):
        return {a: observation_of(KINDS[a][0], *own) for a, own in zip(self.possible_agents, seen, strict=True)}


class UnlikeWorlds(Worlds):
    """Many copies, with agents that have unlike spaces: observations and actions are dicts by agent."""

    def __init__(self, *, num_envs, **settings):
        super().__init__(num_envs=num_envs, agents=KINDS, **settings)

    def observation_space(self, agent):
        return OBSERVATIONS[KINDS[agent][0]]

    def action_space(self, agent):
        return ACTIONS[KINDS[agent][1]]

    def _observations(self):
        self.float32[...] = self.places
        found = {}
        for i, (agent, (kind, _)) in enumerate(KINDS.items()):
            place, code = self.places[:, i], self.codes[:, i]
            both = {"place": place[..., None], "code": (code,)}
            found[agent] = {"box": self.float32[:, i], "discrete": code, "dict": both}[kind]
        return found

    def step(self, actions):
        for agent, own in actions.items():
            assert own.shape == (self.num_envs, *self.action_space(agent).shape)
        self.num_steps += 1
        for index, world in enumerate(self.worlds):
            own = [actions[agent][index] for agent in KINDS]
            seen, self.rewards[index], self.terminations[index], self.truncations[index] = world.step(own)
            self._note(index, seen)
            numbers = world.t * 10 + np.arange(len(KINDS))
            self.numbers[index] = np.stack([numbers, -numbers], axis=1)
        infos = {"n": self.numbers[..., 0], "pair": self.numbers} if self.with_infos else {}
        return self._observations(), self.rewards, self.terminations, self.truncations, infos
