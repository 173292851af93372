"""``marl-connectors train --seeds``: the same settings with several seeds, in one folder.

::

    seeds.json           the options, the seeds, what each has reached, and the statistics over seeds
    learning_curves.png  mean return per module over agent steps, with its interval over seeds
    seed0/, seed1/, ...  the run folder of each seed
    seed0.log, ...       what the run of each seed has printed, if several are trained at a time
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.fitting import run_files
from marl_connectors.algorithms.fitting.run_folder import Claim
from marl_connectors.algorithms.fitting.stop_signals import exit_status
from marl_connectors.cli import seed_summary, suggestions, training_run
from marl_connectors.cli.command_settings import seeds_of
from marl_connectors.cli.folders import SEEDS, new_folder
from marl_connectors.cli.known_algorithms import ALGORITHMS, config_class
from marl_connectors.cli.layers import ALGO, SOURCE, tree_of_options
from marl_connectors.cli.made_config import new_config
from marl_connectors.cli.parser import words_of
from marl_connectors.cli.python_config import has_source, load_config
from marl_connectors.cli.restored_runs import python_source, with_source
from marl_connectors.cli.run_processes import FAILED, RunProcess, train_several
from marl_connectors.cli.seed_summary import FINISHED, SeedResult, is_seeds_folder, seed_folder
from marl_connectors.cli.training_run import OUT, PARALLEL
from marl_connectors.cli.training_run import SEEDS as SEEDS_PLACE
from marl_connectors.cli.tree import NUM_ENV_WORKERS, SEED, STEPS, Tree, above
from marl_connectors.cli.values import require_extras, seeds_text
from marl_connectors.errors import CheckpointError, ConfigError, MarlConnectorsError, describe_error
from marl_connectors.programs import PROGRAM, command


def is_for_seeds(given: Mapping[str, Any]) -> bool:
    """Whether the parsed options of ``train`` are for runs with several seeds."""
    if "resume" in given:
        flags = {flag for flag, _ in given.get("given", [])}
        return bool({"--seeds", "--parallel"} & flags) or is_seeds_folder(Path(given["resume"]))
    return "tree" in given and bool({SEEDS_PLACE, PARALLEL} & given["tree"].keys())


def run(given: Mapping[str, Any]) -> int:
    """Trains modules with several seeds as the options and the file of the command say. Returns the exit status."""
    require_extras("matplotlib", "PIL", *(["rich"] if sys.stdout.isatty() else []))
    runs = _resumed(given) if "resume" in given else _new(given)
    try:
        return runs.run()
    finally:
        runs.remove_if_unused()


@dataclass(slots=True)
class _SeedRuns:
    """Runs that differ in their seed.

    Attributes:
        path: Their folder, which exists.
        seeds: The seeds.
        tree: The settings of each new run, without its seed and its folder.
        changes: The settings that this command changes.
        reading: ``trusted``, ``new_episodes`` and ``config`` of this command, for runs that are resumed.
        parallel: The number of runs at a time.
        is_new: Whether none of them was begun by an earlier command.
        errors: Seed to the error that has stopped its run.
        has_crashed: Whether a process has ended with an error that its log explains.
    """

    path: Path
    seeds: list[int]
    tree: Tree
    changes: Tree
    reading: dict[str, Any]
    parallel: int
    is_new: bool
    errors: dict[int, str] = field(default_factory=dict)
    has_crashed: bool = False

    def run(self) -> int:
        """Trains the seeds that are not finished, and prints what all of them have reached. Returns the exit status."""
        with Claim(self.path):
            return self._run()

    def _run(self) -> int:
        results = self._results()
        self._write(results)
        for result in results:
            if result.error:  # its files are damaged
                self._failed(result.seed, result.error)
        waiting = [result.seed for result in results if result.status != FINISHED and not result.error]
        if waiting:
            how = "one after another" if self.parallel == 1 else f"{self.parallel} at a time"
            print(f"Training with the seeds {seeds_text(waiting)}, {how}, in {self.path}", flush=True)
        elif not self.errors:
            print(f"All seeds in {self.path} are finished.", flush=True)
        status = 0
        try:
            status = self._in_turn(waiting) if self.parallel == 1 else self._in_parallel(waiting)
        except KeyboardInterrupt as stop:
            status = exit_status(stop)
        results = self._results()
        if all(result.status == seed_summary.MISSING for result in results) and (status or self.errors):
            if status:
                print("Stopped. Nothing of it was saved.", flush=True)
            return status or FAILED
        self._write(results)
        if status:
            finished = sum(result.status == FINISHED for result in results)
            print(f"\nStopped. {finished} of {len(results)} seeds are finished. {self._resume_hint()}", flush=True)
            return status
        self._finish(results)
        return FAILED if self.errors else 0

    def remove_if_unused(self) -> None:
        """Removes the folder if there is neither a run nor an unexpected error in it."""
        if self.has_crashed or any((self.path / seed_folder(seed)).exists() for seed in self.seeds):
            return
        with contextlib.suppress(OSError):
            for name in (SEEDS, *(_log_name(seed) for seed in self.seeds)):
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    # Training.

    def _in_turn(self, waiting: list[int]) -> int:
        """Trains one seed after another in this process. Returns the status of a run that was interrupted, or 0."""
        for index, seed in enumerate(waiting):
            print(f"\nSeed {seed} ({index + 1} of {len(waiting)})", flush=True)
            training = None
            try:
                training = training_run.prepared(self._options_of(seed))
                status = training.run(suggests=False)
            except MarlConnectorsError as error:
                if training is None and self.is_new and index == 0:
                    raise  # it is in the settings, which are those of all seeds
                self._failed(seed, str(error))
            except BrokenPipeError:
                raise
            except Exception as error:
                traceback.print_exc()
                self._failed(seed, describe_error(error))
            else:
                if status:
                    return status
        return 0

    def _in_parallel(self, waiting: list[int]) -> int:
        """Trains several seeds at a time, each in a process. Returns the status of an interruption, or 0."""
        seeds = {f"seed {seed}": seed for seed in waiting}

        def runs() -> Iterator[tuple[str, RunProcess]]:
            for name, seed in seeds.items():
                log = self.path / _log_name(seed)
                yield name, RunProcess(self._options_of(seed), log)
                print(f"Seed {seed} is being trained. Its output goes to {log}", flush=True)

        return train_several(runs(), self.parallel, lambda name, *result: self._ended(seeds[name], *result))

    def _ended(self, seed: int, status: int, error: str, is_unexpected: bool) -> int:
        """Prints how the process of a seed has ended. Returns the status if it was interrupted, or 0."""
        if error:
            self.has_crashed |= is_unexpected
            more = f" Its output is in {self.path / _log_name(seed)}." if is_unexpected else ""
            self._failed(seed, f"{error}{more}")
            return 0
        print(f"Seed {seed} is {'stopped' if status else 'finished'}.", flush=True)
        return status

    def _failed(self, seed: int, error: str) -> None:
        self.errors[seed] = " ".join(error.split())
        print(f"marl-connectors: error: seed {seed}: {self.errors[seed]}", file=sys.stderr, flush=True)

    def _options_of(self, seed: int) -> dict[str, Any]:
        """Returns the options of ``train`` for a seed: to begin its run, or to resume it."""
        path = self.path / seed_folder(seed)
        if (path / run_files.CONFIG).is_file():
            return {"resume": str(path), "changes": self.changes, **self.reading}
        return {"tree": {**above(self.tree, self.changes), SEED: seed, OUT: str(path)}}

    # Results.

    def _results(self) -> list[SeedResult]:
        steps, results = self.changes.get(STEPS), []
        for seed in self.seeds:
            error = self.errors.get(seed, "")
            try:
                results.append(seed_summary.read_result(self.path, seed, steps=steps, error=error))
            except CheckpointError as damage:
                results.append(SeedResult(seed, seed_folder(seed), seed_summary.UNFINISHED, error=error or str(damage)))
        return results

    def _write(self, results: list[SeedResult]) -> None:
        seed_summary.write_seeds(self.path, above(self.tree, self.changes), results)

    def _finish(self, results: list[SeedResult]) -> None:
        """Prints and draws what all seeds have reached."""
        seed_summary.draw_learning_curves(self.path, results)
        finished = [result for result in results if result.status == FINISHED]
        print("\nReturn of an agent per episode after training, the mean of each seed's evaluation:")
        print(seed_summary.summary_table(results))
        print(seed_summary.about_intervals(results))
        print(f"\nThe numbers are in {self.path / SEEDS}, the curves in {self.path / seed_summary.LEARNING_CURVES}.")
        commands = [] if not self.errors else [self._resume_command()]
        if finished:
            commands.append(command(PROGRAM, "evaluate", self.path / finished[0].folder))
        if any((self.path / result.folder / run_files.EVENTS).is_dir() for result in results):
            commands.append(command("tensorboard", "--logdir", self.path))
        suggestions.print_next(commands)

    def _resume_hint(self) -> str:
        return f"Resume with: {self._resume_command()}"

    def _resume_command(self) -> str:
        words = [PROGRAM, "train", "--resume", str(self.path)]
        if STEPS in self.changes:
            words += ["--steps", str(self.changes[STEPS])]
        if self.parallel > 1:
            words += ["--parallel", str(self.parallel)]
        return command(*words, *(["--untrusted"] if "trusted" in self.reading else []))


# The options ---------------------------------------------------------------------------------------------------------


def _new(given: Mapping[str, Any]) -> _SeedRuns:
    """Makes the folder for new runs."""
    tree = given["tree"]
    if tree.get(SEEDS_PLACE) is None:
        raise ConfigError("train: --parallel is for several seeds. Add --seeds, such as --seeds 0-4, or leave it out.")
    seeds, parallel = seeds_of(tree[SEEDS_PLACE]), tree.get(PARALLEL, 1)
    if parallel > 1:
        tree = {NUM_ENV_WORKERS: 0, **tree}  # the processes of the seeds use the cores
    config = new_config({**tree, SEED: seeds[0]})
    training_run.check_extras(config)
    name = training_run.folder_name(config).removesuffix(f"-seed{seeds[0]}")
    path = new_folder(tree.get(OUT), f"{name}-seeds{seeds_text(seeds)}")
    return _SeedRuns(path, seeds, _of_one(tree), {}, {}, parallel, is_new=True)


def _resumed(given: Mapping[str, Any]) -> _SeedRuns:
    """Reads the settings of earlier runs. Options of this command that are the same are accepted."""
    path = Path(given["resume"])
    if not is_seeds_folder(path):
        raise ConfigError(
            f"train --resume: expected a folder with runs of several seeds, but {path} has no {SEEDS}. Leave out "
            f"--seeds and --parallel to resume a single run."
        )
    tree, seeds = seed_summary.read_seeds(path)
    reading = {name: given[name] for name in ("trusted", "new_episodes") if name in given}
    source = python_source(given.get("config"), given.get("trusted", True))
    if source is not None:
        reading["config"], tree = source, with_source(tree, source)
    own, trusted = tree.get(SOURCE), given.get("trusted", True)
    if own is not None and trusted and has_source(own):
        config = load_config(own)
    else:
        config = config_class(tree[ALGO] if tree[ALGO] in ALGORITHMS else "ppo")()
    words = tree_of_options(words_of(given)._replace(config=None), config)
    more, parallel = seeds_of(words.pop(SEEDS_PLACE, seeds)), words.pop(PARALLEL, 1)
    changes = {
        place: value
        for place, value in words.items()
        if not (place in tree and tree[place] == value) and not (place == OUT and Path(value) == path)
    }
    training_run.check_changeable(changes, type(config))
    seeds = list(dict.fromkeys([*seeds, *more]))
    if not trusted and (new := [seed for seed in seeds if not (path / seed_folder(seed) / run_files.CONFIG).is_file()]):
        raise ConfigError(
            f"train --resume: the runs of the seeds {seeds_text(new)} begin anew and import what {path / SEEDS} names, "
            f"but --untrusted imports none of it. Leave --untrusted out."
        )
    return _SeedRuns(path, seeds, tree, changes, reading, parallel, is_new=False)


def _of_one(tree: Tree) -> Tree:
    """Returns the settings of each of several runs."""
    return {place: value for place, value in tree.items() if place not in (SEEDS_PLACE, PARALLEL, OUT, SEED)}


def _log_name(seed: int) -> str:
    return f"{seed_folder(seed)}.log"
