"""Chooses how many worker processes to start for an environment."""

from __future__ import annotations

import bdb
import math
import multiprocessing
import os
import sys
from pathlib import Path

from marl_connectors.environments.registry.spec import EnvSpec
from marl_connectors.environments.vector.worker import needs_main_script, packed_maker
from marl_connectors.errors import ConfigError

LEAST_STEP_S = 1e-4
"""The shortest step of a sub-environment, in seconds, for which workers are used.

With faster steps, messages about ends of episodes cost as much as the workers gain.
"""
LEAST_WORK_S = 5e-4
"""Seconds of work that each worker must have in a vector step: several times the cost of waking it and of its reply."""
MOST_OF_TIMEOUT = 0.25
"""The fraction of a worker's time limit that the slowest calls of all its sub-environments may take in a smoke test."""


def auto_num_workers(setup: EnvSpec, num_envs: int, timeout_s: float | None = None) -> int:
    """Returns a number of worker processes: at most one per usable core, and only as many as have enough work.

    The number follows from the step time that was measured in the smoke test. It is never 1, and it is 0 for

    * environments given as a class or a function, or by a name registered in this process, because they may depend on
      objects of this process;
    * natively batched environments, and environments whose settings cannot be sent to another process;
    * environments that need anything from the running script, which workers would have to import;
    * environments so slow that a worker might reach its time limit;
    * a process that is a worker of another process itself, or that runs in a debugger.

    Args:
        setup: The env spec with the measured step time. Without a smoke test there are no workers.
        num_envs: The number of sub-environments that are stepped together.
        timeout_s: Seconds that a worker may take for a step of its sub-environments; None for no limit.
    """
    step_s = setup.step_s
    if sys.platform == "win32" or not setup.is_importable or setup.is_batched or step_s is None or _is_special():
        return 0
    number = num_worth_it(step_s, num_envs, num_cores())
    if not number:
        return 0
    if timeout_s is not None and setup.slowest_s * math.ceil(num_envs / number) > MOST_OF_TIMEOUT * timeout_s:
        return 0
    try:
        maker = packed_maker(setup.factory, number)
    except ConfigError:
        return 0
    return 0 if needs_main_script(maker) else number


def _is_special() -> bool:
    """Whether this process was started by ``multiprocessing``, so that others use the cores, or runs in ``pdb``."""
    traced_by = getattr(sys.gettrace(), "__self__", None)
    return multiprocessing.parent_process() is not None or isinstance(traced_by, bdb.Bdb)


def num_worth_it(step_s: float, num_envs: int, num_cores: int) -> int:
    """Returns the number of workers for sub-environments that take ``step_s`` seconds for a step each.

    >>> num_worth_it(3e-3, 16, 8)
    8
    >>> num_worth_it(2e-4, 8, 8)
    3
    >>> num_worth_it(1e-5, 1000, 8)
    0
    """
    if step_s < LEAST_STEP_S:
        return 0
    number = min(num_cores, num_envs, int(step_s * num_envs / LEAST_WORK_S))
    return number if number >= 2 else 0


def num_cores(control_groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the number of cores that this process may use, by its CPU affinity and its container's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = (control_groups / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:  # the first version of control groups
            own = control_groups / "cpu"
            quota, period = ((own / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        except OSError:
            return cores
    return min(cores, max(1, int(quota) // int(period))) if quota not in ("max", "-1") else cores
