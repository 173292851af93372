"""Environments that fail in every way, at steps that follow from the reset's seed; importable in worker processes."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from helpers.envs.random_aec import RandomAEC
from helpers.envs.scripted_envs import BOX, LifeEnv
from helpers.runs.hanging_workers import say_that_this_hangs

DICT = spaces.Dict({"mask": spaces.MultiBinary(3), "seen": spaces.Tuple((BOX, spaces.Discrete(9)))})


class DictEnv(LifeEnv):
    """Observations that are nested, and for agent ``"b"`` numbers."""

    def observation_space(self, agent):
        return spaces.Box(-9.0, 9.0, (), np.float64) if agent == "b" else DICT

    def _observe(self, agent):
        number, info = self.rng.random(), {"at": np.arange(self.t)} if self.rng.random() < 0.5 else {}
        if agent == "b":
            return number, info
        seen = np.array([number, self.t], np.float32), int(self.rng.integers(9))
        return {"mask": np.ones(3, np.int8), "seen": seen}, info


class KeepingEnv(LifeEnv):
    """Keeps the very actions that it gets, and pays for the first of them at every step."""

    def action_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, seed=None, options=None):
        self.first = {}
        return super().reset(seed, options)

    def step(self, actions):
        observations, _, *rest = super().step(actions)
        rewards = {a: float(self.first.setdefault(a, action).sum()) for a, action in actions.items()}
        return observations, rewards, *rest


class GrowingEnv(ParallelEnv):
    """An agent more in every step, none of which was announced."""

    metadata = {"name": "growing", "render_modes": []}
    agents = ()

    def observation_space(self, agent):
        return BOX

    def action_space(self, agent):
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.total = ["agent_0"], np.zeros(2, np.float32)
        return {"agent_0": self.total}, {"agent_0": {}}

    def step(self, actions):
        self.total = self.total + sum(actions.values())
        acted = self.agents
        self.agents = [*acted, f"agent_{len(acted)}"] if len(acted) < 40 else []
        flags = dict.fromkeys(acted, not self.agents)
        names = self.agents or acted
        return dict.fromkeys(names, self.total), dict.fromkeys(acted, 1.0), flags, flags, {a: {} for a in names}


class FailingEnv(LifeEnv):
    """A LifeEnv that fails as named, with a chance in each step; one that failed is of no use any more.

    Args:
        chance: In each step.
        ways: Which failures there are; see ``fail``.
        settings: Of the LifeEnv.
    """

    def __init__(self, *, chance=0.1, ways=("raise",), **settings):
        super().__init__(**{"max_steps": 12, **settings})
        self.chance, self.ways, self.has_failed = chance, ways, False

    def reset(self, seed=None, options=None):
        assert not self.has_failed, "this environment has failed before"
        given = super().reset(seed, options)
        self.failing = np.random.default_rng([seed, 1])
        if "reset" in self.ways and self.failing.random() < self.chance:
            self.has_failed = True
            raise RuntimeError("no reset today")
        return given

    def step(self, actions):
        assert not self.has_failed, "this environment has failed before"
        given = super().step(actions)
        if self.failing.random() >= self.chance:
            return given
        way = str(self.failing.choice(self.ways))
        if way != "reset":
            self.has_failed = True
            return self.fail(way, *given)
        return given

    def fail(self, way, obs, rewards, terminations, truncations, infos):
        agent = next(iter(obs))
        match way:
            case "raise":
                raise ValueError("the environment broke")
            case "shape":
                obs = {**obs, agent: np.zeros(7, np.float32)}
            case "text":
                obs = {**obs, agent: "nonsense"}
            case "nan":
                obs = {**obs, agent: np.array([0.0, np.nan], np.float32)}
            case "reward":
                rewards = dict.fromkeys(rewards, np.nan)
            case "none":
                return None
            case "four":
                return obs, rewards, terminations, truncations
            case "no observations":
                obs = None
            case "no rewards":
                rewards = None
            case "exit":
                sys.exit(3)
            case "missing":
                obs = {}
            case "hang":
                os.write(1, b"hangs\n")  # in one piece: others write there, too
                hang("sleep")
            case "lock":
                os.write(1, b"hangs\n")
                re.match(r"(a+)+b", "a" * 60)  # takes for ever, and keeps Python's lock
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return obs, rewards, terminations, truncations, infos


class FailingResets(LifeEnv):
    """Fails in the resets with certain seeds.

    Args:
        seeds: Which.
        way: ``"kill"``, ``"hang"`` or ``"raise"``.
        settings: Of the LifeEnv.
    """

    def __init__(self, *, seeds, way, **settings):
        super().__init__(**settings)
        self.seeds, self.way = seeds, way

    def reset(self, seed=None, options=None):
        if seed in self.seeds:
            match self.way:
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "hang":
                    hang("sleep")
                case "raise":
                    raise ValueError("no reset today")
        return super().reset(seed, options)


def hang(way):
    """Never returns: asleep, at a lock that nobody opens, or busy with a number, which keeps Python's lock."""
    say_that_this_hangs()
    match way:
        case "sleep":
            while True:
                time.sleep(10**6)
        case "lock":
            threading.Lock().acquire() and threading.Barrier(2).wait()
        case "busy":
            7 ** (10**10)


