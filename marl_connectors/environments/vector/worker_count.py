"""How many worker processes are worth starting for an environment."""

from __future__ import annotations

import bdb
import math
import multiprocessing
import os
import sys
from pathlib import Path

from marl_connectors.environments.spec import EnvSpec
from marl_connectors.environments.vector.worker import needs_main_script, packed_maker
from marl_connectors.errors import ConfigError

LEAST_STEP_S = 1e-4
"""What a step of a sub-environment must take, or messages about ends of episodes cost what workers gain."""
LEAST_WORK_S = 5e-4
"""What each worker must have to do in a vector step: several times what it costs to wake it and to hear from it."""
MOST_OF_TIMEOUT = 0.25
"""The part of a worker's time limit that the slowest calls of all its sub-environments may take in the smoke test."""


def auto_num_workers(setup: EnvSpec, num_envs: int, timeout_s: float | None = None) -> int:
    """As many worker processes as there are cores that this process may use and work for them; 0 if that is one.

    It is a rule by the step time that was measured in the smoke test, for environments that were given by an importable
    name. It is 0 for

    * environments given as a class or a function, or by a name that was registered here: what they are made of may be
      of this process alone;
    * natively batched environments, and those whose settings cannot be sent to another process;
    * those that need anything of the script that runs, which workers would import;
    * those so slow that a worker's time limit might end them;
    * processes that are workers of somebody themselves, or that a debugger watches.

    Args:
        setup: Says what a step takes. An environment that was not tried out gets no workers.
        num_envs: How many sub-environments are stepped together.
        timeout_s: How long a worker may take for a step of its sub-environments; None for any time.
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
    """Whether this is a process of a pool, whose other processes use the cores, or is run by ``pdb``."""
    traced_by = getattr(sys.gettrace(), "__self__", None)
    return multiprocessing.parent_process() is not None or isinstance(traced_by, bdb.Bdb)


def num_worth_it(step_s: float, num_envs: int, num_cores: int) -> int:
    """The number of workers for sub-environments that take ``step_s`` seconds for a step each.

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
    """Cores that this process may use: of those it may run on, as many as its container has time for."""
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
