"""Draws the runs that ``learning.py`` has saved, and prints a table of them.

The picture ``docs/images/learning.png`` has a curve for each seed, the target, and the return of random actions.
"""

from __future__ import annotations

import io
import math
from pathlib import Path

import matplotlib.pyplot as plt
from learning_results import Run, saved_runs
from learning_tasks import TASKS, Task
from matplotlib.axes import Axes
from PIL import Image

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "learning.png"
COLUMNS = 4
LAST = 0.1


def last_part(run: Run) -> float:
    """Returns the mean return in the last tenth of a curve."""
    newest = run["curve"][-max(1, round(LAST * len(run["curve"]))) :]
    return sum(mean for _, mean in newest) / len(newest)


def rounded(value: float) -> str:
    """Formats a value with three digits and at most two decimals."""
    return f"{round(value, 2):.3g}"


def row(name: str, task: Task, runs: list[Run]) -> str:
    """Returns a task's row of the table."""
    cells = [
        [rounded(run["best"]) for run in runs],
        [rounded(last_part(run)) for run in runs],
        [f"{run['reached_at']:,}" if run["reached_at"] else "never" for run in runs],
    ]
    random = sum(run["random"] for run in runs) / len(runs)
    listed = " | ".join(", ".join(cell) for cell in cells)
    return f"| {name} | {task.steps:,} | {rounded(random)} | {task.target:g} | {listed} |"


def draw(axes: Axes, name: str, task: Task, runs: list[Run]) -> None:
    """Draws a task's curves."""
    for run in runs:
        steps, means = zip(*run["curve"], strict=True)
        axes.plot([step / 1000 for step in steps], means, linewidth=1.0)
    random = sum(run["random"] for run in runs) / len(runs)
    axes.axhline(task.target, color="black", linestyle="--", linewidth=0.8)
    axes.axhline(random, color="grey", linestyle=":", linewidth=0.8)
    axes.set_title(name, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    """Writes the picture and prints the table."""
    found = {name: list(saved_runs(name).values()) for name in TASKS}
    found = {name: runs for name, runs in found.items() if runs}
    print("| task | steps | random | target | best of each seed | last tenth | target reached after |")
    print(7 * "| --- " + "|")
    rows = math.ceil(len(found) / COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(2.6 * COLUMNS, 1.9 * rows), layout="constrained", squeeze=False)
    for place, (name, runs) in zip(axes.flat, found.items(), strict=False):
        print(row(name, TASKS[name], runs))
        draw(place, name, TASKS[name], runs)
    for place in axes.flat[len(found) :]:
        place.set_axis_off()
    figure.supxlabel("thousand agent steps (dashed: target, dotted: random actions)", fontsize=8)
    figure.supylabel("mean return of an agent", fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(32).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
