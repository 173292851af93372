"""Runs on Ray in processes of their own, and what happens to these processes."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from marl_connectors import PPOConfig


def spread(num_env_runners: int, num_learners: int, **resources: Any) -> PPOConfig:
    """Three agents with policies of their own. Batches are as large with any numbers."""
    return (
        PPOConfig()
        .environment("mpe2.simple_spread_v3")
        .multi_agent(policies="independent")
        .env_runners(
            num_env_runners=num_env_runners,
            num_envs_per_env_runner=4 // max(1, num_env_runners),
            num_env_workers=0,
            sample_timeout_s=5.0,
        )
        .learners(num_learners=num_learners)
        .fault_tolerance(env_runner_health_probe_timeout_s=3.0)
        .training(train_batch_size_per_learner=384 // max(1, num_learners), minibatch_size=64, num_epochs=2)
        .resources(**resources)
        .debugging(seed=1)
    )


def parameters(algo: Any) -> dict[str, np.ndarray]:
    """Copies of all parameters."""
    return {
        f"{module_id}.{name}": value.numpy().copy()
        for module_id, module in algo.rl_module.get_state().items()
        for name, value in module.items()
    }


def trained(config: PPOConfig, iterations: int) -> dict[str, np.ndarray]:
    """The parameters after some iterations."""
    algo = config.build_algo()
    try:
        for _ in range(iterations):
            algo.train()
        return parameters(algo)
    finally:
        algo.stop()


def actor_processes(kind: str = "", *, with_beginning: bool = True) -> list[int]:
    """The processes of this process's actors whose name, such as ``EnvRunner0``, contains ``kind``.

    Without ``with_beginning``, those are left out that are being made. If one of them is stopped, a run waits for as
    long as making an environment may take.
    """
    found = []
    parents = parents_of_processes()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                title = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # it has ended
            is_actor = (
                title.startswith("ray::")
                and (with_beginning or "__init__" not in title)
                and ("EnvRunner" in title or "Learner" in title)
                and kind in title
            )
            if is_actor and os.getpid() in ancestors(int(folder.name), parents):  # other tests have their own actors
                found.append(int(folder.name))
    return found


def parents_of_processes() -> dict[int, int]:
    """The parent of each process on this machine."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue  # it has ended
    return found


def ancestors(process: int, parents: dict[int, int]) -> set[int]:
    """The processes that have started a process, directly or not."""
    found = set()
    while process in parents:
        process = parents[process]
        found.add(process)
    return found


class Harm(threading.Thread):
    """Sends a signal to a random actor again and again, until it is stopped or has sent as many as it should.

    Attributes:
        number: The number of signals so far.
    """

    def __init__(self, how: signal.Signals, most_s: float, kind: str = "", seed: int = 0, most: float = math.inf):
        super().__init__(daemon=True)
        self.number = 0
        self._how, self._most_s, self._kind, self._most = how, most_s, kind, most
        self._rng = random.Random(seed)
        self._is_over = threading.Event()

    def run(self) -> None:
        while self.number < self._most and not self._is_over.wait(self._rng.random() * self._most_s):
            processes = actor_processes(self._kind, with_beginning=self._how != signal.SIGSTOP)
            if processes:
                try:
                    os.kill(self._rng.choice(processes), self._how)
                    self.number += 1
                except ProcessLookupError:
                    pass

    def stop(self) -> None:
        """Waits for the end."""
        self._is_over.set()
        self.join()


def wait_until_gone(processes: list[int], seconds: float = 300.0) -> list[int]:
    """Returns which of the processes still live after some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(Path(f"/proc/{pid}").exists() for pid in processes):
        time.sleep(0.1)
    return [pid for pid in processes if Path(f"/proc/{pid}").exists()]
