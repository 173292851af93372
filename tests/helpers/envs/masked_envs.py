"""Environments that raise on forbidden actions: with masks of all kinds, or in turns."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils import BaseWrapper

LINE = spaces.Box(-1.0, 1.0, (2,), np.float32)


def random_part(rng):
    """An action space with choices, without parts."""
    kind = rng.integers(3)
    if kind == 0:
        return spaces.Discrete(int(rng.integers(2, 6)), start=int(rng.integers(0, 4)))
    if kind == 1:
        return spaces.MultiDiscrete(rng.integers(2, 4, size=int(rng.integers(1, 4))))
    return spaces.MultiBinary(int(rng.integers(1, 4)))


def random_actions_space(rng):
    """A Discrete, MultiDiscrete or MultiBinary space, or a Dict or Tuple of such and a Box."""
    kind = rng.integers(5)
    if kind < 3:
        return random_part(rng)
    parts = [random_part(rng), LINE, random_part(rng)]
    return spaces.Tuple(parts) if kind == 3 else spaces.Dict(dict(zip("abc", parts, strict=True)))


def space_of_masks(space):
    """Of masks in observations."""
    if isinstance(space, spaces.Discrete):
        return spaces.Box(0, 1, (int(space.n),), np.int8)
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.Box(0, 1, (int(space.nvec.sum()),), np.int8)
    if isinstance(space, spaces.MultiBinary):
        return spaces.Box(0, 2, space.shape, np.int8)
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([space_of_masks(part) for part in space.spaces])
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: space_of_masks(p) for key, p in space.spaces.items() if not isinstance(p, spaces.Box)})
    return spaces.Box(0, 1, (0,), np.int8)


def random_mask(space, rng):
    """A mask that allows at least one value of each choice."""
    if isinstance(space, spaces.Discrete):
        mask = (rng.random(int(space.n)) < 0.4).astype(np.int8)
        mask[rng.integers(len(mask))] = 1
        return mask
    if isinstance(space, spaces.MultiDiscrete):
        return np.concatenate([random_mask(spaces.Discrete(int(n)), rng) for n in space.nvec])
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 3, size=space.shape).astype(np.int8)
    if isinstance(space, spaces.Tuple):
        return tuple(random_mask(part, rng) for part in space.spaces)
    if isinstance(space, spaces.Dict):
        return {key: random_mask(p, rng) for key, p in space.spaces.items() if not isinstance(p, spaces.Box)}
    return np.zeros(0, np.int8)


def is_allowed(space, mask, action):
    """Whether a mask, as ``random_mask`` gives it, allows an action. A second, slow implementation."""
    if isinstance(space, spaces.Discrete):
        return bool(mask[int(action) - int(space.start)])
    if isinstance(space, spaces.MultiDiscrete):
        ends = np.cumsum(space.nvec)
        return all(mask[end - n + value] for end, n, value in zip(ends, space.nvec, action, strict=True))
    if isinstance(space, spaces.MultiBinary):
        return all(m in (2, bit) for m, bit in zip(mask, action, strict=True))
    if isinstance(space, spaces.Tuple):
        return all(is_allowed(*parts) for parts in zip(space.spaces, mask, action, strict=True))
    if isinstance(space, spaces.Dict):
        return all(key not in mask or is_allowed(part, mask[key], action[key]) for key, part in space.spaces.items())
    return True


class RandomMasks(ParallelEnv):
    """Agents with random action spaces and masks in observations, in infos or nowhere. A forbidden action raises.

    Agents die at random times, and one may join late. Now and then a mask of a single choice forbids everything: then
    any action may come.

    Args:
        case: Draws who there is; the same number gives the same agents.
        ids: Whose masks are asked for: each of ``"observation"``, ``"info"`` and ``"none"`` may be drawn.
        alike: Whether all agents have the same spaces.
        most: The largest number of agents.
    """

    metadata = {"name": "random_masks", "render_modes": []}
    render_mode = None

    def __init__(self, case=0, places=("observation", "info", "none"), alike=False, most=3):
        rng = np.random.default_rng([case, 7])
        self.possible_agents = [f"agent_{i}" for i in range(int(rng.integers(1, most + 1)))]
        self.agents, self.places, self.extra, self.actions = [], {}, {}, {}
        for agent in self.possible_agents:
            place, extra, actions = str(rng.choice(places)), bool(rng.random() < 0.3), random_actions_space(rng)
            if alike and self.actions:
                first = self.possible_agents[0]
                place, extra, actions = self.places[first], self.extra[first], self.actions[first]
            self.places[agent], self.extra[agent], self.actions[agent] = place, extra, actions
        self.rng = np.random.default_rng(0)

    def observation_space(self, agent):
        if self.places[agent] != "observation":
            return LINE
        more = {"extra": spaces.Discrete(3)} if self.extra[agent] else {}
        return spaces.Dict({"observation": LINE, "action_mask": space_of_masks(self.actions[agent]), **more})

    def action_space(self, agent):
        return self.actions[agent]

    def _told(self, agents):
        seen, infos = {}, {agent: {} for agent in agents}
        for agent in agents:
            space = self.actions[agent]
            mask = random_mask(space, self.rng)
            if isinstance(space, spaces.Discrete) and self.rng.random() < 0.1:
                mask[:] = 0
            self.masks[agent] = mask
            seen[agent] = self.rng.uniform(-1, 1, 2).astype(np.float32)
            if self.places[agent] == "observation":
                seen[agent] = {"observation": seen[agent], "action_mask": mask}
                if self.extra[agent]:
                    seen[agent]["extra"] = int(self.rng.integers(3))
            elif self.places[agent] == "info":
                infos[agent] = {"action_mask": mask}
        return seen, infos

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.masks = 0, {}
        self.agents = self.possible_agents[: max(1, len(self.possible_agents) - int(self.rng.integers(2)))]
        self.late = [agent for agent in self.possible_agents if agent not in self.agents]
        self.ends = {agent: int(self.rng.integers(3, 9)) for agent in self.possible_agents}
        return self._told(self.agents)

    def step(self, actions):
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            space, mask = self.actions[agent], self.masks[agent]
            assert space.contains(action), (space, action)
            waits = isinstance(space, spaces.Discrete) and not mask.any()
            if self.places[agent] != "none" and not waits and not is_allowed(space, mask, action):
                raise ValueError(f"{agent} took {action}, but {mask} of {space} forbids it")
        self.t += 1
        there = [*self.agents, *(self.late if self.t == 2 else [])]
        seen, infos = self._told(there)
        ended = {agent: self.t >= self.ends[agent] for agent in there}
        self.agents = [agent for agent in there if not ended[agent]]
        return seen, {a: float(self.rng.random()) for a in there}, ended, dict.fromkeys(there, False), infos

    def close(self):
        pass


class AloneWithMasks(gym.Env):
    """One agent of RandomMasks, whose masks are in its observations or its infos."""

    def __init__(self, case=0):
        self._game = RandomMasks(case, places=("observation", "info"), most=1)
        (self._agent,) = self._game.possible_agents
        self.observation_space = self._game.observation_space(self._agent)
        self.action_space = self._game.action_space(self._agent)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return tuple(by_agent[self._agent] for by_agent in self._game.reset(seed))

    def step(self, action):
        return tuple(by_agent[self._agent] for by_agent in self._game.step({self._agent: action}))


class StrictTurns(BaseWrapper):
    """A game in turns, in which a move that the mask of the player forbids raises. Counts the moves."""

    moves = 0

    def step(self, action):
        agent = self.agent_selection
        over = self.terminations[agent] or self.truncations[agent]
        if not over and action is not None:
            mask = self.observe(agent)["action_mask"]
            if not mask[int(action)]:
                raise ValueError(f"illegal move {action} of {agent}: {np.flatnonzero(mask)}")
            StrictTurns.moves += 1
        super().step(action)


class Turns(AECEnv):
    """Two players in turns who see whose turn it is. What the mask of player b is at its second turn can be chosen."""

    metadata = {"name": "turns", "render_modes": []}
    render_mode = None

    def __init__(self, mask=(1, 0, 1), in_info=False, space=None):
        super().__init__()
        self.possible_agents, self.mask, self.in_info = ["a", "b"], np.array(mask, np.int8), in_info
        self.space = spaces.Discrete(3) if space is None else space

    def observation_space(self, agent):
        masks = spaces.Box(0, 2 if isinstance(self.space, spaces.MultiBinary) else 1, (3,), np.int8)
        return LINE if self.in_info else spaces.Dict({"observation": LINE, "action_mask": masks})

    def action_space(self, agent):
        return self.space

    def _mask(self, agent):
        if self.agent_selection != agent:
            return np.zeros(3, np.int8)  # of a player who waits
        return self.mask if (agent, self.t) == ("b", 3) else np.ones(3, np.int8)

    def observe(self, agent):
        seen = np.full(2, agent == self.agent_selection, np.float32)
        return seen if self.in_info else {"observation": seen, "action_mask": self._mask(agent)}

    def _tell(self):
        self.infos = {a: {"action_mask": self._mask(a)} if self.in_info else {} for a in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        self.agent_selection = "a"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self._tell()

    def step(self, action):
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        mask = self._mask(self.agent_selection)
        if mask.any() and isinstance(self.space, spaces.Discrete) and not mask[int(action)]:
            raise ValueError(f"illegal move {action} of {self.agent_selection}")
        self.t += 1
        self.agent_selection = "ab"[self.t % 2]
        if self.t == 6:
            self.terminations = dict.fromkeys(self.agents, True)
        self._tell()

    def render(self):
        pass

    def close(self):
        pass


class MaskedBatch:
    """Copies of two agents as arrays, whose masks, in the observation or the info, allow one action. Others raise."""

    def __init__(self, *, num_envs, in_info=False):
        self.num_envs, self.in_info, self.possible_agents = num_envs, in_info, ["a", "b"]
        self.t = np.zeros(num_envs, int)

    def observation_space(self, agent):
        return (
            LINE if self.in_info else spaces.Dict({"observation": LINE, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
        )

    def action_space(self, agent):
        return spaces.Discrete(3)

    @property
    def masks(self):
        return np.stack([np.eye(3, dtype=np.int8)[self.t % 3], np.eye(3, dtype=np.int8)[(self.t + 1) % 3]], axis=1)

    def _observations(self):
        seen = np.full((self.num_envs, 2, 2), 0.5, np.float32)
        return seen if self.in_info else {"observation": seen, "action_mask": self.masks}

    def reset(self, seeds, mask=None):
        self.t[slice(None) if mask is None else mask] = 0
        return self._observations()

    def step(self, actions):
        after_reset = self.in_info & (self.t == 0)  # resets have no infos, so that any action may come
        allowed = np.take_along_axis(self.masks, actions[..., None], 2)[..., 0].astype(bool) | after_reset[:, None]
        if not allowed.all():
            raise ValueError(f"forbidden: {actions.tolist()}")
        self.t += 1
        ended = np.repeat((self.t == 5)[:, None], 2, axis=1)
        infos = {"action_mask": self.masks} if self.in_info else {}
        return self._observations(), np.ones((self.num_envs, 2)), ended, np.zeros_like(ended), infos

    def close(self):
        pass


class ToldMasks(ParallelEnv):
    """Agents whose observations are their masks, beside the masks themselves. A forbidden action raises.

    Agents are terminated or truncated alone, may join again, and all are truncated by a time limit.

    Args:
        place: Where the masks are, ``"observation"`` or ``"info"``.
        most: The number of agents that may appear.
        die: The probability that an agent ends in a step, in half of the cases by a truncation.
        max_steps: The time limit.
        only: The actions that are ever allowed.
    """

    metadata = {"name": "told_masks", "render_modes": []}
    render_mode = None

    def __init__(self, place="observation", most=3, die=0.1, max_steps=5, only=(0, 1, 2)):
        self.possible_agents = [f"agent_{i}" for i in range(most)]
        self.place, self.die, self.max_steps, self.only = place, die, max_steps, list(only)
        self.agents, self.rng = [], np.random.default_rng(0)

    def observation_space(self, agent):
        seen = spaces.Box(0.0, 1.0, (3,), np.float32)
        if self.place == "info":
            return seen
        return spaces.Dict({"observation": seen, "action_mask": spaces.Box(0, 1, (3,), np.int8)})

    def action_space(self, agent):
        return spaces.Discrete(3)

    def _told(self, agents):
        seen, infos = {}, {agent: {} for agent in agents}
        for agent in agents:
            mask = np.zeros(3, np.int8)
            mask[self.only] = self.rng.random(len(self.only)) < 0.5
            mask[self.rng.choice(self.only)] = 1
            self.masks[agent] = mask
            seen[agent] = mask.astype(np.float32)
            if self.place == "observation":
                seen[agent] = {"observation": seen[agent], "action_mask": mask}
            else:
                infos[agent] = {"action_mask": mask}
        return seen, infos

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.t, self.masks, self.agents = 0, {}, list(self.possible_agents)
        return self._told(self.agents)

    def step(self, actions):
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            if not self.masks[agent][action]:
                raise ValueError(f"{agent} took {action}, but {self.masks[agent]} forbids it")
        self.t += 1
        ended = [a for a in self.agents if self.rng.random() < self.die]
        joined = [a for a in self.possible_agents if a not in self.agents and self.rng.random() < 0.3]
        there = [*self.agents, *joined]
        over, cut = dict.fromkeys(there, False), dict.fromkeys(there, self.t >= self.max_steps)
        for agent in ended:
            (over if self.rng.random() < 0.5 else cut)[agent] = True
        seen, infos = self._told(there)
        self.agents = [a for a in there if not over[a] and not cut[a]]
        return seen, dict.fromkeys(there, 0.0), over, cut, infos

    def close(self):
        pass


class AloneWithToldMasks(gym.Env):
    """The single agent of ToldMasks."""

    def __init__(self, **settings):
        self._game = ToldMasks(**{**settings, "most": 1})
        (self._agent,) = self._game.possible_agents
        self.observation_space = self._game.observation_space(self._agent)
        self.action_space = self._game.action_space(self._agent)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return tuple(by_agent[self._agent] for by_agent in self._game.reset(seed))

    def step(self, action):
        return tuple(by_agent[self._agent] for by_agent in self._game.step({self._agent: action}))
