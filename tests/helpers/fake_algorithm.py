"""An ``Algorithm`` for the command line's tests: each iteration has 100 agent steps and a return that is one higher."""

from __future__ import annotations

import copy
import math
import os
import signal
from types import SimpleNamespace

import numpy as np
from gymnasium import spaces

from marl_connectors.algorithms.config.settings import RunSettings
from marl_connectors.algorithms.rendering import RenderedEpisode
from marl_connectors.callbacks import CallbackCalls
from marl_connectors.checkpoints import load_state, run_folders_of, save_state
from marl_connectors.errors import EnvError
from marl_connectors.rl_module.rl_module import RLModule

STEPS = 100


class FakeConfig(RunSettings):
    num_envs_per_env_runner = 8
    num_env_runners = 0
    callbacks_on_episode_end = None
    draws_actions = False

    def __init__(self, env):
        self.env = env

    def get_evaluation_config(self):
        return SimpleNamespace(explore=False)

    def copy(self):
        return copy.copy(self)

    def change(self, who, /, **settings):
        vars(self).update(settings)

    def to_dict(self):
        return {"env": self.env, "lr": 0.1, "policy_mapping_fn": lambda agent_id, episode: "x", "clip": math.inf}


class FakeAlgorithm:
    """``fail_at`` and ``interrupt_at`` name an iteration; ``interrupts`` is how often a signal comes in it."""

    def __init__(
        self,
        env="fake_env",
        *,
        modules=("red", "green"),
        fail_at=None,
        interrupt_at=None,
        interrupts=1,
        number=signal.SIGINT,
    ):
        self.config = FakeConfig(env)
        self.modules = modules
        self.agent_ids = ["agent_0", "agent_1"]
        self.masking = self.activity = ""
        space = spaces.Discrete(2)
        self.rl_module = dict.fromkeys(modules, RLModule(space, space))
        self.signal = number
        self.fail_at, self.interrupt_at, self.interrupts = fail_at, interrupt_at, interrupts
        self.iteration = self.seed = 0
        self.is_broken = False
        self.callbacks, self.run_folders = CallbackCalls(), set()
        self.frames = [np.full((60, 192, 3), shade, np.uint8) for shade in (0, 80, 160)]
        self.stopped = False
        self.evaluated_with = []

    def results(self, mean):
        stats = {"mean": mean, "std": 0.5, "min": mean - 1, "max": mean + 1, "num_episodes": 4}
        return {
            "episode_return_mean": mean,
            "episode_len_mean": 25.0,
            "num_episodes": 4,
            "module_episode_returns": {module_id: dict(stats) for module_id in self.modules},
            "module_steps": dict.fromkeys(self.modules, 25.0),
            "agent_episode_returns_mean": {"agent_0": mean},
            "agent_steps": {"agent_0": 25.0},
            "num_agent_steps_sampled": {"agent_0": 2, f"stranger_{self.iteration}": 1},
        }

    def train(self):
        if self.fail_at == self.iteration + 1:
            raise EnvError("fake_env: expected finite rewards, but agent 'a' got nan.\nFix its step().")
        if self.interrupt_at == self.iteration + 1:
            for _ in range(self.interrupts):
                os.kill(os.getpid(), self.signal)
        self.iteration += 1
        mean = math.nan if self.iteration == 1 else float(self.iteration)
        return {
            "training_iteration": self.iteration,
            "num_env_steps_sampled_lifetime": self.iteration * STEPS // 2,
            "num_agent_steps_sampled_lifetime": self.iteration * STEPS,
            "time_total_s": 0.5 * self.iteration,
            "env_runners": self.results(mean),
            "learners": {module_id: {"entropy": np.float32(1.5)} for module_id in self.modules},
            "timers": {
                "training_iteration": 0.4,
                "env_step_timer": 0.1,
                "env_reset_timer": 0.0,
                "rlmodule_inference_timer": 0.0,
                "env_to_module_connector": 0.0,
                "module_to_env_connector": 0.0,
                "learner_update_timer": 0.2,
                "learner_connector": 0.1,
            },
        }

    @property
    def num_agent_steps(self):
        return self.iteration * STEPS

    @property
    def num_env_steps(self):
        return self.iteration * STEPS // 2

    def evaluate(self, *, num_episodes, explore=False, seed=None, max_seconds=None, on_progress=None, is_enough=None):
        self.evaluated_with.append((num_episodes, explore, seed))
        return {"env_runners": self.results(float(self.iteration)) | {"num_episodes": num_episodes}}

    def random_play(self, *, num_episodes, max_seconds=None, on_progress=None, is_enough=None):
        return {"env_runners": self.results(-7.0) | {"num_episodes": num_episodes}}

    def render_episodes(self, num_episodes=1, *, max_frames, max_seconds, seed, explore=None):
        returns = dict.fromkeys(self.modules, float(self.iteration))
        return [RenderedEpisode(self.frames[:max_frames], 2, returns)] * (num_episodes if self.frames else 0)

    def explain(self):
        return {}

    def get_state(self):
        return {"iteration": self.iteration, "env": self.config.env}

    def save_to_path(self, path):
        save_state(path, self.get_state())

    @classmethod
    def from_checkpoint(cls, path):
        state = load_state(path)
        algo = cls(state["env"])
        algo.iteration = state["iteration"]
        algo.run_folders = run_folders_of(path)
        return algo

    def stop(self):
        self.stopped = True
