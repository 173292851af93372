"""``Algorithm.fit``: iterations until a goal, with progress, checkpoints, and an orderly end after Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_connectors.algorithms.fitting.fit_results import FitResults
from marl_connectors.algorithms.fitting.progress import COUNTS, Goal, NoProgress, Progress, Watched, open_progress
from marl_connectors.algorithms.fitting.run_files import (
    CHECKPOINTS,
    CONFIG,
    METRICS,
    RunFiles,
    best_iteration,
    go_back_to,
    is_number,
    read_metrics,
    resume_in_python,
    writing,
)
from marl_connectors.algorithms.fitting.saver import Saver
from marl_connectors.algorithms.fitting.stop_conditions import StopConditions
from marl_connectors.algorithms.fitting.stop_signals import InterruptGate
from marl_connectors.callbacks.trackers import Tracker
from marl_connectors.checkpoints import is_checkpoint
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.validators import integer

WHO = "Algorithm.fit"


def fit(
    algo: Any,
    amounts: Mapping[str, Any],
    *,
    stop: Any,
    callbacks: Any,
    checkpoint_folder: str | Path | None,
    checkpoint_every: int,
    keep_checkpoints: int | None,
    keep_best: str | None,
    progress: bool,
) -> FitResults:
    """Trains an algorithm as ``Algorithm.fit`` describes.

    Args:
        algo: The Algorithm.
        amounts: ``num_agent_steps``, ``num_env_steps`` and ``num_iterations`` of ``Algorithm.fit``.
        stop: As there.
        callbacks: As there.
        checkpoint_folder: As there.
        checkpoint_every: As there.
        keep_checkpoints: As there.
        keep_best: As there.
        progress: As there.
    """
    more = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    conditions = StopConditions(stop, algo.config, more)
    name, goal = _goal(amounts, _counts(algo), conditions)
    every = integer(min=1).check(checkpoint_every, WHO, "checkpoint_every")
    if keep_checkpoints is not None:
        integer(min=1).check(keep_checkpoints, WHO, "keep_checkpoints")
    with algo.callbacks.extended(callbacks) as added:
        for tracker in added:
            if isinstance(tracker, Tracker) and algo.iteration:
                tracker.continue_after(algo.num_agent_steps)
        files = None
        if checkpoint_folder is not None:
            files = _files(algo, Path(checkpoint_folder), keep_best=keep_best, keep_checkpoints=keep_checkpoints)
        saver = None if files is None else Saver(algo, every, _saved_iteration(files, algo))
        return _Fit(algo, name, goal, conditions, files, saver, progress).run()


@dataclass(slots=True)
class _Fit:
    """One call of ``Algorithm.fit``.

    Attributes:
        algo: The Algorithm.
        name: The name of the amount, such as ``"num_agent_steps"``; "" if only conditions end the call.
        goal: The end of the call.
        conditions: The other conditions.
        files: The metrics and checkpoints of the run; None without ``checkpoint_folder``.
        saver: Decides when to save; None without ``checkpoint_folder``.
        has_progress: Whether progress is displayed.
    """

    algo: Any
    name: str
    goal: Goal
    conditions: StopConditions
    files: RunFiles | None
    saver: Saver | None
    has_progress: bool

    def run(self) -> FitResults:
        results = FitResults()
        counts = _counts(self.algo)
        for key, level in self.conditions.totals.items():
            if counts[key] >= level:
                return self._ended(results, "stop", f"{key} is {counts[key]:,} already, at least {level:,.15g}")
        with self._signal_raised_again() as gate, self._display() as display:
            stopped_by, reason = "", ""
            while not stopped_by:
                with gate.iteration(), contextlib.nullcontext() if self.saver is None else self.saver.iteration():
                    result = self.algo.train()
                results.add(result)
                try:
                    stopped_by, reason = self._end(result, gate)
                finally:  # a function of the user's, which may fail, does not lose the iteration
                    self._save(result, is_last=bool(stopped_by))
                display.update(result)
            if self.saver is not None and self.files is not None:
                self.saver.save(self.files, self.algo.iteration)
            self._ended(results, stopped_by, reason)
            if stopped_by == "interrupt":
                display.say(f"Stopped after iteration {self.algo.iteration}, as asked. {self._hint(results)}")
        return results

    def _end(self, result: dict[str, Any], gate: InterruptGate) -> tuple[str, str]:
        """Returns why the call ends after an iteration, as a word and as a sentence; two empty texts if it goes on."""
        if met := self.conditions.met_by(result):
            return "stop", met
        if self.goal.total is not None and self.name and result[self.goal.count] >= self.goal.total:
            return self.name, f"{self.name}={self.goal.total - self.goal.origin:,} is reached"
        if gate.requested is not None:
            return "interrupt", f"{signal.Signals(gate.requested).name} after iteration {self.algo.iteration}"
        return "", ""

    def _save(self, result: dict[str, Any], *, is_last: bool) -> None:
        if self.files is not None and self.saver is not None:
            self.files.log(result)
            self.saver.iteration_ended(self.files, self.algo.iteration, is_last=is_last)

    def _ended(self, results: FitResults, stopped_by: str, reason: str) -> FitResults:
        results.stopped_by, results.reason = stopped_by, reason
        if self.files is not None:
            folder = self.files.path / CHECKPOINTS
            results.checkpoint = max(_checkpoints(folder), key=lambda path: int(path.name), default=None)
            best = best_iteration(self.files.path)
            results.best_checkpoint = None if best is None else folder / f"{best:06d}"
        return results

    def _hint(self, results: FitResults) -> str:
        go_on = "Call fit again to go on."
        return go_on if results.checkpoint is None else f"The newest checkpoint is {results.checkpoint}. {go_on}"

    @contextlib.contextmanager
    def _display(self) -> Iterator[Progress]:
        """Shows progress in its block. If the block fails, the newest complete state is saved."""
        display: Progress = NoProgress()
        if self.has_progress:
            steps, runners = self.algo.num_agent_steps, self.algo.config.num_env_runners
            display = open_progress(Watched(self.goal, steps, sys.stdout, runners, lambda: self.algo.activity))
        try:
            yield display
        except BaseException:
            if self.saver is not None and self.files is not None:
                with contextlib.suppress(CheckpointError):  # the error that ends the call must not be hidden
                    self.saver.save_last(self.files)
            raise
        finally:
            display.close()

    @contextlib.contextmanager
    def _signal_raised_again(self) -> Iterator[InterruptGate]:
        """Lets an iteration end after a signal in its block. Signals other than Ctrl-C then do what they usually do."""
        gate = InterruptGate()
        try:
            with gate:
                self.algo.ends_evaluations = gate.is_requested
                yield gate
        finally:
            self.algo.ends_evaluations = None
            if gate.requested not in (None, signal.SIGINT):
                signal.raise_signal(gate.requested)


def _counts(algo: Any) -> dict[str, int]:
    """Returns what the algorithm has counted so far, under the keys of its results."""
    counted = (algo.num_agent_steps, algo.num_env_steps, algo.iteration)
    return dict(zip(COUNTS.values(), counted, strict=True))


def _goal(amounts: Mapping[str, Any], counts: Mapping[str, int], conditions: StopConditions) -> tuple[str, Goal]:
    """Returns the name of the amount that was given, "" for none, and the goal that is displayed.

    Raises:
        ConfigError: If there is no amount and no condition, or several amounts, or one that is not a whole number.
    """
    given = {name: amount for name, amount in amounts.items() if amount is not None}
    if len(given) > 1:
        raise ConfigError(
            f"{WHO}: expected one of {', '.join(amounts)}, but got {' and '.join(given)}. Use stop= for others."
        )
    for name, amount in given.items():
        whole = int(amount) if isinstance(amount, float) and amount.is_integer() else amount  # such as 1e6
        key = COUNTS[name]
        total = counts[key] + integer(min=1).check(whole, WHO, name)
        return name, Goal(total, key, counts[key])
    if not conditions:
        raise ConfigError(
            f"{WHO}: say when training ends: {', '.join(f'{name}=' for name in amounts)} or stop=. For example: "
            f"algo.fit(num_agent_steps=100_000)"
        )
    for key, level in conditions.totals.items():
        return "", Goal(int(level), key, counts[key])
    return "", Goal(None)


def _files(algo: Any, path: Path, *, keep_best: str | None, keep_checkpoints: int | None) -> RunFiles:
    """Makes the folder of a run, or goes on in it.

    Raises:
        ConfigError: If it has the files of another run, or later checkpoints of this one.
        CheckpointError: If it cannot be written, or its metrics are damaged.
    """
    if (path / CONFIG).exists():
        raise ConfigError(
            f"{WHO}: checkpoint_folder: {path} is the folder of a run of the command line, which continues with: "
            f"marl-connectors train --resume {path}. Choose another folder."
        )
    newest = max((int(entry.name) for entry in _checkpoints(path / CHECKPOINTS)), default=0)
    go_on = f"Continue with Algorithm.from_checkpoint({str(path)!r}), choose another folder, or delete"
    is_own = path.resolve() in algo.run_folders
    if not is_own and (newest or read_metrics(path / METRICS, up_to=algo.iteration)[0]):
        raise ConfigError(
            f"{WHO}: checkpoint_folder: {path} has the files of another run: this algorithm was neither restored from "
            f"it nor saved in it. {go_on} this one."
        )
    if newest > algo.iteration:
        raise ConfigError(
            f"{WHO}: checkpoint_folder: {path} has checkpoints up to iteration {newest}, but this algorithm is at "
            f"iteration {algo.iteration}, so it would replace them. {go_on} those after iteration {algo.iteration}."
        )
    resume = resume_in_python(path) if newest else ""
    with writing(path, resume):
        (path / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        (path / METRICS).touch()
    go_back_to(path, algo.iteration, resume)
    algo.run_folders.add(path.resolve())
    return RunFiles(path, keep_best, keep_checkpoints)


def _checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder that are named after their iterations."""
    found = folder.iterdir() if folder.is_dir() else ()
    return [entry for entry in found if is_number(entry.name) and is_checkpoint(entry)]


def _saved_iteration(files: RunFiles, algo: Any) -> int:
    """Returns the iteration of the algorithm if a checkpoint has it, else -1."""
    return algo.iteration if is_checkpoint(files.path / CHECKPOINTS / f"{algo.iteration:06d}") else -1
