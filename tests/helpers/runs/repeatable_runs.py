"""Runs that can be repeated in another process.

``python repeatable_runs.py '{"match": {"load": "folder", "iterations": 2}}'`` prints one JSON object: run name to the
fingerprint of its weights and of its newest results.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
from gymnasium import spaces

from marl_connectors.algorithms.algorithm import Algorithm


def config_of(name, seed=0):
    """The config of a run, by its name."""
    from helpers.envs.scripted_envs import LifeEnv, small_config

    settings = {"n_agents": 3, "n_actions": 3, "ep_len": 7}
    box, line = spaces.Box(-1.0, 1.0, (3,), np.float64), spaces.Box(-1.0, 1.0, (2,), np.float32)
    life = {
        "agents": ["a", "b", "c", "d"],
        "spaces_of": {"a": (box, spaces.Discrete(3)), "c": (box, spaces.Discrete(3)), "d": (line, line)},
        "die": 0.25,
        "join": 0.35,
        "max_steps": 30,
        "fixed": False,
    }
    config = {
        "cartpole": lambda: small_config("CartPole-v1"),
        "shared": lambda: small_config("marl_envs.match_v0", env_config=settings).multi_agent(policies="shared"),
        "independent": lambda: small_config(
            "marl_envs.match_v0", env_config={**settings, "continuous_actions": True}
        ).multi_agent(policies="independent"),
        "life": lambda: small_config(LifeEnv, env_config=life).multi_agent(policies="independent"),
    }[name]()
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=5, episode_lookback_horizon=2)
    return config.debugging(seed=seed)


def fingerprint(algo, results):
    """A hash of all weights, and the newest results without the times."""
    digest = hashlib.sha256()
    for module_id, state in algo.rl_module.get_state().items():
        for key, value in state.items():
            digest.update(f"{module_id} {key} {value.shape}".encode() + value.numpy().tobytes())
    kept = {k: v for k, v in results.items() if "time" not in k}
    return [digest.hexdigest(), repr(kept)]


def run(name, *, load=None, iterations=3, seed=0):
    """Builds or loads a run, trains it, and gives its fingerprint."""
    algo = config_of(name, seed).build_algo() if load is None else Algorithm.from_checkpoint(load)
    results = {}
    for _ in range(iterations):
        results = algo.train()
    return fingerprint(algo, results)


def start(jobs):
    """Begins runs in a new process with a hash seed of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "random"}
    return subprocess.Popen([sys.executable, __file__, json.dumps(jobs)], env=env, stdout=subprocess.PIPE, text=True)


def results_of(process):
    """What a process of ``start`` printed."""
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return json.loads(out)


if __name__ == "__main__":
    print(
        json.dumps({job: run(job.partition(" ")[0], **settings) for job, settings in json.loads(sys.argv[1]).items()})
    )
