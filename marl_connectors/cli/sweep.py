"""``marl-connectors sweep``: searches for good settings with Optuna; each trial is an ordinary run.

::

    sweep.json                  the options, the search space, and the results of all trials
    study.db                    Optuna's storage, for ``optuna-dashboard`` too
    sweep.png                   the metric of all trials, in their order and over each searched setting
    trial0000/, trial0001/, ... the run folder of each trial
    trial0000.log, ...          what its run has printed
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.config.algorithm_config import AlgorithmConfig
from marl_connectors.algorithms.fitting import run_files
from marl_connectors.algorithms.fitting.figures import number, table
from marl_connectors.algorithms.fitting.metric_names import AUTO_METRICS, LOWEST, check_metric, closest_metric
from marl_connectors.algorithms.fitting.pictures import draw_sweep
from marl_connectors.algorithms.fitting.run_folder import Claim
from marl_connectors.callbacks.success import SUCCESS
from marl_connectors.callbacks.trackers import leaves
from marl_connectors.cli import suggestions, training_run
from marl_connectors.cli.folders import SWEEP, new_folder
from marl_connectors.cli.layers import (
    SEARCH,
    SETTINGS,
    SOURCE,
    read_file,
    resolved,
    tree_of_options,
    user_tree,
)
from marl_connectors.cli.made_config import make_config
from marl_connectors.cli.parser import words_of
from marl_connectors.cli.restored_runs import python_source, with_source
from marl_connectors.cli.run_processes import FAILED, RunProcess, train_several
from marl_connectors.cli.search_space import Choices, Range, search_space
from marl_connectors.cli.seed_summary import is_seeds_folder
from marl_connectors.cli.training_run import OUT, PARALLEL, SEEDS
from marl_connectors.cli.tree import (
    ENV,
    NUM_ENV_WORKERS,
    SEED,
    STEPS,
    Tree,
    above,
    flat,
    nested,
    place_of,
    read_setting,
)
from marl_connectors.cli.values import literal_text, require_extras
from marl_connectors.errors import CheckpointError, ConfigError, MarlConnectorsError, describe_error
from marl_connectors.json_data import parsed_json
from marl_connectors.programs import PROGRAM, command

_STUDY_NAME = "sweep"
STUDY, PICTURE = "study.db", "sweep.png"
NUM_TRIALS = 20
REPORTS = 20
"""The number of times in a run at which its metric is reported, and the run may be pruned."""
_STARTUP_TRIALS, _WARMUP_REPORTS = 5, 4
_ROWS = 15
_FOLDER, _ERROR, _STEPS = "folder", "error", "agent_steps"
_STATES = {
    "COMPLETE": "complete",
    "PRUNED": "pruned",
    "FAIL": "failed",
    "RUNNING": "interrupted",
    "WAITING": "interrupted",
}


def run(args: argparse.Namespace) -> int:
    """Searches for settings as the parsed options say. Returns the exit status."""
    given = vars(args)
    former = _resumed(given) if "resume" in given else None
    require_extras("optuna", "matplotlib", "PIL")
    return (_new(given) if former is None else former).run()


@dataclass(slots=True)
class _Running:
    """A trial whose run is being trained.

    Attributes:
        trial: Optuna's trial.
        path: The folder of the run.
        total: The agent steps at which the run ends.
        process: The process of the run; None if an earlier command has trained it.
        offset: The number of bytes of its metrics that were read.
        value: The newest value of the metric; None before the first one.
        steps: The agent steps so far.
        names: The names of all results so far.
        reports: The number of times at which the metric was reported.
        is_pruned: Whether the run was stopped because others are better.
    """

    trial: Any
    path: Path
    total: int
    process: RunProcess | None = None
    offset: int = 0
    value: float | None = None
    steps: int = 0
    names: set[str] = field(default_factory=set)
    reports: int = 0
    is_pruned: bool = False

    def read(self, metric: str) -> None:
        """Reads new rows of the metrics, reports the metric, and stops the run if it is to be pruned."""
        try:
            with open(self.path / run_files.METRICS, "rb") as file:
                file.seek(self.offset)
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                break  # it is being written
            self.offset += len(line)
            row = dict(leaves(parsed_json(line)))
            self.steps = int(row["num_agent_steps_sampled_lifetime"])
            self.names.update(name for name, value in row.items() if value is None or isinstance(value, (int, float)))
            value = row.get(metric)
            if isinstance(value, (int, float)):
                self.value = float(value)
                self._report(min(REPORTS * self.steps // self.total, REPORTS))

    def _report(self, step: int) -> None:
        if step > self.reports and not self.is_pruned:
            self.reports = step
            self.trial.report(self.value, step)
            if step < REPORTS and self.process is not None and self.trial.should_prune():
                self.is_pruned = True
                self.process.send_signal(signal.SIGTERM)


@dataclass(slots=True)
class _Sweep:
    """A sweep.

    Attributes:
        path: Its folder, which exists.
        user: What the user has set for all trials, as ``user_tree`` returns it.
        search: The values that each searched setting may have.
        metric: The name of the metric to be maximised, or ``min:NAME``.
        trials: The number of trials.
        parallel: The number of trials at a time.
        pruner: ``"median"`` or ``"none"``.
        config: The ``AlgorithmConfig`` of a trial, whose settings may be others.
    """

    path: Path
    user: Tree
    search: dict[str, Range | Choices]
    metric: str
    trials: int
    parallel: int
    pruner: str
    config: AlgorithmConfig
    _running: dict[str, _Running] = field(default_factory=dict)

    def run(self) -> int:
        """Runs the trials that are missing, and prints and draws the results. Returns the exit status."""
        with Claim(self.path):
            return self._run()

    def _run(self) -> int:
        optuna = _optuna()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with _reading_study(self.path / STUDY):
            storage = optuna.storages.RDBStorage(f"sqlite:///{self.path.absolute() / STUDY}")
        try:
            with _reading_study(self.path / STUDY):
                study = self._study(storage)
                self._write(study)
                self._take_up(study)
            if not self._has_more(study):
                print(f"All {len(_latest(study.get_trials()))} trials of this sweep are done.", flush=True)
            ended = partial(self._ended, study)
            status = train_several(self._runs(study), self.parallel, ended, self._watch)
            self._write(study)
            return self._finish(study, status)
        finally:
            storage.engine.dispose()

    def _study(self, storage: Any) -> Any:
        optuna = _optuna()
        quiet = optuna.pruners.NopPruner()
        median = optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=_WARMUP_REPORTS)
        direction = "minimize" if self.metric.startswith(LOWEST) else "maximize"
        pruner = median if self.pruner == "median" else quiet
        options = {"storage": storage, "study_name": _STUDY_NAME, "pruner": pruner}
        study = optuna.create_study(**options, direction=direction, load_if_exists=True)
        if study.direction.name.lower() != direction:  # no trial has a value yet
            trials = study.get_trials()
            optuna.delete_study(study_name=_STUDY_NAME, storage=storage)
            study = optuna.create_study(**options, direction=direction)
            for trial in _latest(trials).values():
                study.enqueue_trial(trial.params, user_attrs={_FOLDER: trial.user_attrs[_FOLDER]})
        # Other numbers are drawn when the sweep continues.
        seed = resolved(self.user)[SEED]
        study.sampler = optuna.samplers.TPESampler(seed=None if seed is None else seed + len(study.get_trials()))
        return study

    def _take_up(self, study: Any) -> None:
        """Queues the trials again that were interrupted. Their runs are resumed."""
        states = _optuna().trial.TrialState
        for trial in study.get_trials(states=[states.RUNNING]):
            study.tell(trial.number, state=states.FAIL)
            if trial.params:
                study.enqueue_trial(trial.params, user_attrs={_FOLDER: trial.user_attrs.get(_FOLDER)})

    # Training.

    def _watch(self, name: str) -> None:
        """Reads what the run of a trial has reached."""
        running = self._running[name]
        running.read(self._metric_name())
        if running.names:
            check_metric(self.metric, running.names, self.config, "--metric", self._how_to_change_metric())

    def _how_to_change_metric(self) -> str:
        resume = command(PROGRAM, "sweep", "--resume", self.path, "--metric", "METRIC")
        return f" The sweep is stopped. Continue with another metric: {resume}"

    def _metric_name(self) -> str:
        return self.metric.removeprefix(LOWEST)

    def _has_more(self, study: Any) -> bool:
        states = _optuna().trial.TrialState
        trials = study.get_trials(deepcopy=False)
        return any(trial.state == states.WAITING for trial in trials) or len(_latest(trials)) < self.trials

    def _runs(self, study: Any) -> Iterator[tuple[str, RunProcess]]:
        """Starts the run of each trial, or resumes it."""
        while self._has_more(study):
            folders = _latest(study.get_trials(deepcopy=False))
            trial = study.ask()
            name = trial.user_attrs.get(_FOLDER) or f"trial{len(folders):04d}"
            trial.set_user_attr(_FOLDER, name)
            values = {each: space.suggest(trial, each) for each, space in self.search.items()}
            tree, path = self._tree(values), self.path / name
            options: dict[str, Any] = {"tree": {**tree, OUT: str(path)}}
            if (path / run_files.CONFIG).is_file():
                options = {"resume": str(path)}
                if self.user.get(SOURCE) is not None:
                    options["config"] = self.user[SOURCE]
            print(f"{name}: {_text(values)}", flush=True)
            running = self._running[name] = _Running(trial, path, tree[STEPS])
            if (path / run_files.FINAL).is_file():  # the sweep was stopped after the end of this run
                running.read(self._metric_name())
                self._ended(study, name, 0, "", False)
            else:
                running.process = RunProcess(options, self.path / f"{name}.log")
                yield name, running.process

    def _tree(self, values: Mapping[str, Any]) -> Tree:
        """Returns the settings of a trial."""
        return resolved(self.user, searched_tree(values, self.config))

    def _ended(self, study: Any, name: str, status: int, error: str, is_unexpected: bool) -> int:
        """Tells Optuna how a trial has ended. One that was interrupted is taken up when the sweep continues."""
        states, ended = _optuna().trial.TrialState, self._running.pop(name)
        ended.trial.set_user_attr(_STEPS, ended.steps)
        if error or (not status and ended.value is None):
            more = f" Its output is in {self.path / f'{name}.log'}." if is_unexpected else ""
            if not error:
                hint = closest_metric(self._metric_name(), ended.names)
                error = f"its results have no value of {self._metric_name()!r}. {hint}"
            error = " ".join(f"{error}{more}".split())
            ended.trial.set_user_attr(_ERROR, error)
            study.tell(ended.trial, state=states.FAIL)
            if not status and not any(trial.value is not None for trial in study.get_trials(deepcopy=False)):
                raise ConfigError(f"--metric: {name}: {error}{self._how_to_change_metric()}")
            print(f"marl-connectors: error: {name}: {error}", file=sys.stderr, flush=True)
        elif not status:
            study.tell(ended.trial, ended.value)
            print(f"{name} has ended: {number(ended.value or 0.0)}", flush=True)
        elif ended.is_pruned:
            study.tell(ended.trial, state=states.PRUNED)
            print(f"{name} is stopped, as others are better: {number(ended.value or 0.0)}", flush=True)
        return 0

    # Results.

    def _write(self, study: Any) -> None:
        data = {
            "format_version": 1,
            SETTINGS: nested(self.user),
            "search": {name: space.to_json() for name, space in self.search.items()},
            "metric": self.metric,
            "trials": self.trials,
            "results": _results(study),
        }
        with run_files.writing(self.path):
            run_files.write_json(self.path / SWEEP, data)

    def _finish(self, study: Any, status: int) -> int:
        """Prints and draws the results, and which commands to try next. Returns the exit status."""
        results = _results(study)
        finished = [result for result in results if result["state"] == "complete"]
        is_done = len(results) >= self.trials and not any(result["state"] == "interrupted" for result in results)
        lowest = self.metric.startswith(LOWEST)
        sign = 1 if lowest else -1
        ranked = sorted(finished, key=lambda result: sign * result["value"])
        others = [result for result in results if result["state"] != "complete"]
        if results:
            rows = [self._row(result) for result in [*ranked, *others][:_ROWS]]
            print(f"\n{'Lowest' if lowest else 'Highest'} {self._metric_name()} first:")
            print(table(["trial", "state", "value", "agent steps", *self.search], rows))
            if len(results) > _ROWS:
                print(f"  and {len(results) - _ROWS} more in {self.path / SWEEP}")
        commands = []
        if finished:
            with run_files.writing(self.path / PICTURE):
                draw_sweep(self.path / PICTURE, finished, list(self.search), self._metric_name(), lowest=lowest)
            print(f"\nThe numbers are in {self.path / SWEEP}, the picture in {self.path / PICTURE}.")
            best = self.path / ranked[0]["folder"]
            commands.append(command(PROGRAM, "evaluate", best))
            commands.append(command(PROGRAM, "train", "--config", best / run_files.CONFIG, "--seeds", "1-3"))
        more = ["--trials", 2 * max(self.trials, len(results))] if is_done else []
        again = ["--parallel", self.parallel] if self.parallel > 1 else []
        commands.append(command(PROGRAM, "sweep", "--resume", self.path, *more, *again))
        if status:
            print(f"\nStopped. {len(finished)} trials are complete.")
        suggestions.print_next(commands)
        return status or (0 if finished else FAILED)

    def _row(self, result: Mapping[str, Any]) -> list[str]:
        value = "–" if result["value"] is None else number(result["value"])
        shown = [_short(space.value_of(result["params"].get(name))) for name, space in self.search.items()]
        return [result["folder"], result["state"], value, f"{result['agent_steps']:,}", *shown]


def _optuna() -> Any:
    return import_module("optuna")


@contextlib.contextmanager
def _reading_study(path: Path) -> Iterator[None]:
    """Turns an error of the database into a CheckpointError."""
    try:
        yield
    except MarlConnectorsError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read as the trials of a sweep ({describe_error(error)}). Take a copy of it, or start a "
            f"new sweep."
        ) from error


def searched_tree(values: Mapping[str, Any], config: AlgorithmConfig) -> Tree:
    """Returns the tree of searched settings.

    Args:
        values: Their values by name: a place, the key of an option, ``model.NAME``, ``env_config.NAME``, or the name of
            a setting.
        config: A config of the class that has them.

    Raises:
        ConfigError: If one does not exist, or has a wrong value.
    """
    found: Tree = {}
    for name, value in values.items():
        found |= read_setting(place_of(name, type(config), "--search"), value, config, f"--search {name}")
    return found


def _latest(trials: list[Any]) -> dict[str, Any]:
    """Returns the newest of Optuna's trials of each run folder. A trial that was interrupted has a second one."""
    return {trial.user_attrs[_FOLDER]: trial for trial in trials if trial.user_attrs.get(_FOLDER)}


