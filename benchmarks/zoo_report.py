"""Makes the table and the picture of docs/zoo.md from the files in ``results/zoo``.

``--check`` prints what differs between these files, docs/zoo.md and the results that the tasks expect.
"""

from __future__ import annotations

import argparse
import io
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from PIL import Image
from zoo_results import (
    TaskRuns,
    curves,
    final_returns,
    has_curves,
    minutes,
    random_return,
    saved_runs,
    steps_to_most,
    successes,
)

from marl_connectors.cli.presets import duration
from marl_connectors.zoo import ZooTask, tasks

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "zoo.md"
PICTURE = DOCS / "images" / "zoo.png"
BEGIN, END = "<!-- results of the zoo: benchmarks/zoo_report.py -->", "<!-- end of the results of the zoo -->"
COLUMNS = 4
HEADER = (
    *("task", "seeds", "agent steps", "random", "return", "success", "best published"),
    *("steps to 90 %", "time", "return with defaults"),
)


def number(value: float) -> str:
    """Formats a return with about three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def spread(values: np.ndarray) -> str:
    """Formats the mean and the standard deviation over seeds."""
    return number(values.mean()) + (f" ± {number(values.std(ddof=1))}" if len(values) > 1 else "")


def row(task: ZooTask, runs: TaskRuns, defaults: TaskRuns | None) -> list[str]:
    """Returns a task's row of the table."""
    expected, success = task.expected, successes(runs)
    return [
        f"`{task.name}`" + (f", {expected.module}" if expected.module else ""),
        str(len(runs["seeds"])),
        f"{runs['seeds'][0]['agent_steps']:,}",
        number(random_return(runs, task)),
        spread(final_returns(runs, task)),
        "–" if success is None else f"{100 * success.mean():.0f} %",
        "–" if expected.published is None else number(expected.published),
        f"{float(f'{steps_to_most(runs, task):.2g}'):,.0f}" if has_curves(task) else "–",
        duration(minutes(runs)),
        "–" if defaults is None else spread(final_returns(defaults, task)),
    ]


def table() -> str:
    """Returns the table in Markdown, with the sources of the published figures below."""
    found = [(task, runs, saved_runs(task, defaults=True)) for task in tasks() if (runs := saved_runs(task))]
    rows = [list(HEADER), ["---"] * len(HEADER), *(row(*each) for each in found)]
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    sources = [f"* `{task.name}`: {task.expected.source}." for task, *_ in found if task.expected.source]
    return "\n".join([*lines, "", "Where the published returns are from:", "", *sources])


def differences() -> list[str]:
    """Returns what the tasks expect and the files do not say."""
    found = []
    for task in tasks():
        runs, expected = saved_runs(task), task.expected
        if runs is None:
            found.append(f"{task.name}: there are no results")
            continue
        returns, success = final_returns(runs, task), successes(runs)
        pairs = {
            "mean_return": (expected.mean_return, returns.mean()),
            "std": (expected.std, returns.std(ddof=1) if len(returns) > 1 else None),
            "num_seeds": (expected.num_seeds, len(returns)),
            "random_return": (expected.random_return, random_return(runs, task)),
            "success": (expected.success, None if success is None else success.mean()),
            "minutes": (expected.minutes, minutes(runs)),
        }
        found += [
            f"{task.name}: {name} is {said}, and the results say {measured}"
            for name, (said, measured) in pairs.items()
            if not agrees(name, said, measured)
        ]
    return found


def agrees(name: str, said: float | None, measured: float | None) -> bool:
    """Whether an expected figure is the measured one, rounded to the written digits. Times depend on the machine."""
    if said is None or measured is None:
        return said is measured
    if name == "minutes":
        return 1 / 3 <= said / measured <= 3
    digits = len(repr(float(said)).partition(".")[2])
    return abs(said - measured) <= 0.5 * 10**-digits + 1e-9


def draw(axes: Axes, task: ZooTask, runs: TaskRuns) -> None:
    """Draws a task's curves."""
    for curve in curves(runs, task):
        axes.plot(curve[:, 0] / 1e6, curve[:, 1], linewidth=1.0)
    axes.axhline(random_return(runs, task), color="grey", linestyle=":", linewidth=0.8)
    if task.expected.published is not None:
        axes.axhline(task.expected.published, color="black", linestyle="--", linewidth=0.8)
    axes.set_title(task.name, fontsize=9)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def draw_all() -> None:
    """Writes the picture with the curves of all tasks."""
    found = [(task, runs) for task in tasks() if has_curves(task) and (runs := saved_runs(task))]
    rows = math.ceil(len(found) / COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(2.6 * COLUMNS, 1.9 * rows), layout="constrained", squeeze=False)
    for place, (task, runs) in zip(axes.flat, found, strict=False):
        draw(place, task, runs)
    for place in axes.flat[len(found) :]:
        place.set_axis_off()
    figure.supxlabel("million agent steps (dashed: best published, dotted: random actions)", fontsize=8)
    figure.supylabel("mean return of an agent in training", fontsize=8)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110)
    Image.open(drawn).convert("RGB").quantize(32).save(PICTURE, optimize=True)


def main() -> None:
    """Writes the table and the picture, or compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    args = parser.parse_args()
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    new = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    found = differences()
    if args.check:
        found += [f"{PAGE.name}: the table is not that of the results"] if new != page else []
    else:
        PAGE.write_text(new)
        draw_all()
    print("\n".join(found))
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
