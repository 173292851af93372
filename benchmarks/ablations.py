"""Trains tasks of the zoo with single settings changed, and makes the table of docs/ppo.md.

Each run is one of the command line, with the task's preset, a smaller budget and the options of one change. The results
are in ``results/ablations``, a file for each task, with the mean return of each seed after training, without
exploration. Runs that are there already are not repeated. ``--write-docs`` trains nothing, and makes the table.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from marl_connectors.cli.layers import resolved
from marl_connectors.cli.seed_summary import read_result
from marl_connectors.cli.tree import Tree
from marl_connectors.zoo import find_task

RESULTS = Path(__file__).parent / "results" / "ablations"
DOCS = Path(__file__).parents[1] / "docs" / "ppo.md"
BEGIN, END = "<!-- ablations: benchmarks/ablations.py -->", "<!-- end of the ablations -->"
BUDGETS = {
    "simple_speaker_listener_v4": 250_000,
    "LunarLander-v3": 300_000,
    "cart_pole_no_vel_v0": 100_000,
    "simple_spread_v3": 500_000,
}
"""The tasks and their agent steps."""
TIME_LIMITS = {
    "simple_speaker_listener_v4": 25,
    "LunarLander-v3": 1000,
    "cart_pole_no_vel_v0": 500,
    "simple_spread_v3": 25,
}
"""The env steps after which an episode of a task is truncated."""
ONE_AGENT = {"LunarLander-v3", "cart_pole_no_vel_v0"}
"""The tasks with one agent."""
EPISODES = 200

Change = Callable[[Tree], list[str]]
"""A function of a task's preset that returns options."""


PIECES, LEARNER_PIECES = "env_runners.env_to_module_connector", "learners.learner_connector"


def pieces(option: str, names: list[str]) -> list[str]:
    """Returns the option for connector pieces."""
    return [option, *(names or ["none"])]


def toggled(option: str, present: list[str], name: str) -> list[str]:
    """Returns the option for the preset's pieces with a piece added, or without it if the preset has it."""
    return pieces(option, [own for own in present if own != name] if name in present else [*present, name])


def values(**settings: object) -> list[str]:
    """Returns options for training settings."""
    return [word for name, value in settings.items() for word in ("--set", f"{name}={json.dumps(value)}")]


def annealed_or_constant(preset: Tree) -> list[str]:
    """Returns options that anneal a constant learning rate, or keep one that is annealed as it is at first."""
    lr = preset["training.lr"]
    if isinstance(lr, list):
        return values(lr=lr[0][1])
    return ["--no-anneal-lr" if preset.get("run.anneal_lr") else "--anneal-lr"]