class HangingEnv(LifeEnv):
    """Hangs in one of its methods, but not in the process that the test runs in.

    Args:
        where: ``"make"``, ``"reset"``, ``"step"`` or ``"close"``.
        way: See ``hang``; or ``"exit"`` to end the process, ``"fork"`` to leave a child behind and hang.
        here: The process that is spared; None for none.
        file: Hangs only if there is a file of this name, which it removes. A child that is left behind is named there.
        settings: Of the LifeEnv.
    """

    def __init__(self, *, where, way="sleep", here=None, file=None, **settings):
        super().__init__(**settings)
        self.where, self.way, self.here, self.file = where, way, here, file
        self._come_to("make")

    def _come_to(self, where):
        if where != self.where or os.getpid() == self.here:
            return
        match self.way:
            case "exit":
                os._exit(3)
            case "fork":
                child = os.fork()
                if child:
                    Path(self.file).write_text(str(child))
                hang("sleep")
        if self.file is not None:
            try:
                os.unlink(self.file)
            except FileNotFoundError:
                return
        hang(self.way)

    def reset(self, seed=None, options=None):
        self._come_to("reset")
        return super().reset(seed, options)

    def step(self, actions):
        self._come_to("step")
        return super().step(actions)

    def close(self):
        self._come_to("close")


class LeavesChild(LifeEnv):
    """Forks a process in the first reset, which waits; its id is in a file."""

    def __init__(self, file):
        super().__init__()
        self.file = Path(file)

    def reset(self, seed=None, options=None):
        if not self.file.exists():
            child = os.fork()
            if not child:
                hang("sleep")
            self.file.write_text(str(child))
        return super().reset(seed, options)


class HardToMake(LifeEnv):
    """Fails once while it is made if there is a file of this name, which says how."""

    def __init__(self, file):
        super().__init__()
        if Path(file).exists():
            way = Path(file).read_text()
            Path(file).unlink()
            if way == "hang":
                hang("sleep")
            raise RuntimeError("the licence server is busy")


class FailingTurns(RandomAEC):
    """A turn-based environment that raises with a chance in each turn."""

    def reset(self, seed=None, options=None):
        self.failing = np.random.default_rng([seed, 1])
        super().reset(seed, options)

    def step(self, action):
        if self.failing.random() < 0.1:
            raise ValueError("the game broke")
        super().step(action)


class Broken(LifeEnv):
    """Plays for some steps over all environments of a process, and never again."""

    steps_left = 30

    def step(self, actions):
        Broken.steps_left -= 1
        if Broken.steps_left < 0:
            raise ValueError("for good")
        return super().step(actions)


class Unsendable(LifeEnv):
    """An info that no pickle can hold."""

    def step(self, actions):
        observations, rewards, terminations, truncations, _ = super().step(actions)
        return observations, rewards, terminations, truncations, {a: {"f": lambda: 0} for a in observations}


def make_raising():
    raise ValueError("not today")