def _results(study: Any) -> list[dict[str, Any]]:
    """Returns what each trial has reached, as JSON data."""
    return [_described(trial) for trial in _latest(study.get_trials(deepcopy=False)).values()]


def _described(trial: Any) -> dict[str, Any]:
    values = trial.intermediate_values
    last = values[max(values)] if values else None
    return {
        "folder": trial.user_attrs[_FOLDER],
        "state": _STATES[trial.state.name],
        "value": last if trial.value is None else trial.value,
        "agent_steps": trial.user_attrs.get(_STEPS, 0),
        "params": dict(trial.params),
        "error": trial.user_attrs.get(_ERROR, ""),
    }


def _text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={_short(value)}" for name, value in values.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "–" if value is None else literal_text(value)


# The options ---------------------------------------------------------------------------------------------------------


def _new(given: Mapping[str, Any]) -> _Sweep:
    """Makes the folder of a new sweep, after the settings at the ends of all ranges were tried."""
    words = words_of(given)
    if words.last(ENV) is None and words.config is None:
        raise ConfigError("sweep: expected an environment, --config FILE or --resume SWEEP.")
    data, who, _ = ({}, "", None) if words.config is None else read_file(words.config)
    in_file = search_space(data[SEARCH], f"{who}: {SEARCH}") if SEARCH in data else {}
    searched = given.get("search", [])
    search = {**in_file, **dict(searched)}
    user = user_tree(words)
    if not search:
        raise ConfigError(
            "sweep: expected settings to search. Add --search, such as --search lr=1e-4..1e-2:log, or the key 'search' "
            "to the file of --config."
        )
    out, parallel = user.pop(OUT, None), user.pop(PARALLEL, 1)
    user.pop(SEEDS, None)
    config = make_config(resolved(user))
    options = tree_of_options(words, config)
    quick = {"run.video": "none", "run.baseline_seconds": 2.0, "run.keep_checkpoints": 1}
    user = above(user, {place: value for place, value in quick.items() if place not in options})
    of_evaluations, of_training = AUTO_METRICS
    metric = given.get("metric", (of_evaluations if config.evaluation_interval else of_training)[-1])
    if parallel > 1 or metric.endswith(f"/{SUCCESS}"):
        # the trials use the cores, and success is measured in their processes
        user = {NUM_ENV_WORKERS: 0, **user}
    check_metric(metric, (), config, "--metric")
    _check_names([*(name for name in in_file if name not in dict(searched)), *(name for name, _ in searched)], config)
    too_short: dict[str, None] = {}
    for name, space in search.items():
        for value in space.ends():
            tried = make_config(resolved(user, searched_tree({name: value}, config)))
            training_run.check_extras(tried)
            assert tried.steps is not None
            too_short |= dict.fromkeys(_without_learning(tried.steps, tried, metric))
    name = training_run.folder_name(config).removesuffix(f"-seed{config.seed}")
    path = new_folder(out, f"{name}-sweep")
    trials = given.get("trials", NUM_TRIALS)
    for warning in too_short:
        print(f"marl-connectors: warning: {warning}", file=sys.stderr, flush=True)
    print(f"Searching {', '.join(search)} in {trials} trials, {parallel} at a time, in {path}", flush=True)
    return _Sweep(path, user, search, metric, trials, parallel, given.get("pruner", "median"), config)