CHANGES: dict[str, Change] = {
    "nothing": lambda preset: [],
    "rewards: normalised, or not if the preset does": lambda preset: toggled(
        "--learner-connector", preset.get(LEARNER_PIECES, []), "NormalizeRewards"
    ),
    "observations normalised": lambda preset: pieces("--env-to-module", ["MeanStdFilter", *preset.get(PIECES, [])]),
    "values normalised": lambda preset: values(normalize_values=True, vf_clip_param=10.0),
    "Huber value loss": lambda preset: values(vf_loss="huber"),
    "agent ids: added, or left out if the preset has them": lambda preset: toggled(
        "--env-to-module", preset.get(PIECES, []), "AgentIdEncoding"
    ),
    "time in the observations": lambda preset: pieces(
        "--env-to-module", [*preset.get(PIECES, []), f"TimeLimitEncoding:max_steps={TIME_LIMITS[preset['run.preset']]}"]
    ),
    "learning rate: annealed, or constant if the preset anneals it": annealed_or_constant,
    "a quarter of the batch": lambda preset: values(
        train_batch_size_per_learner=preset["training.train_batch_size_per_learner"] // 4,
        minibatch_size=preset["training.minibatch_size"] // 4,
    ),
    "four times as many minibatches": lambda preset: values(minibatch_size=preset["training.minibatch_size"] // 4),
    "twice as many epochs": lambda preset: values(num_epochs=2 * preset["training.num_epochs"]),
    "no entropy bonus": lambda preset: values(entropy_coeff=0.0),
    "entropy bonus 0.05, annealed to 0": lambda preset: values(entropy_coeff=[[0, 0.05], [preset["run.steps"], 0.0]]),
    "lambda 0.9": lambda preset: values(lambda_=0.9),
    "lambda 1": lambda preset: values(lambda_=1.0),
    "weights of torch.nn.Linear's default": lambda preset: [
        *("--model", "fcnet_kernel_initializer=kaiming_uniform_"),
        *("--model", "head_fcnet_kernel_initializer=kaiming_uniform_"),
    ],
    "critic: of all agents (MAPPO), or own if the preset is MAPPO": lambda preset: [
        *("--algo", "ppo" if preset["run.algo"] == "mappo" else "mappo")
    ],
}
FOR_SEVERAL_AGENTS = {name for name in CHANGES if name.startswith(("agent ids", "critic"))}


def settings_of(task: str) -> Tree:
    """Returns the settings of a task with its budget."""
    found = find_task(task)
    assert found is not None
    return resolved({"environment.env": found.env, "run.algo": found.algo, "run.steps": BUDGETS[task]})


def options(task: str, change: str) -> list[str]:
    """Returns the options of ``marl-connectors`` for a task with a change, without seeds and folder."""
    preset = settings_of(task)
    return ["train", task, "--steps", str(BUDGETS[task]), *CHANGES[change](preset)]


def applies(task: str, change: str) -> bool:
    """Whether a change is one for this task: some are for several agents, and some presets have the value already."""
    if change == "nothing":
        return True
    if task in ONE_AGENT and change in FOR_SEVERAL_AGENTS:
        return False
    preset = settings_of(task)
    words = CHANGES[change](preset)
    given = [word.split("=", 1) for option, word in pairwise(words) if option == "--set"]
    return not given or any(json.loads(value) != preset.get(f"training.{name}") for name, value in given)


def trained(options_: list[str], seeds: list[int], module: str = "") -> list[float]:
    """Trains with each seed, and returns the return of an agent after training.

    Args:
        options_: The options of ``marl-connectors``, without seeds and folder.
        seeds: The seeds.
        module: The module whose return it is; ``""`` for the mean over all.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [*options_, "--seeds", ",".join(map(str, seeds)), "--out", f"{folder}/runs"]
        words += ["--eval-episodes", str(EPISODES), "--baseline-seconds", "1", "--no-video"]
        print(shlex.join(["marl-connectors", *words]), flush=True)
        subprocess.run([sys.executable, "-m", "marl_connectors", *words], check=True, stdout=subprocess.DEVNULL)
        found = [read_result(Path(folder, "runs"), seed).measured["after_training"] for seed in seeds]
    wanted = f"return/{module}"
    returns = [[own for name, own in each.items() if name.startswith(wanted)] for each in found]
    return [round(float(np.mean(own)), 3) for own in returns]


def saved(results: Path, task: str) -> dict[str, dict[str, float]]:
    """Returns the returns of a task by change and seed."""
    path = results / f"{task.replace('/', '_')}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def train_missing(
    results: Path, task: str, change: str, options_: list[str], seeds: list[int], module: str = ""
) -> None:
    """Trains with those seeds for which there are no results yet, and saves theirs."""
    missing = [seed for seed in seeds if str(seed) not in saved(results, task).get(change, {})]
    if not missing:
        return
    returns = trained(options_, missing, module)
    every = saved(results, task)
    every.setdefault(change, {}).update({str(seed): mean for seed, mean in zip(missing, returns, strict=True)})
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{task.replace('/', '_')}.json").write_text(json.dumps(every, indent=1) + "\n")
    print(f"{task}, {change}: {returns}", flush=True)


def replace_table(page: Path, begin: str, end: str, new: str) -> None:
    """Replaces what is between two marks of a page."""
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n{new}\n{end}{rest.split(end)[1]}")


def table() -> str:
    """Returns the table in Markdown: mean and standard deviation over seeds."""
    found = {task: by_change for task in BUDGETS if (by_change := saved(RESULTS, task))}
    header = ["changed", *(f"`{task}`, {BUDGETS[task]:,} steps" for task in found)]
    rows = [header, ["---"] * len(header)]
    rows += [[change, *(_cell(found[task].get(change, {})) for task in found)] for change in CHANGES]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cell(by_seed: dict[str, float]) -> str:
    if not by_seed:
        return "–"
    returns = np.array(list(by_seed.values()))
    return f"{returns.mean():.1f}" + (f" ± {returns.std(ddof=1):.1f}" if len(returns) > 1 else "")


def main() -> None:
    """Trains what is missing, or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=sorted(BUDGETS), action="append", help="train this task only; repeatable")
    parser.add_argument("--change", choices=list(CHANGES), action="append", help="with this change only; repeatable")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write-docs", action="store_true", help="train nothing, and write the table")
    args = parser.parse_args()
    if not args.write_docs:
        for task in args.task or BUDGETS:
            for change in args.change or CHANGES:
                if applies(task, change):
                    train_missing(RESULTS, task, change, options(task, change), args.seeds)
        return
    replace_table(DOCS, BEGIN, END, table())


if __name__ == "__main__":
    main()
