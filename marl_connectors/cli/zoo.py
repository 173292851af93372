"""``marl-connectors zoo``: lists the tasks of the zoo, or shows one with all of its settings."""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from typing import Any

from marl_connectors.algorithms.fitting.figures import percent, table
from marl_connectors.cli.known_algorithms import known_sections
from marl_connectors.cli.presets import decimals, duration, expected_return, manner, tree_of_task
from marl_connectors.cli.tree import MAPPING, STEPS, nested
from marl_connectors.cli.values import literal_text
from marl_connectors.errors import ConfigError, did_you_mean
from marl_connectors.packages import install_command
from marl_connectors.programs import PROGRAM, command
from marl_connectors.zoo import ZooTask, find_task, tasks

_ABOUT = (
    "Returns are those of an agent per episode with most likely actions, but with drawn actions where a task sets "
    "eval_explore; times are those on two CPU cores."
)


def run(args: argparse.Namespace) -> int:
    """Lists the tasks, or shows the named one, as the parsed options say. Returns the exit status."""
    if args.name is None:
        print(json.dumps([_described(task) for task in tasks()], indent=2) if args.json else _list())
        return 0
    task = next((task for task in tasks() if task.name == args.name), None) or find_task(args.name)
    if task is None:
        names = [task.name for task in tasks()]
        alike = [name for name in names if args.name.lower() in name.lower()]
        hint = f"Did you mean {' or '.join(map(repr, alike))}?" if alike else did_you_mean(args.name, names)
        raise ConfigError(f"zoo: there is no task {args.name!r}. {hint}")
    print(json.dumps(_described(task), indent=2) if args.json else _page(task))
    return 0


def train_command(task: ZooTask) -> str:
    """Returns the command that trains a task with its settings."""
    return command(PROGRAM, "train", *task.words)


def _list() -> str:
    header = ["task", "algorithm", "policies", "steps", "time", "return", "success", "random play", "best published"]
    rows = []
    for task in tasks():
        tree, expected = tree_of_task(task), task.expected
        row = [task.name, task.algo, tree[MAPPING], f"{tree[STEPS]:,}", duration(expected.minutes)]
        row += [expected_return(task), _percent(expected.success)]
        rows.append([*row, _number(task, expected.random_return), _number(task, expected.published)])
    train, show = command(PROGRAM, "train", "TASK"), command(PROGRAM, "zoo", "TASK")
    how = f"Train one with: {train}. Show one with all of its settings: {show}."
    return f"{table(header, rows)}\n\n{_ABOUT} {how}"


def _page(task: ZooTask) -> str:
    expected = task.expected
    seeds = f"{expected.num_seeds} seed{'s' if expected.num_seeds > 1 else ''}"
    rows = [
        ("environment", task.env),
        ("to install", install_command(*task.needs.split()) if task.needs else "nothing more"),
        ("expected return", f"{expected_return(task)} {manner(task)} ({seeds})"),
        ("success", f"{_percent(expected.success)} {task.success.name}" if task.success is not None else "–"),
        ("random play", _number(task, expected.random_return)),
        ("best published", _number(task, expected.published) + (f" ({expected.source})" if expected.source else "")),
        ("time", f"about {duration(expected.minutes)} on two CPU cores"),
    ]
    training = _training(task)  # also what are the command line's defaults
    settings = [(name, _text(value)) for name, value in {**_own_settings(task), **training}.items()]
    lines = [f"{task.name}: {task.summary}", "", *_columns(rows), "", "Settings:", *_columns(settings), ""]
    return "\n".join([*lines, f"Train it with: {train_command(task)}"])


def _columns(rows: list[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [
        line
        for name, text in rows
        for line in textwrap.wrap(
            text, 100, initial_indent=f"  {name:<{width}}   ", subsequent_indent=" " * (width + 5)
        )
    ]


def _own_settings(task: ZooTask) -> dict[str, Any]:
    """Returns what the task sets outside of sections."""
    return {name: value for name, value in task.settings.items() if name != "env" and name not in known_sections()}


def _training(task: ZooTask) -> dict[str, Any]:
    """Returns the settings of the section ``training``, which include the command line's defaults."""
    return nested(tree_of_task(task))["training"]


def _described(task: ZooTask) -> dict[str, Any]:
    """Returns the task as JSON data."""
    return {
        "name": task.name,
        "env": task.env,
        "summary": task.summary,
        "needs": task.needs,
        "settings": {**_own_settings(task), "training": _training(task)},
        "success": None if task.success is None else task.success.name,
        "expected": dataclasses.asdict(task.expected),
        "command": train_command(task),
    }


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else literal_text(value)


def _number(task: ZooTask, value: float | None) -> str:
    return "–" if value is None else f"{value:,.{decimals(task)}f}"


def _percent(share: float | None) -> str:
    return "–" if share is None else percent(share)
