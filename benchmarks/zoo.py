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
from marl_connectors.cli.seed_summary import FINISHED, SeedResult, read_result, read_seeds, seed_folder
from marl_connectors.zoo import ZooTask, find_task, tasks

POINTS = 60
"""The number of points of a curve that are kept."""
FOLDER = Path("runs", "zoo")
"""The folder of the runs."""
_OWN_OPTIONS = {"env", "preset", "steps", "env_config", "policies", "eval_opponent", "eval_episodes", "algo"}
_OWN_OPTIONS |= {"baseline_seconds", "video", "eval_explore"}
_WITH_DEFAULTS = {"wrappers"}
"""A further option of runs with the defaults, which presets set."""


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
    defaults = not options.get("preset", True)
    others = set(options) - _OWN_OPTIONS - (_WITH_DEFAULTS if defaults else set())
    if others:
        raise SystemExit(f"{folder}: these runs have other settings, because of the options {sorted(others)}")
    draws = bool(task.settings.get("eval_explore"))
    if options.get("eval_explore") != draws:
        raise SystemExit(f"{folder}: these runs were not measured with --{'' if draws else 'no-'}eval-explore")
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
    baselines = run_files.read_baselines(folder / result.folder)
    return SeedRun(
        seed=result.seed,
        agent_steps=result.agent_steps,
        seconds=round(rows[-1]["time_total_s"], 1),
        returns=_rounded(result.returns),
        random_play=_rounded(result.random_play),
        success=None if result.success is None else round(result.success, 4),
        random_success=baselines["random_play"].get("success"),
        curves={module_id: _thinned(points) for module_id, points in result.curve.items()},
    )


def _rounded(returns: Any) -> dict[str, float]:
    return {module_id: round(mean, 3) for module_id, mean in returns.items()}


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
        task = find_task(options["env"], options.get("algo"))
        if task is None:
            parser.error(f"{args.folder} has runs of {options['env']!r}, which is no task of the zoo")
        print(save_runs(condensed(args.folder, task), defaults=not options.get("preset", True)))
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