def _check_names(names: Sequence[str], config: AlgorithmConfig) -> None:
    """Checks that all searched settings exist, and that each is searched once.

    Raises:
        ConfigError: If not.
    """
    seen: set[str] = set()
    for name in names:
        if (place := place_of(name, type(config), "--search")) in seen:
            raise ConfigError(f"--search: {name!r} is searched twice. Leave one out.")
        if place in (OUT, PARALLEL, SEEDS):
            raise ConfigError(f"--search: {name!r} is no setting of a trial. Leave it out.")
        seen.add(place)


def _without_learning(steps: int, config: AlgorithmConfig, metric: str) -> Iterator[str]:
    """Yields a warning if a trial ends before its metric can show what it has learned."""
    batch = config.total_train_batch_size
    updates_while_sampling = hasattr(config, "min_sample_timesteps_per_iteration")
    if steps <= batch and not updates_while_sampling and metric.removeprefix(LOWEST).startswith("env_runners/"):
        yield (
            f"sweep: a trial of --steps {steps} has one iteration, because a train batch has {batch:,} steps. "
            f"{metric.removeprefix(LOWEST)} is measured before the update, so it does not depend on what is learned. "
            f"Use more --steps, or smaller batches: --set train_batch_size_per_learner=N."
        )


def _resumed(given: Mapping[str, Any]) -> _Sweep:
    """Reads the options of a sweep."""
    words = words_of(given)
    for option in [*("--search" for _ in given.get("search", [])), *(flag for flag, _ in words.given)]:
        if option != "--parallel":
            raise ConfigError(
                f"sweep --resume: {option} cannot be changed. You can change: --trials, --parallel, --pruner, "
                f"--metric and --config."
            )
    parallel = tree_of_options(words, AlgorithmConfig()).get(PARALLEL, 1)
    path = Path(given["resume"])
    if not (path / SWEEP).is_file():
        if (path / run_files.CONFIG).is_file() or is_seeds_folder(path):
            resume = command(PROGRAM, "train", "--resume", path)
            raise ConfigError(f"sweep --resume: expected the folder of a sweep, but {path} is a run. Use: {resume}")
        raise ConfigError(f"sweep --resume: expected the folder of a sweep, but {path} has no {SWEEP}. Check the path.")
    data = run_files.read_json(path, SWEEP)
    try:
        search = search_space(data["search"], str(path / SWEEP))
        user, metric, trials = flat(data[SETTINGS], str(path / SWEEP)), str(data["metric"]), int(data["trials"])
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path / SWEEP} is damaged: {type(error).__name__}: {error}. Correct it.") from error
    if not (path / STUDY).is_file():
        raise CheckpointError(
            f"sweep --resume: {path} has no {STUDY} any more, in which its trials are. Put it back, or start a new "
            f"sweep. The runs of the trials are whole."
        )
    wanted = given.get("metric", metric)
    if wanted != metric and any(result["value"] is not None for result in data.get("results", [])):
        raise ConfigError(
            f"sweep --resume: --metric cannot be changed, because trials have values of {metric!r}. Start a new sweep."
        )
    if source := python_source(given.get("config"), trusted=True):
        user = with_source(user, source)
    config = make_config(resolved(user))
    return _Sweep(
        *(path, user, search, wanted, given.get("trials", trials), parallel, given.get("pruner", "median"), config)
    )
