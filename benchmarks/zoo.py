"""Trains tasks of the zoo through the command line, over several seeds, and saves what they reach.

For each task it runs ``marl-connectors train TASK --seeds 0-2`` (with ``--no-preset`` for the defaults of the command
line), and condenses the run folders into ``results/zoo/<task>.json`` (``<task>.defaults.json``).
``zoo_report.py`` makes the table and the picture.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from zoo_results import SeedRun, TaskRuns, command, save_runs

from marl_connectors.algorithms.fitting import run_files
from marl_connectors.algorithms.fitting.run_files import read_metrics
from marl_connectors.cli.parser import parse
from marl_connectors.cli.seed_summary import AFTER_TRAINING, FINISHED, SeedResult, read_result, read_seeds, seed_folder
from marl_connectors.cli.training_run import new_tree
from marl_connectors.cli.tree import ALGO, ENV, PRESET
from marl_connectors.zoo import ZooTask, find_task, tasks

POINTS = 60
"""The number of points of a curve that are kept."""
FOLDER = Path("runs", "zoo")
"""The folder of the runs."""
_RETURN = "return/"
"""The beginning of the names of returns in ``SeedResult.measured``."""
_MAY_DIFFER = {"run.steps", "run.eval_episodes", "run.baseline_seconds", "run.video", "run.seeds", "run.threads"}
"""The settings of which runs may have other values than those of the command."""


def condensed(folder: Path, task: ZooTask) -> TaskRuns:
    """Returns what the runs of a folder with several seeds have reached.

    Raises:
        SystemExit: If a seed is not finished.
    """
    options, seeds = read_seeds(folder)
    results = [read_result(folder, seed) for seed in seeds]
    late = [result.seed for result in results if result.status != FINISHED]
    if late:
        raise SystemExit(f"{folder}: the seeds {late} are not finished. Go on with: train --resume {folder}")
    defaults = not options.get(PRESET)
    words = command(task, "0", defaults=defaults)
    expected = new_tree(vars(parse(words)))
    others = {place for place in {*options, *expected} - _MAY_DIFFER if options.get(place) != expected.get(place)}
    if others:
        raise SystemExit(
            f"{folder}: these runs are not those of {shlex.join(words)!r}, as they differ in {sorted(others)}"
        )
    config = run_files.read_config(folder / seed_folder(seeds[0]))
    words = command(task, _spelled(seeds), defaults=defaults)
    return TaskRuns(
        task=task.name,
        command=shlex.join(["marl-connectors", *words]),
        commit=_commit(),
        versions=config["versions"],
        seeds=[_seed_run(folder, result) for result in results],
    )


def _spelled(seeds: list[int]) -> str:
    is_range = len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if is_range else ",".join(map(str, seeds))


def _seed_run(folder: Path, result: SeedResult) -> SeedRun:
    rows, _ = read_metrics(folder / result.folder / run_files.METRICS)
    return SeedRun(
        seed=result.seed,
        agent_steps=result.agent_steps,
        seconds=round(rows[-1]["time_total_s"], 1),
        returns=_returns(result, AFTER_TRAINING),
        random_play=_returns(result, "random_play"),
        success=_success(result, AFTER_TRAINING),
        random_success=_success(result, "random_play"),
        curves={module_id: _thinned(points) for module_id, points in result.curve.items()},
    )


def _returns(result: SeedResult, what: str) -> dict[str, float]:
    names = [name for name in result.measured[what] if name.startswith(_RETURN)]
    return {name.removeprefix(_RETURN): round(result.number(name, what), 3) for name in names}


def _success(result: SeedResult, what: str) -> float | None:
    return round(result.number("success", what), 4) if "success" in result.measured[what] else None


def _thinned(points: Any) -> list[tuple[int, float]]:
    """Returns the means of a curve's neighbouring points, at most ``POINTS``."""
    parts = np.array_split(np.asarray(points, np.float64), min(POINTS, len(points)))
    return [(int(part[-1, 0]), round(float(part[:, 1].mean()), 3)) for part in parts]


def _commit() -> str:
    """Returns the commit, with ``-dirty`` if something other than results has been changed since."""
    name = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!results")
    return f"{name}-dirty" if changed else name


def _git(*words: str) -> str:
    folder = Path(__file__).parent
    found = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)
    return found.stdout.strip()


def main() -> None:
    """Trains the selected tasks, or condenses a folder of runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="the tasks (default: all)")
    parser.add_argument("--seeds", default="0-2", help="the seeds (default 0-2)")
    parser.add_argument("--defaults", action="store_true", help="train with the defaults instead of the presets")
    parser.add_argument("--folder", type=Path, help="condense this folder of finished runs instead of training")
    args = parser.parse_args()
    if args.folder is not None:
        options, _ = read_seeds(args.folder)
        task = find_task(options[ENV], options[ALGO])
        if task is None:
            parser.error(f"{args.folder} has runs of {options[ENV]!r}, which is no task of the zoo")
        print(save_runs(condensed(args.folder, task), defaults=not options.get(PRESET)))
        return
    unknown = set(args.tasks) - {task.name for task in tasks()}
    if unknown:
        parser.error(f"the zoo has no task {', '.join(sorted(unknown))}")
    for task in tasks():
        if args.tasks and task.name not in args.tasks:
            continue
        out = FOLDER / f"{task.name.replace('/', '_')}{'-defaults' if args.defaults else ''}"
        words = [*command(task, args.seeds, defaults=args.defaults), "--out", str(out)]
        if out.exists():  # it was interrupted, or is finished
            words = ["train", "--resume", str(out)]
        subprocess.run([sys.executable, "-m", "marl_connectors", *words], check=True)
        print(save_runs(condensed(out, task), defaults=args.defaults))


if __name__ == "__main__":
    main()
