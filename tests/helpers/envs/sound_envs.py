"""Little environments that do everything right, for tests to break one thing each, and what finds the finding."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marl_connectors.environments.check.check_env import check_env

SMALL = {"episodes": 2, "conformance": False}
BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)


class Sound(ParallelEnv):
    """Two agents, five steps, everything right. Subclasses break one thing each."""

    metadata = {"name": "sound", "render_modes": []}
    length = 5

    def __init__(self, render_mode=None):
        self.possible_agents = ["a", "b"]
        self.render_mode = render_mode
        self.agents = []
        self.observation_spaces = {a: spaces.Box(-1.0, 1.0, (3,), np.float32) for a in self.possible_agents}
        self.action_spaces = {a: spaces.Discrete(4) for a in self.possible_agents}
        self.state_space = spaces.Box(-1.0, 1.0, (3,), np.float32)

    def observation_space(self, agent):
        return self.observation_spaces[agent]

    def action_space(self, agent):
        return self.action_spaces[agent]

    def seeded(self, seed):
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)

    def observe(self, agent):
        return self.rng.uniform(-1, 1, 3).astype(np.float32)

    def info(self, agent):
        return {}

    def reset(self, seed=None, options=None):
        self.seeded(seed)
        self.t = 0
        self.agents = list(self.possible_agents)
        return {a: self.observe(a) for a in self.agents}, {a: self.info(a) for a in self.agents}

    def rewards(self, actions):
        return {a: float(actions[a]) if np.ndim(actions[a]) == 0 else 0.0 for a in actions}

    def flags(self, acting):
        over = self.t >= self.length
        return dict.fromkeys(acting, False), dict.fromkeys(acting, over)

    def step(self, actions):
        acting = self.agents
        assert list(actions) == acting
        self.t += 1
        terminations, truncations = self.flags(acting)
        self.agents = self.survivors(acting, terminations, truncations)
        observations = {a: self.observe(a) for a in acting}
        return observations, self.rewards(actions), terminations, truncations, {a: self.info(a) for a in acting}

    def survivors(self, acting, terminations, truncations):
        return [a for a in acting if not (terminations.get(a) or truncations.get(a))]

    def state(self):
        return np.zeros(3, np.float32)


class Returning(Sound):
    """Agent b ends and comes back."""

    length = 7

    def flags(self, acting):
        terminations, truncations = super().flags(acting)
        return terminations | {a: self.t == 2 and a == "b" for a in acting}, truncations

    def survivors(self, acting, terminations, truncations):
        back = ["b"] if self.t == 4 else []
        return super().survivors(acting, terminations, truncations) + back

    def step(self, actions):
        result = super().step(actions)
        if self.t == 4:
            result[0]["b"] = self.observe("b")
        return result


class SoundAEC(AECEnv):
    """The same, one after another."""

    metadata = {"name": "sound_aec", "render_modes": [], "is_parallelizable": True}
    rounds = 3

    def __init__(self, render_mode=None):
        super().__init__()
        self.possible_agents = ["a_0", "b_0"]
        self.render_mode = render_mode
        self._observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
        self._action_spaces = {a: spaces.Discrete(4) for a in self.possible_agents}

    def observation_space(self, agent):
        return self._observation_space

    def action_space(self, agent):
        return self._action_spaces[agent]

    def observe(self, agent):
        return np.full(3, self.noise, np.float32)

    def reset(self, seed=None, options=None):
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {a: {} for a in self.agents}
        self.agent_selection = self.agents[0]
        self.noise = self.rng.uniform(-1, 1)
        self.turn = 0

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.before(agent)
        self.turn += 1
        self.noise = self.rng.uniform(-1, 1)
        for other in self.agents:
            self.rewards[other] = int(action) + 1 if other == agent else -1
        if self.turn >= 2 * self.rounds:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        self.after(agent)

    def before(self, agent):
        self._clear_rewards()
        self._cumulative_rewards[agent] = 0

    def after(self, agent):
        self._accumulate_rewards()

    def close(self):
        pass

    def render(self):
        pass


class SoundGym(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action[0]), False, self.t >= 4, {}


def found(env, kind, level=None, **options):
    """The one finding of a kind, after a look at its texts."""
    report = check_env(env, **{**SMALL, **options})
    findings = [finding for finding in report.findings if finding.kind == kind]
    assert len(findings) == 1, f"{kind}: {len(findings)} of them in\n{report}"
    (finding,) = findings
    assert level is None or finding.level == level, report
    assert finding.what.endswith("."), finding
    assert finding.advice or kind == "conformance"
    return finding


def kinds(report):
    return {finding.kind for finding in report.findings}
