"""Trains tasks of the zoo without presets, with changed defaults, and makes the table of mean ranks in docs/zoo.md.

Results are in ``results/defaults``, in the form of those of ``ablations.py``. ``--write-docs`` trains nothing, and only
makes the table.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from ablations import replace_table, saved, train_missing, values
from zoo_results import command

from marl_connectors.zoo import ZooTask, tasks

RESULTS = Path(__file__).parent / "results" / "defaults"
DOCS = Path(__file__).parents[1] / "docs" / "zoo.md"
BEGIN, END = "<!-- choice of the defaults: benchmarks/defaults.py -->", "<!-- end of the choice of the defaults -->"
TASKS = [
    *("Acrobot-v1", "CartPole-v1", "LunarLander-v3", "cart_pole_no_vel_v0", "mamujoco_v1"),
    *("simple_speaker_listener_v4", "simple_spread_v3"),
]
REWARDS = ["--learner-connector", "NormalizeRewards"]
CANDIDATES = {
    "the defaults": [],
    "rewards normalised": REWARDS,
    "values normalised": values(normalize_values=True, vf_clip_param=10.0),
    "rewards and observations normalised": [*REWARDS, "--env-to-module", "MeanStdFilter"],
}


def options(task: ZooTask, candidate: str) -> list[str]:
    """Returns the options that train a task without its preset, with a candidate for the defaults."""
    words = command(task, "", defaults=True)
    return [*words[: words.index("--seeds")], *CANDIDATES[candidate]]


def mean_ranks(returns: np.ndarray) -> np.ndarray:
    """Returns the mean rank of each candidate over tasks and seeds: 1 for the best. Equal ones share their ranks.

    Args:
        returns: ``[num_runs, num_candidates]``.

    >>> mean_ranks(np.array([[5.0, 5.0, 1.0], [0.0, 3.0, 2.0]]))
    array([2.25, 1.25, 2.5 ])
    """
    better = (returns[:, None, :] > returns[:, :, None]).sum(-1)
    equal = (returns[:, None, :] == returns[:, :, None]).sum(-1)
    return (better + (equal + 1) / 2).mean(axis=0)


def table() -> str:
    """Returns the table in Markdown: the return of each candidate in each task, and the mean ranks."""
    found = {task: saved(RESULTS, task) for task in TASKS}
    complete = {task: by_name for task, by_name in found.items() if by_name.keys() == CANDIDATES.keys()}
    if not complete:
        return ""
    runs = [
        [complete[task][candidate][seed] for candidate in CANDIDATES]
        for task in complete
        for seed in sorted(set.intersection(*(set(by_seed) for by_seed in complete[task].values())))
    ]
    rows = [["task", *CANDIDATES], ["---"] * (1 + len(CANDIDATES))]
    rows += [
        [f"`{task}`", *(f"{np.mean(list(complete[task][name].values())):.4g}" for name in CANDIDATES)]
        for task in complete
    ]
    rows.append(["**mean rank**", *(f"**{rank:.2f}**" for rank in mean_ranks(np.array(runs)))])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    """Trains what is missing, or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="default: all of these tasks")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--write-docs", action="store_true", help="train nothing, and write the table")
    args = parser.parse_args()
    if args.write_docs:
        replace_table(DOCS, BEGIN, END, table())
        return
    unknown = set(args.tasks) - set(TASKS)
    if unknown:
        parser.error(f"there is no task {', '.join(sorted(unknown))}. There are: {', '.join(TASKS)}")
    for task in tasks():
        for candidate in CANDIDATES if task.name in (args.tasks or TASKS) else ():
            module = task.expected.module
            train_missing(RESULTS, task.name, candidate, options(task, candidate), args.seeds, module)


if __name__ == "__main__":
    main()
