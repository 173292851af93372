"""A Gymnasium environment that follows from its seed, and VectorEnvs of it with all autoreset modes."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorWrapper

try:
    from gymnasium.vector import AutoresetMode
except ImportError:  # Gymnasium 1.0, where all VectorEnvs begin anew in the next step, and say nothing of it
    AutoresetMode = None

PLACE = spaces.Box(-1000.0, 1000.0, (2,), np.float64)
OBSERVATIONS = {
    "box": spaces.Box(-1000.0, 1000.0, (2,), np.float32),
    "discrete": spaces.Discrete(5),
    "dict": spaces.Dict({"place": PLACE, "more": spaces.Tuple((spaces.Discrete(5), PLACE))}),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "from 5": spaces.Discrete(3, start=5),
    "box": spaces.Box(0.0, 10.0, (2,), np.float32),
    "multi": spaces.MultiDiscrete([2, 3]),
}


class Walk(gym.Env):
    """Episodes of 1 to ``max_len`` steps, terminated, truncated or both; infos in some of the steps only."""

    def __init__(self, obs="box", act="discrete", max_len=6, infos=False, fixed=False):
        self.obs, self.with_infos, self.max_len, self.fixed = obs, infos, max_len, fixed
        self.observation_space, self.action_space = OBSERVATIONS[obs], ACTIONS[act]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.moved = 0, 0.0
        self.length = self.max_len if self.fixed else int(self.np_random.integers(1, self.max_len + 1))
        self.ends = int(self.np_random.integers(3))
        return self._seen(), {"length": self.length, "told": {"ends": self.ends}} if self.with_infos else {}

    def _seen(self):
        place, code = self.np_random.uniform(-1, 1, 2) + self.moved, int(self.np_random.integers(5))
        if self.obs == "discrete":
            return code
        return {"place": place, "more": (code, -place)} if self.obs == "dict" else place.astype(np.float32)

    def step(self, action):
        assert self.action_space.contains(action), action
        assert self.t < self.length, "an episode that is over was stepped"
        self.t += 1
        self.moved += float(np.sum(action))
        over = self.t == self.length
        info = {}
        if self.with_infos and self.t % 2:
            info = {"t": self.t, "pair": np.array([self.t, -self.t]), "told": {"over": over}, "word": f"step {self.t}"}
        reward = 100.0 * self.t + float(np.sum(action))
        return self._seen(), reward, over and self.ends != 1, over and self.ends != 0, info


class Around(VectorWrapper):
    """Changes nothing; but what is in it is no plain SyncVectorEnv any more."""


class FinalsInArrays(VectorWrapper):
    """Gives the final observations as one array, as some VectorEnvs do."""

    def step(self, actions):
        *rest, infos = super().step(actions)
        if "final_obs" in infos:
            filler = np.full(self.single_observation_space.shape, np.nan)
            infos["final_obs"] = np.stack([filler if own is None else own for own in infos["final_obs"]])
        return *rest, infos


def vector_maker(kind, cls=Walk):
    """A function that makes a VectorEnv: ``mode``, ``mode reused`` (the same arrays each time), ``mode async`` ..."""
    mode, *more = kind.split()

    def make(num_envs=1, **settings):
        fns = [lambda: cls(**settings)] * num_envs
        if "async" in more:
            return AsyncVectorEnv(fns, autoreset_mode=AutoresetMode[mode])
        env = SyncVectorEnv(fns, copy="reused" not in more, autoreset_mode=AutoresetMode[mode])
        env = Around(env) if "wrapped" in more else env
        return FinalsInArrays(env) if "arrays" in more else env

    return make


class Counting(gym.vector.VectorEnv):
    """Arrays only, next-step autoreset, and one seed for all, like Gymnasium's own CartPoleVectorEnv.

    An observation is ``[copy, episode, t]``. Episodes of copy i have i + 2 steps, and every step is paid 1.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP} if AutoresetMode else {}

    def __init__(self, num_envs=1, longer=1):
        self.num_envs, self.longer = num_envs, longer
        self.single_observation_space = spaces.Box(-1.0, 1000.0, (3,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = np.zeros((self.num_envs, 3), np.float32)
        self.seen[:, 0] = np.arange(self.num_envs)
        self.over = np.zeros(self.num_envs, bool)
        return self.seen.copy(), {}

    def step(self, actions):
        assert self.action_space.contains(actions)
        self.seen[:, 2] += 1
        self.seen[self.over, 1] += 1
        self.seen[self.over, 2] = 0
        rewards = np.where(self.over, 0.0, 1.0)
        self.over = ~self.over & (self.seen[:, 2] == self.seen[:, 0] * self.longer + 2)
        even = self.seen[:, 1] % 2 == 0
        return self.seen.copy(), rewards, self.over & even, self.over & ~even, {}
