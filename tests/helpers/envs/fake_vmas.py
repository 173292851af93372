"""A stand-in for the package ``vmas``, with its interface: a list of tensors over agents, one random state for all."""

from __future__ import annotations

import types

import numpy as np
import torch


class Box:
    """A space of the old package gym."""

    def __init__(self, low, high, shape):
        self.low, self.high = np.full(shape, low, np.float32), np.full(shape, high, np.float32)
        self.dtype = np.dtype(np.float32)


class Discrete:
    def __init__(self, n):
        self.n = n


class MultiDiscrete:
    def __init__(self, nvec):
        self.nvec = nvec


class Dict:
    def __init__(self, spaces):
        self.spaces = spaces


class Environment:
    """Points that actions move, and that a little noise moves too. A copy whose first point gets beyond 3 is over."""

    vmas_random_state = [np.random.default_rng(0).bit_generator.state]

    def __init__(self, scenario, num_envs, *, continuous_actions, max_steps, multidiscrete_actions, noise=0.1, blur=0):
        self.unlike, self.num_envs, self.max_steps = scenario == "unlike", num_envs, max_steps
        self.noise, self.blur = noise, blur
        self.agents = [types.SimpleNamespace(name=f"agent_{i}") for i in range(3)]
        self.spots, self.steps = torch.zeros(num_envs, 3, 2), torch.zeros(num_envs)
        self.continuous, self.multi, self.viewer = continuous_actions, multidiscrete_actions, None
        seen = [Box(-np.inf, np.inf, (2,))] * 2
        seen.append(Dict({"spot": Box(-np.inf, np.inf, (2,))}) if self.unlike else seen[0])
        self.observation_space = types.SimpleNamespace(spaces=seen)
        act = Box(-1.0, 1.0, (2,)) if continuous_actions else MultiDiscrete([3, 3]) if self.multi else Discrete(9)
        self.action_space = types.SimpleNamespace(spaces=[act] * 3)
        self.calls = []

    def _draw(self, *shape):
        rng = np.random.default_rng(0)
        rng.bit_generator.state = self.vmas_random_state[0]
        drawn = torch.from_numpy(rng.normal(size=shape)).float()
        self.vmas_random_state[0] = rng.bit_generator.state
        return drawn

    def seed(self, seed):
        self.vmas_random_state[0] = np.random.default_rng(seed).bit_generator.state

    def reset(self, return_observations=True):
        self.calls.append("reset")
        self.spots, self.steps = self._draw(self.num_envs, 3, 2), torch.zeros(self.num_envs)

    def reset_at(self, index, return_observations=True):
        self.calls.append(f"reset {index}")
        self.spots[index], self.steps[index] = self._draw(3, 2), 0

    def get_from_scenario(self, *, get_observations, get_rewards, get_infos, get_dones):
        return [self._seen()]

    def _seen(self):
        spots = self.spots + self.blur * self._draw(self.num_envs, 3, 2) if self.blur else self.spots.clone()
        found = [spots[:, i] for i in range(3)]
        if self.unlike:
            found[2] = {"spot": found[2]}
        return found

    def step(self, actions):
        for i, action in enumerate(actions):
            if self.continuous:
                assert action.shape == (self.num_envs, 2)
                assert action.dtype == torch.float32
                moved = action.clamp(-1, 1)
            elif self.multi:
                moved = action - 1.0
            else:
                assert action.shape == (self.num_envs, 1)
                moved = torch.stack([action[:, 0] // 3, action[:, 0] % 3], dim=1) - 1.0
            self.spots[:, i] += moved
        self.spots += self.noise * self._draw(self.num_envs, 3, 2)
        self.steps += 1
        rewards = [self.spots[:, i].sum(1) for i in range(3)]
        infos = [{"norm": self.spots[:, i].norm(dim=1), f"only {i}": self.steps} for i in range(3)]
        return self._seen(), rewards, self.spots[:, 0].norm(dim=1) > 3, self.steps >= self.max_steps, infos

    def render(self, mode, env_index):
        raise ImportError("no display")


def install(monkeypatch, folder):
    """Lets ``import vmas`` find this, with the scenarios ``alike`` and ``unlike``."""
    (folder / "scenarios").mkdir()
    for name in ("alike", "unlike"):
        (folder / "scenarios" / f"{name}.py").touch()

    def make_env(scenario, num_envs, device, seed, clamp_actions, terminated_truncated, **settings):
        assert terminated_truncated
        env = Environment(scenario, num_envs, **settings)
        env.seed(seed)
        env.reset()
        return env

    vmas, simulator = types.ModuleType("vmas"), types.ModuleType("vmas.simulator")
    module = types.ModuleType("vmas.simulator.environment")
    vmas.__file__, vmas.make_env = str(folder / "__init__.py"), make_env
    vmas.simulator, simulator.environment, module.Environment = simulator, module, Environment
    for name, own in {"vmas": vmas, "vmas.simulator": simulator, "vmas.simulator.environment": module}.items():
        monkeypatch.setitem(__import__("sys").modules, name, own)
