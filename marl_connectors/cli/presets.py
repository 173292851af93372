"""What the zoo's settings lead to, and which of them a user has changed, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_connectors.algorithms.fitting.figures import percent
from marl_connectors.algorithms.fitting.run_files import DRAWN, MOST_LIKELY, WAYS
from marl_connectors.cli.known_algorithms import config_class
from marl_connectors.cli.layers import ALGO, PRESET, resolved
from marl_connectors.cli.tree import (
    ENV,
    NUM_LEARNERS,
    SEED,
    STEPS,
    Tree,
    can_change,
    has_lr_schedule,
    option_of,
    places,
)
from marl_connectors.typing import DEFAULT_MODULE_ID
from marl_connectors.zoo import ZooTask, tasks


def changed_options(tree: Mapping[str, Any]) -> list[str]:
    """Returns the options with which the user has changed what a run learns from its preset."""
    cls = config_class(tree[ALGO])
    base = resolved({ENV: tree[ENV], ALGO: tree[ALGO]}, {NUM_LEARNERS: tree.get(NUM_LEARNERS, 0)})
    names = [place for place in {**base, **tree} if _learns(place, cls) and base.get(place) != tree.get(place)]
    if has_lr_schedule(tree):
        names = [place for place in names if place != "run.anneal_lr"]
    return list(dict.fromkeys(_option(place, cls) for place in names))


def _learns(place: str, cls: type) -> bool:
    """Whether the results of a run depend on a setting."""
    own = places(cls).get(place)
    if place in (STEPS, "run.num_envs", "run.anneal_lr", "run.eval_opponent", "run.eval_explore") or own is None:
        return True
    if place.startswith("run.") or place == SEED:
        return False
    return place.startswith("training.") or not can_change(place, cls)


def _option(place: str, cls: type) -> str:
    option = option_of(place, cls)
    return "--set" if option.startswith("--set") else option


def tree_of_task(task: ZooTask) -> Tree:
    """Returns the settings of a run with a task's preset alone."""
    return resolved({ENV: task.env, ALGO: task.algo})


def preset_sentence(tree: Mapping[str, Any]) -> str:
    """Returns a line about a run's preset and the results to expect; ``""`` if it has none."""
    task = next((task for task in tasks() if task.name == tree[PRESET]), None)
    if task is None:
        return ""
    changed = changed_options(tree)
    but = f" Changed by {', '.join(changed)}, so another return is to be expected." if changed else ""
    return f"Preset of the zoo: {task.name}, {expectation(task)}; --no-preset leaves it out.{but}"


def expectation(task: ZooTask) -> str:
    """Returns what to expect of a task: return, success, steps and time."""
    measure, success = task.success, task.expected.success
    share = "" if measure is None or success is None else f", success {percent(success)} ({measure.name})"
    steps, time = f"{tree_of_task(task)[STEPS]:,} agent steps", duration(task.expected.minutes)
    return f"expected return {expected_return(task)}{share} {manner(task)} after {steps}, about {time}"


def manner(task: ZooTask) -> str:
    """Returns how the policies acted when the task's expected results were measured, in words."""
    return f"with {WAYS[DRAWN if tree_of_task(task).get('run.eval_explore') else MOST_LIKELY]}"


def expected_return(task: ZooTask) -> str:
    """Formats the expected return with its standard deviation over seeds, if there are several, and its module."""
    expected = task.expected
    digits = decimals(task)
    spread = "" if expected.std is None else f" ± {expected.std:,.{digits}f}"
    of = f" ({expected.module})" if expected.module not in ("", DEFAULT_MODULE_ID) else ""
    return f"{expected.mean_return:,.{digits}f}{spread}{of}"


def decimals(task: ZooTask) -> int:
    """Returns the number of decimals of a task's returns: two for small ones, such as those of games, else one."""
    return 2 if abs(task.expected.mean_return) < 2 else 1


def duration(minutes: float) -> str:
    """Formats the duration of a training.

    >>> duration(0.21), duration(2.7), duration(10.7), duration(90)
    ('13 s', '3 min', '11 min', '1.5 h')
    """
    if minutes >= 90:
        return f"{minutes / 60:.1f} h".replace(".0 ", " ")
    return f"{minutes:.0f} min" if minutes >= 2 else f"{60 * minutes:.0f} s"
