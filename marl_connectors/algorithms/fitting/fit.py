"""Training to a goal, for ``Algorithm.fit`` and the command line."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.config.algorithm_config import check_run
from marl_connectors.algorithms.config.sections import NotProvided
from marl_connectors.algorithms.fitting.baselines import Baselines
from marl_connectors.algorithms.fitting.caller import Caller
from marl_connectors.algorithms.fitting.closing_evaluation import ClosingEvaluation
from marl_connectors.algorithms.fitting.figures import megabytes, number, time_shares
from marl_connectors.algorithms.fitting.fit_results import FitResults
from marl_connectors.algorithms.fitting.metric_names import check_metric
from marl_connectors.algorithms.fitting.parts import Part, Run
from marl_connectors.algorithms.fitting.progress import COUNTS, Goal, Progress, Watched, open_progress
from marl_connectors.algorithms.fitting.run_files import (
    CHECKPOINTS,
    CONFIG,
    CURVES,
    EVENTS,
    METRICS,
    best_iteration,
)
from marl_connectors.algorithms.fitting.run_folder import RunFolder, numbered_checkpoints
from marl_connectors.algorithms.fitting.saver import Saver
from marl_connectors.algorithms.fitting.stop_conditions import StopConditions
from marl_connectors.algorithms.fitting.stop_signals import InterruptGate, StopSignal
from marl_connectors.algorithms.fitting.tracking import Tracking
from marl_connectors.algorithms.fitting.video import Videos
from marl_connectors.callbacks.trackers import Tracker, leaves
from marl_connectors.checkpoints import is_checkpoint
from marl_connectors.errors import CheckpointError, ConfigError, MarlConnectorsError, describe_error
from marl_connectors.validators import integer

if TYPE_CHECKING:
    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.algorithms.results import TrainResults

PARTS: tuple[type[Part], ...] = (Baselines, Tracking, ClosingEvaluation, Videos)
"""What a run makes in its folder beside results, checkpoints and curves, in the order in which it is made."""
STEPS = "steps"
"""The amount of agent steps that counts those of the whole run."""


def fit(
    algo: Algorithm,
    amounts: Mapping[str, Any],
    *,
    settings: Mapping[str, Any],
    stop: Any = None,
    callbacks: Any = None,
    folder: str | Path | None = None,
    progress: bool = True,
    caller: Caller | None = None,
) -> FitResults:
    """Trains an algorithm as ``Algorithm.fit`` describes.

    Args:
        algo: The Algorithm.
        amounts: ``num_agent_steps``, ``num_env_steps`` and ``num_iterations`` of ``Algorithm.fit``.
        settings: Its arguments that are settings of the config, which they change.
        stop: As there.
        callbacks: As there.
        folder: As there.
        progress: As there.
        caller: Who calls; None for a program in Python.
    """
    caller = caller or Caller()
    more = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
    conditions = StopConditions(stop, algo.config, more)
    given = {name: value for name, value in settings.items() if value is not NotProvided}
    if STEPS in given:
        given[STEPS] = _whole(given[STEPS])
    tried = algo.config.copy()
    tried.change(caller.who, **given)
    check_run(tried, f"{caller.who}: ")
    amounts = {**amounts, STEPS: given.get(STEPS)}
    name, goal = _goal(amounts, tried.steps, _counts(algo), conditions, caller.who)
    if given:
        algo.config.change(caller.who, **given)
    with contextlib.ExitStack() as stack:
        for tracker in stack.enter_context(algo.callbacks.extended(callbacks)):
            if isinstance(tracker, Tracker) and algo.iteration:
                tracker.continue_after(algo.num_agent_steps)
        run = None
        if folder is not None:
            opened = stack.enter_context(RunFolder.opened(algo, Path(folder), caller))
            run = Run(algo, opened, caller, _say if progress else Progress().say, progress)
        return _Loop(algo, name, goal, conditions, caller, progress, run, more).run_to_the_end()


class _Loop:
    """One call of ``fit``."""

    def __init__(
        self,
        algo: Algorithm,
        name: str,
        goal: Goal,
        conditions: StopConditions,
        caller: Caller,
        shows: bool,
        run: Run | None,
        callbacks: Sequence[Any],
    ):
        """Prepares the call.

        Args:
            algo: The Algorithm.
            name: The name of the amount, such as ``"num_agent_steps"``; "" if only conditions end the call.
            goal: The end of the call.
            conditions: The other conditions.
            caller: Who has called.
            shows: Whether progress is displayed.
            run: The run in the folder; None without one.
            callbacks: The callbacks of this call.
        """
        self._algo, self._name, self._goal, self._conditions = algo, name, goal, conditions
        self._caller, self._shows, self._run, self._callbacks = caller, shows, run, callbacks
        self._say = _say if shows else Progress().say
        self._parts = [] if run is None else [make(run) for make in PARTS]
        self._saver = None if run is None else Saver(algo, run.folder, run.settings.checkpoint_every, self._saved(run))
        self._gate = InterruptGate()
        self._requested: int | None = None
        self._timers: Counter[str] = Counter()
        self._results = FitResults()

    def _saved(self, run: Run) -> int:
        """Returns the iteration of the algorithm if a checkpoint has it, else -1."""
        iteration = self._algo.iteration
        return iteration if is_checkpoint(run.folder.path / CHECKPOINTS / f"{iteration:06d}") else -1

    def run_to_the_end(self) -> FitResults:
        """Trains until the goal is reached, and makes what comes at the end."""
        run, results = self._run, self._results
        results.stopped_by, results.reason = self._reached()
        try:
            if not (results.stopped_by and (run is None or not run.folder.is_begun or run.folder.is_finished)):
                self._train_and_finish()
        except BaseException as error:
            self._save_last()
            self._say_how_it_stopped(error)
            raise
        finally:
            for part in self._parts:
                part.close()
            if self._requested is not None:
                self._caller.stopped(self._requested)
        if run is not None:
            folder = run.folder.path / CHECKPOINTS
            results.checkpoint = max(numbered_checkpoints(folder), key=lambda path: int(path.name), default=None)
            best = best_iteration(run.folder.path)
            results.best_checkpoint = None if best is None else folder / f"{best:06d}"
        return results

    def _train_and_finish(self) -> None:
        run, results = self._run, self._results
        if not results.stopped_by:
            if run is not None and run.folder.goes_on:
                self._check_metric(run.folder.names)
                run.folder.write_config(self._algo)
                run.folder.train_further()
            else:
                for part in self._parts:
                    part.before_training()
            with self._gate, self._display() as display:
                self._algo.ends_evaluations = self._gate.is_requested
                try:
                    self._train(display)
                finally:
                    self._algo.ends_evaluations = None
                    self._requested = self._gate.requested
        if self._requested is not None:
            how = "Call fit again to go on." if run is None else f"Resume with: {run.folder.resume}"
            self._say(f"Stopped at {self._algo.num_agent_steps:,} agent steps. {how}")
        elif run is not None:
            for part in self._parts:
                if run.requested is None:
                    part.at_end()
            self._requested = run.requested
            if self._requested is None:
                self._say_what_there_is(run)
        if self._requested is not None:
            results.stopped_by = "interrupt"
            results.reason = f"{signal.Signals(self._requested).name} after iteration {self._algo.iteration}"

    def _train(self, display: Progress) -> None:
        """Runs iterations until the goal is reached or a signal asks for an end."""
        results, run, saver = self._results, self._run, self._saver
        if run is not None:
            run.say = display.say
        try:
            while not results.stopped_by:
                with self._gate.iteration():
                    result = self._algo.train()
                results.add(result, newest_only=not self._caller.keeps_results)
                seconds = result["timers"]
                self._timers.update({name: s for name, s in seconds.items() if not isinstance(s, Mapping)})
                self._log(result)
                try:
                    results.stopped_by, results.reason = self._end(result)
                finally:  # a function of the user's, which may fail, does not lose the iteration
                    if saver is not None:
                        saver.iteration_ended(self._algo.iteration, is_last=bool(results.stopped_by))
                display.update(result)
                if run is not None:
                    self._check_metric(run.folder.names)
                for part in self._parts:
                    part.after_iteration(result)
        except MarlConnectorsError as error:
            if self._gate.requested is None:
                raise
            # A signal that stops the whole job often stops the environment's processes, too.
            print(f"The iteration was given up: {' '.join(str(error).split())}", file=sys.stderr)
            raise StopSignal(self._gate.requested) from error
        finally:
            if run is not None:
                run.say = self._say
        if run is not None and saver is not None:
            saver.save(self._algo.iteration)
            run.folder.draw_curves()

    def _log(self, result: TrainResults) -> None:
        """Writes the result of an iteration. The first one makes the folder a run."""
        run = self._run
        if run is None:
            return
        if not run.folder.is_begun:
            self._check_metric({name for name, _ in leaves(result)})
            run.folder.begin(self._algo)
            run.say(f"Everything of this run goes to {run.folder.path}")
        run.folder.log(result)
        for part in self._parts:
            part.on_result(result)

    def _check_metric(self, names: Collection[str]) -> None:
        run = self._run
        if run is not None and names:
            keep_best = run.settings.keep_best
            who = self._caller.name("keep_best")
            check_metric(keep_best, names, self._algo.config, who, callbacks=self._callbacks)

    def _reached(self) -> tuple[str, str]:
        """Returns why there is nothing to train, as a word and as a sentence; two empty texts if there is."""
        counts = _counts(self._algo)
        levels = {"stop": self._conditions.totals}
        if self._name == STEPS:
            levels[STEPS] = {self._goal.count: float(self._goal.total or 0)}
        for word, totals in levels.items():
            for key, level in totals.items():
                if counts[key] >= level:
                    return word, f"{key} is {counts[key]:,} already, at least {level:,.15g}"
        return "", ""

    def _end(self, result: TrainResults) -> tuple[str, str]:
        """Returns why the call ends after an iteration, as a word and as a sentence; two empty texts if it goes on."""
        goal = self._goal
        if met := self._conditions.met_by(result):
            return "stop", met
        if self._gate.requested is not None:
            return "interrupt", ""
        if goal.total is not None and self._name and result[goal.count] >= goal.total:
            return self._name, f"{self._name}={goal.total - (goal.origin if self._name != STEPS else 0):,} is reached"
        return "", ""

    def _display(self) -> contextlib.closing[Progress]:
        display: Progress = Progress()
        if self._shows:
            steps, runners = self._algo.num_agent_steps, self._algo.config.num_env_runners
            display = open_progress(Watched(self._goal, steps, sys.stdout, runners, lambda: self._algo.activity))
        return contextlib.closing(display)

    # How it ends.

    def _save_last(self) -> None:
        """Saves the newest complete state after an error, and draws the curves."""
        run, saver = self._run, self._saver
        if run is None or saver is None or not run.folder.is_begun or not run.folder.logged_iteration:
            return
        try:
            saver.save_last()
        except Exception as error:  # the error that ends the call must not be hidden
            text = f"\nIteration {self._algo.iteration} could not be saved: {describe_error(error)}."
            print(text, file=sys.stderr)
        with contextlib.suppress(Exception):
            run.folder.draw_curves()

    def _say_how_it_stopped(self, error: BaseException) -> None:
        """Says what was saved of the run, and how it is resumed."""
        run, saver = self._run, self._saver
        if run is None or saver is None:
            return
        hint = f"The latest checkpoint is of iteration {saver.saved_iteration}. Resume with: {run.folder.resume}"
        if isinstance(error, KeyboardInterrupt):
            if run.folder.is_finished:
                hint = f"The run is complete in {run.folder.path}, only its video is missing."
            elif saver.saved_iteration < 0:
                hint = "Nothing of it was saved."
            late = "The iteration took too long and was given up. " if self._gate.gave_up else ""
            self._say(f"\nStopped at once. {late}{hint}")
        says_it = isinstance(error, CheckpointError) and isinstance(error.__cause__, OSError)  # as ``writing`` does
        if isinstance(error, Exception) and saver.saved_iteration >= 0 and not says_it:
            self._say(f"\nStopped by an error in iteration {self._algo.iteration + 1}. {hint}")

    def _say_what_there_is(self, run: Run) -> None:
        """Says where the time went, and what is in the folder."""
        folder = run.folder
        if self._timers:
            self._say(f"\nWhere the time of training went: {time_shares(self._timers)}.")
            if replay := self._results[-1].get("replay_buffer"):
                size = megabytes(replay["num_bytes"])
                self._say(f"The replay buffer: {replay['num_timesteps']:,} steps, at most {size}.")
        checkpoints, best = folder.path / CHECKPOINTS, folder.best()
        is_best = "" if best is None else f", the best is {best[0].name} ({best[1]} {number(best[2])})"
        events = f", and as TensorBoard events in {folder.path / EVENTS}" if "tensorboard" in run.settings.track else ""
        rows = {
            "config": folder.path / CONFIG,
            "metrics": f"{folder.path / METRICS}{events}",
            **({"curves": folder.path / CURVES} if (folder.path / CURVES).exists() else {}),
            "checkpoints": f"{checkpoints}, the latest is {self._algo.iteration:06d}{is_best}",
            **run.results,
        }
        self._say("\nEverything of this run:\n" + "\n".join(f"  {name:<12} {place}" for name, place in rows.items()))


def _say(sentence: str) -> None:
    print(sentence, flush=True)


def _counts(algo: Algorithm) -> dict[str, int]:
    """Returns what the algorithm has counted so far, under the keys of its results."""
    counted = (algo.num_agent_steps, algo.num_env_steps, algo.iteration)
    return dict(zip(COUNTS.values(), counted, strict=True))


def _goal(
    amounts: Mapping[str, Any], steps: int | None, counts: Mapping[str, int], conditions: StopConditions, who: str
) -> tuple[str, Goal]:
    """Returns the name of the amount that ends the call, "" for none, and the goal that is displayed.

    Args:
        amounts: The amounts of the call, one of which replaces the config's ``steps``.
        steps: The config's ``steps``.
        counts: What the algorithm has counted so far.
        conditions: The other conditions.
        who: The first words of messages.

    Raises:
        ConfigError: If there is no amount and no condition, or several amounts, or one that is not a whole number.
    """
    given = {name: amount for name, amount in amounts.items() if amount is not None}
    if len(given) > 1:
        raise ConfigError(
            f"{who}: expected one of {', '.join(amounts)}, but got {' and '.join(given)}. Use stop= for others."
        )
    for name, amount in (given or ({} if steps is None else {STEPS: steps})).items():
        whole = integer(min=1).check(_whole(amount), who, name)
        if name == STEPS:
            return name, Goal(whole)
        key = COUNTS[name]
        return name, Goal(counts[key] + whole, key, counts[key])
    if not conditions:
        raise ConfigError(
            f"{who}: say when training ends: {', '.join(f'{name}=' for name in amounts)} or stop=. For example: "
            f"algo.fit(num_agent_steps=100_000)"
        )
    for key, level in conditions.totals.items():
        return "", Goal(int(level), key, counts[key])
    return "", Goal(None)


def _whole(amount: Any) -> Any:
    """Returns a number such as 1e6 as a whole one, and anything else as it is."""
    return int(amount) if isinstance(amount, float) and amount.is_integer() else amount
