"""Reads and writes the files with the runs of ``learning.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TypedDict

RESULTS = Path(__file__).parent / "results"


class Run(TypedDict):
    """A run of a task.

    Attributes:
        task: The name of the task.
        seed: The seed of the run.
        random: Mean return with random actions.
        best: The highest mean return within the budget.
        reached_at: Agent steps after which the target was reached; None for never.
        evaluation: Mean return of episodes without exploration after training; None if there were none.
        won: The share of these episodes that were won, for games.
        seconds: The wall-clock time of training.
        curve: The number of agent steps and the mean return after each iteration.
    """

    task: str
    seed: int
    random: float
    best: float
    reached_at: int | None
    evaluation: float | None
    won: float | None
    seconds: float
    curve: list[tuple[int, float]]


def saved_runs(name: str) -> dict[int, Run]:
    """Returns the runs of a task by seed; an empty dict if there are none."""
    path = _path(name)
    lines = path.read_text().splitlines() if path.exists() else []
    return {run["seed"]: run for run in map(json.loads, lines)}


def save_runs(name: str, runs: dict[int, Run]) -> None:
    """Writes the runs of a task in the order of their seeds."""
    _path(name).write_text("".join(json.dumps(runs[seed]) + "\n" for seed in sorted(runs)))


def _path(name: str) -> Path:
    return RESULTS / f"learning_{name}.jsonl"
