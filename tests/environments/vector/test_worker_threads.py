"""Numerical libraries take one thread in each worker process, and random numbers of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from marl_connectors.environments.vector.worker_threads import THREAD_VARIABLES

ENV = """
import os

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Env(ParallelEnv):
    metadata = {"name": "env", "render_modes": []}
    possible_agents = ["a"]

    def observation_space(self, agent):
        return spaces.Box(0, 1, (1,), np.float64)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = ["a"]
        square = np.ones((400, 400))
        square @ square
        threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 2
        drawn = np.random.random()  # from the global state, whatever the seed
        return {"a": np.zeros(1)}, {"a": {"variables": dict(os.environ), "threads": threads, "drawn": drawn}}
"""
SCRIPT = """
import json, os
from the_env import Env
from marl_connectors.environments.vector.worker_vector_env import make_vector_env

before = dict(os.environ)
vector_env = make_vector_env(Env, num_envs=3, seed=0, num_workers=3)
infos = [infos["a"] for _, infos in vector_env.reset_all()]
vector_env.close()
assert dict(os.environ) == before
print(json.dumps(infos))
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}),
        (
            {"OPENBLAS_NUM_THREADS": "2"},
            {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "2", "MKL_NUM_THREADS": "1"},
        ),
        ({"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2"}),
    ],
)
def test_libraries_in_workers_take_a_thread_each_unless_the_user_says_how_many(tmp_path, given, expected):
    """The process that starts them keeps its environment, and draws are others in each worker."""
    (tmp_path / "the_env.py").write_text(ENV)
    (tmp_path / "run.py").write_text(SCRIPT)
    kept = {name: value for name, value in os.environ.items() if name not in THREAD_VARIABLES}
    paths = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
    process = subprocess.run(
        [sys.executable, str(tmp_path / "run.py")],
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": paths, **given},
    )
    assert not process.returncode, process.stderr
    infos = json.loads(process.stdout)
    for info in infos:
        found = {name: value for name, value in info["variables"].items() if name in THREAD_VARIABLES}
        assert found == expected
        if not given:
            assert info["threads"] == 2  # its own, and the one that waits for the parent's end
    assert len({info["drawn"] for info in infos}) == 3
