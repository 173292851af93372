"""The command of a task's results, the files with them, and the figures of the zoo's table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import numpy as np

from marl_connectors.zoo import ZooTask
from marl_connectors.zoo.measures import OPPONENT

RESULTS = Path(__file__).parent / "results" / "zoo"
SHARE = 0.9
DEFAULT_STEPS = 300_000
"""The agent steps of runs with the defaults of the command line."""
EPISODES = 100
"""The episodes at the end of a run, for tasks whose settings do not say."""


class SeedRun(TypedDict):
    """The run of a task with one seed.

    Attributes:
        seed: The seed.
        agent_steps: The agent steps of the run.
        seconds: The wall-clock time of training.
        returns: Module id to the mean return of an agent per episode after training, without exploration.
        random_play: The same of random actions.
        success: The mean success of these episodes; None if the task has no measure of success.
        random_success: The same of random actions.
        curves: Module id to ``[(agent steps, mean return in training), ...]``.
    """

    seed: int
    agent_steps: int
    seconds: float
    returns: dict[str, float]
    random_play: dict[str, float]
    success: float | None
    random_success: float | None
    curves: dict[str, list[tuple[int, float]]]


class TaskRuns(TypedDict):
    """The runs of a task.

    Attributes:
        task: The name of the task.
        command: The command that made them.
        commit: The version of the code.
        versions: The versions of Python and the packages.
        seeds: The runs.
    """

    task: str
    command: str
    commit: str
    versions: dict[str, str]
    seeds: list[SeedRun]


def command(task: ZooTask, seeds: str, *, defaults: bool) -> list[str]:
    """Returns the options of ``marl-connectors`` that train a task, without the folder."""
    own = ["--no-preset", "--steps", str(DEFAULT_STEPS)] if defaults else []
    if defaults:  # what belongs to the task, and not to its settings
        for name, value in task.settings.get("env_config", {}).items():
            own += ["--env-config", f"{name}={value}"]
        for wrapper in task.settings.get("wrappers", []):
            own += ["--wrap", wrapper]
        for name in ("policies", "eval_opponent"):
            if name in task.settings:
                own += [f"--{name.replace('_', '-')}", task.settings[name]]
    own.append("--eval-explore" if task.settings.get("eval_explore") else "--no-eval-explore")
    episodes = task.settings.get("eval_episodes", EPISODES)
    measuring = ["--eval-episodes", str(episodes), "--baseline-seconds", "60", "--no-video"]
    return ["train", *task.words, *own, "--seeds", seeds, *measuring]


def save_runs(runs: TaskRuns, *, defaults: bool) -> Path:
    """Writes the runs of a task, and returns the file."""
    path = _path(runs["task"], defaults=defaults)
    path.parent.mkdir(exist_ok=True)
    seeds = [f"  {json.dumps(seed)}" for seed in runs["seeds"]]  # a line for each
    rest = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in runs.items() if name != "seeds"]
    path.write_text("{\n" + ",\n".join([*rest, ' "seeds": [\n' + ",\n".join(seeds) + "\n ]"]) + "\n}\n")
    return path


def saved_runs(task: ZooTask, *, defaults: bool = False) -> TaskRuns | None:
    """Returns the runs of a task; None if there are none."""
    path = _path(task.name, defaults=defaults)
    return json.loads(path.read_text()) if path.is_file() else None


def _path(name: str, *, defaults: bool) -> Path:
    return RESULTS / f"{name.replace('/', '_')}{'.defaults' if defaults else ''}.json"


def of_task(figures: dict[str, float], task: ZooTask) -> float:
    """Returns the figure of the module whose return the task expects, or the mean of all that do not act at random."""
    if task.expected.module:
        return figures[task.expected.module]
    return float(np.mean([value for module_id, value in figures.items() if module_id != OPPONENT]))


def final_returns(runs: TaskRuns, task: ZooTask) -> np.ndarray:
    """Returns ``[num_seeds]``, the return after training of each seed."""
    return np.array([of_task(run["returns"], task) for run in runs["seeds"]])


def random_return(runs: TaskRuns, task: ZooTask) -> float:
    """Returns the mean return of random play, over the seeds for which episodes of it ended in time."""
    return float(np.mean([of_task(run["random_play"], task) for run in runs["seeds"] if run["random_play"]]))


def successes(runs: TaskRuns) -> np.ndarray | None:
    """Returns ``[num_seeds]``, the success after training of each seed; None if it was not measured."""
    found = [run["success"] for run in runs["seeds"]]
    return None if any(value is None for value in found) else np.array(found)


def minutes(runs: TaskRuns) -> float:
    """Returns the mean time of training of a seed."""
    return float(np.mean([run["seconds"] for run in runs["seeds"]])) / 60


def has_curves(task: ZooTask) -> bool:
    """Whether returns in training say how good the policies are. In self-play they stay at the same level."""
    return "eval_opponent" not in task.settings


def curves(runs: TaskRuns, task: ZooTask) -> Iterator[np.ndarray]:
    """Yields ``[points, 2]`` for each seed: agent steps, and the mean return in training."""
    for run in runs["seeds"]:
        names = [task.expected.module] if task.expected.module else list(run["curves"])
        steps = [step for step, _ in run["curves"][names[0]]]
        columns = [np.interp(steps, *np.transpose(run["curves"][name])) for name in names]
        yield np.column_stack([steps, np.mean(columns, axis=0)])


def steps_to_most(runs: TaskRuns, task: ZooTask) -> float:
    """Returns the mean number of agent steps after which a curve has covered 90 % of its way from random to final.

    The final value is the mean of the last tenth of the curve.
    """
    found, start = [], random_return(runs, task)
    for curve in curves(runs, task):
        final = curve[-max(1, len(curve) // 10) :, 1].mean()
        way = (curve[:, 1] - start) / (final - start)
        found.append(curve[np.argmax(way >= SHARE), 0])
    return float(np.mean(found))
