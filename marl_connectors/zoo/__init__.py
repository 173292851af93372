"""The zoo: environments with tuned settings and expected results, one file a task.

A module of this package that defines a ``TASK`` is a task. Tasks are imported when they are first asked for.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from marl_connectors.environments.making.registry import importable_name
from marl_connectors.zoo.zoo_task import Expected, ZooTask


@functools.cache
def tasks() -> tuple[ZooTask, ...]:
    """Returns all tasks, sorted by name, upper and lower case alike."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    found = [module.TASK for module in modules if hasattr(module, "TASK")]
    return tuple(sorted(found, key=lambda task: task.name.lower()))


def find_task(env: str, algo: str | None = None) -> ZooTask | None:
    """Returns the task of an environment; None if the zoo has none.

    Args:
        env: The name of the environment, in any form that ``make_env`` accepts: ``"simple_spread_v3"``,
            ``"mpe2.simple_spread_v3"``, ``"mpe2/simple_spread-v3"``. The turn-based form of a parallel environment
            (``"simple_spread_v3:env"``) is another environment.
        algo: The algorithm of the task's settings; None for the one that comes without its name.
    """
    name = importable_name(env.strip()).removesuffix(":parallel_env")
    own = [task for task in tasks() if task.env == name]
    return next((task for task in own if (not task.is_variant if algo is None else task.algo == algo)), None)


__all__ = ["Expected", "ZooTask", "find_task", "tasks"]
