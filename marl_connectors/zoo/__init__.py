"""The zoo: environments with tuned settings and expected results, in ``tasks.yaml``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from marl_connectors.yaml_data import parsed_yaml
from marl_connectors.zoo.zoo_task import Expected, ZooTask

FILE: Final = Path(__file__).with_name("tasks.yaml")


@functools.cache
def tasks() -> tuple[ZooTask, ...]:
    """Returns all tasks, in the order of the file, which is that of their names."""
    data = parsed_yaml(FILE.read_text(encoding="utf-8"))
    return tuple(ZooTask.from_data(name, **facts) for name, facts in data.items())


def find_task(env: str, algo: str | None = None) -> ZooTask | None:
    """Returns the task of an environment; None if the zoo has none.

    Args:
        env: The name of the environment, in any form that ``make_env`` accepts: ``"simple_spread_v3"``,
            ``"mpe2.simple_spread_v3"``, ``"mpe2/simple_spread-v3"``. The turn-based form of a parallel environment
            (``"simple_spread_v3:env"``) is another environment.
        algo: The algorithm of the task's settings; None for the one that comes without its name.
    """
    from marl_connectors.environments.registry.registry import importable_name  # which needs Gymnasium

    name = importable_name(env.strip()).removesuffix(":parallel_env")
    own = [task for task in tasks() if task.env == name]
    return next((task for task in own if (not task.is_variant if algo is None else task.algo == algo)), None)


__all__ = ["FILE", "Expected", "ZooTask", "find_task", "tasks"]
