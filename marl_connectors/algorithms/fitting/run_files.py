"""The metrics and checkpoints of a run on disk, written by ``Algorithm.fit`` and the command line.

::

    metrics.jsonl        one JSON object per iteration
    checkpoints/000020/  one folder per checkpoint, and the files ``latest`` and ``best`` with the names of these two

A run can go on from its newest checkpoint after any end, even a ``kill -9`` or a power cut: files are replaced in one
step, and metrics are on disk before the checkpoint of the same iteration.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from marl_connectors.algorithms.fitting.metric_names import AUTO, LOWEST, closest_metric, metrics_of
from marl_connectors.callbacks.success import SUCCESS
from marl_connectors.callbacks.trackers import leaves, scalars
from marl_connectors.checkpoints import BEST, LATEST, RUN_CHECKPOINTS, is_checkpoint, sync_directory
from marl_connectors.errors import CheckpointError
from marl_connectors.json_data import brief, is_whole, jsonable, parsed_json
from marl_connectors.programs import PROGRAM, command

METRICS, CHECKPOINTS = "metrics.jsonl", RUN_CHECKPOINTS
CONFIG = "config.json"
"""The file that only runs of the command line have."""
AGENT_RETURNS = "agent_episode_returns_mean"
TEMPORARY = ".tmp"
"""The end of the names of files that are being written."""
_LOG = logging.getLogger(__name__)


class RunFiles:
    """The metrics and checkpoints of a run.

    Attributes:
        path: The folder.
        names: The names of all results so far, as ``leaves`` has them; empty without a best checkpoint.
        keep_best: The metric by which the best checkpoint is chosen, as in ``Algorithm.fit``.
        keep_checkpoints: The number of newest checkpoints to keep besides the best one; None for all.
        logged_iteration: The newest iteration in the metrics; 0 if there is none.
        resume: How the run is resumed, as for ``writing``.
    """

    _option: ClassVar[str] = "keep_best"
    """What users call the setting ``keep_best``."""

    def __init__(self, path: Path, keep_best: str | None = AUTO, keep_checkpoints: int | None = None) -> None:
        self.path = path
        self.keep_best = keep_best
        self.keep_checkpoints = keep_checkpoints
        self.names: set[str] = set()
        self._metrics = metrics_of(keep_best)
        self._scores: list[tuple[int, dict[str, float]]] = []
        self._has_warned = False
        self._in_between: Path | None = None
        self.logged_iteration = 0
        self.resume = resume_in_python(path)
        for row in read_metrics(path / METRICS)[0]:
            self._remember(row)

    def log(self, result: Mapping[str, Any]) -> None:
        """Adds the result of an iteration to the metrics."""
        row = jsonable(result)
        with writing(self.path / METRICS, self.resume), open(self.path / METRICS, "ab") as file:
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._remember(row)

    def save_checkpoint(self, algo: Any, iteration: int, *, in_between: bool = False) -> Path:
        """Saves an ``Algorithm`` under its iteration and makes it the latest checkpoint.

        Args:
            algo: The ``Algorithm``.
            iteration: The algorithm's number of iterations.
            in_between: Whether the checkpoint is removed as soon as a newer one exists.

        Raises:
            CheckpointError: If the checkpoint cannot be written. The previous checkpoint then stays the latest.
        """
        checkpoint = self.path / CHECKPOINTS / f"{iteration:06d}"
        with writing(checkpoint, self.resume):
            sync_file(self.path / METRICS)
            algo.save_to_path(checkpoint)
            replace_file(self.path / CHECKPOINTS / LATEST, f"{checkpoint.name}\n".encode())
            former, self._in_between = self._in_between, checkpoint if in_between else None
            if former is not None and former != checkpoint:
                _remove_checkpoint(former)
            if not in_between:
                self._choose_best(iteration)
                self._prune(iteration)
        return checkpoint

    def _choose_best(self, iteration: int) -> None:
        """Makes a new checkpoint the best one, unless the best one so far has a better metric."""
        names = self._ranking()
        if not names:
            self._warn_of_metric()
            return
        former = best_iteration(self.path)
        (measured, now), (before, best) = self._score(names, iteration), self._score(names, former or 0)
        if former is None or (measured > before and not best > now):
            replace_file(self.path / CHECKPOINTS / BEST, f"{iteration:06d}\n".encode())

    def _warn_of_metric(self) -> None:
        """Logs a warning, once, if results have no number of the name that the user has given."""
        if self.keep_best not in (None, AUTO) and self.names and not self._has_warned:
            name = str(self.keep_best).removeprefix(LOWEST)
            hint = closest_metric(name, self.names)
            _LOG.warning(
                "%s: no result is called %r so far, so there is no best checkpoint. %s", self._option, name, hint
            )
            self._has_warned = True

    def _ranking(self) -> tuple[str, ...]:
        """Returns the metrics by which the best checkpoint is chosen, the first of which counts most.

        A metric without a value, and one of ``auto`` that is always the same, is left out.
        """
        found: dict[str, set[float]] = {}
        for _, values in self._scores:
            for name, value in values.items():
                found.setdefault(name, set()).add(value)
        for names in self._metrics:
            known = [name for name in names if name in found]
            if self.keep_best == AUTO and names[-1] in known:
                return tuple(name for name in known if len(found[name]) > 1 or name == names[-1])
            if names[0] in known:
                return tuple(known)
        return ()

    def best(self) -> tuple[Path, str, float] | None:
        """Returns the best checkpoint, its metric and the value; None if there is no such checkpoint."""
        iteration, names = best_iteration(self.path), self._ranking()
        if iteration is None or not names:
            return None
        score = self._score(names, iteration)[1][0]
        value = -score if names[0].startswith(LOWEST) else score
        return self.path / CHECKPOINTS / f"{iteration:06d}", names[0], value

    def _score(self, names: Sequence[str], iteration: int) -> tuple[int, tuple[float, ...]]:
        """Returns the newest values of metrics until an iteration, with their own iteration, which is 0 for no value.

        Values for ``min:`` are negative.
        """
        for at, values in reversed(self._scores):
            if at <= iteration and names[0] in values:
                return at, tuple(values.get(name, -math.inf) for name in names)
        return 0, (math.nan,)

    def _prune(self, iteration: int) -> None:
        """Removes old checkpoints, but neither the best one nor the newest ones."""
        if self.keep_checkpoints is None:
            return
        best = best_iteration(self.path)
        found = [entry for entry in (self.path / CHECKPOINTS).iterdir() if is_number(entry.name)]
        old = sorted((entry for entry in found if int(entry.name) <= iteration), key=iteration_of)
        for entry in old[: -self.keep_checkpoints]:
            if int(entry.name) != best and is_checkpoint(entry):
                _remove_checkpoint(entry)

    def _remember(self, row: Mapping[str, Any]) -> None:
        self.logged_iteration = int(row["training_iteration"])
        if self._metrics:
            numbers = dict(scalars(row))
            self.names.update(names_of(row))
            scores = {name: _score_of(name, numbers) for names in self._metrics for name in names}
            known = {name: score for name, score in scores.items() if score is not None}
            self._scores.append((row["training_iteration"], known))


# Checkpoints ----------------------------------------------------------------------------------------------------------


def resume_in_python(path: Path) -> str:
    """Returns how a run of ``Algorithm.fit`` is resumed, for ``writing``."""
    return f"algo.fit(...), or later with Algorithm.from_checkpoint({str(path)!r}).fit(...)"


def go_back_to(path: Path, iteration: int, resume: str = "") -> int:
    """Drops everything from the files of a run that was written after an iteration, and what a kill has left half done.

    Args:
        path: The folder of the run.
        iteration: The iteration.
        resume: As for ``writing``.

    Returns:
        The number of iterations until this one of which the metrics have no row.

    Raises:
        CheckpointError: If the metrics are damaged, or the files cannot be written.
    """
    rows, text = read_metrics(path / METRICS, up_to=iteration)
    with writing(path, resume):
        remove_leftovers(path)
        replace_file(path / METRICS, text)
        if (best_iteration(path) or 0) > iteration:
            (path / CHECKPOINTS / BEST).unlink()
    return iteration - len({row["training_iteration"] for row in rows})


def remove_leftovers(path: Path) -> None:
    """Removes the files that were being written when a run was killed, from its folder and its checkpoints."""
    for entry in [*path.iterdir(), *(path / CHECKPOINTS).iterdir()]:
        if is_leftover(entry) or re.fullmatch(r"\.\d+\.tmp-[0-9a-f]+", entry.name):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def is_leftover(path: Path) -> bool:
    """Whether a file was being written when a run was killed."""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def _remove_checkpoint(path: Path) -> None:
    """Removes a checkpoint, which never exists half removed under its name."""
    going = path.with_name(f".{path.name}.tmp-0")
    os.rename(path, going)
    shutil.rmtree(going)


def best_iteration(path: Path) -> int | None:
    """Returns the iteration of the best checkpoint of a run folder; None if it has none that can be read."""
    try:
        name = (path / CHECKPOINTS / BEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return int(name) if is_number(name) and is_checkpoint(path / CHECKPOINTS / name) else None


def iteration_of(checkpoint: Path) -> int:
    """Returns the iteration of a checkpoint, which is its name.

    Raises:
        CheckpointError: If the name is something else.
    """
    if not is_number(checkpoint.name):
        raise CheckpointError(
            f"{checkpoint.parent.parent}: expected the name of a checkpoint to be its iteration, got {checkpoint.name}."
        )
    return int(checkpoint.name)


def is_number(name: str) -> bool:
    """Whether a name is that of a checkpoint of a run."""
    return re.fullmatch("[0-9]{1,18}", name) is not None


def _score_of(name: str, numbers: Mapping[str, float]) -> float | None:
    """Returns the score of an iteration's results, of which the highest one is the best; None if they have none."""
    value = numbers.get(name.removeprefix(LOWEST))
    return -value if value is not None and name.startswith(LOWEST) else value


# Reading and writing --------------------------------------------------------------------------------------------------


def read_metrics(path: Path, up_to: int | None = None) -> tuple[list[dict[str, Any]], bytes]:
    """Reads the rows of the metrics, and their text. A last line that a crash cut short is left out.

    Args:
        path: The file.
        up_to: The iteration at which to stop reading; None to read all.

    Raises:
        CheckpointError: If a line is not a row of metrics. Names the line.
    """
    with reading(path):
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = parsed_json(line)
            wrong = _wrong_row(row)
        except ValueError as error:
            row, wrong = {}, f"expected the JSON object of an iteration ({error})"
        if wrong:
            raise CheckpointError(
                f"{path}, line {number}, is damaged: {' '.join(wrong.split())}. Correct it, or delete the line."
            )
        if up_to is not None and row["training_iteration"] > up_to:
            break
        rows.append(row)
        if row["training_iteration"] == up_to:
            break
    return rows, b"".join(line + b"\n" for line in lines[: len(rows)])


def names_of_results(path: Path, checkpoint: Path) -> set[str]:
    """Returns the names of all results of a run until a checkpoint.

    Raises:
        CheckpointError: If the metrics are damaged.
    """
    rows, _ = read_metrics(path / METRICS, up_to=iteration_of(checkpoint))
    return {name for row in rows for name in names_of(row)}


def names_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of an iteration's numbers, also of those without a value."""
    return (name for name, value in leaves(row) if value is None or isinstance(value, (int, float)))


def _wrong_row(row: Any) -> str:
    """Returns a text that says what is wrong with the results of an iteration; "" if nothing is."""
    if not isinstance(row, dict):
        return f"expected a JSON object, but got {brief(row)}"
    for name, at_least in (("training_iteration", 1), ("num_agent_steps_sampled_lifetime", 0)):
        if not is_whole(row.get(name), at_least, 2**53):
            return f"expected {name!r} to be a whole number of at least {at_least}, but got {brief(row.get(name))}"
    return wrong_results(row.get("env_runners"), "env_runners")


def wrong_results(results: Any, where: str) -> str:
    """Returns a text that says what is wrong with results of env runners; "" if nothing is."""
    if not isinstance(results, dict):
        return f"expected {where!r} to be a JSON object, but got {brief(results)}"
    for name in ("module_episode_returns", AGENT_RETURNS):
        if not isinstance(results.get(name, {}), dict):
            return f"expected {where}/{name} to be a JSON object, but got {brief(results[name])}"
    for module_id, stats in results.get("module_episode_returns", {}).items():
        place = f"{where}/module_episode_returns/{brief(module_id)[1:-1]}"
        if not isinstance(stats, dict):
            return f"expected {place} to be a JSON object, but got {brief(stats)}"
        for key in ("mean", "std"):
            value = stats.get(key, "nothing")
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2.0**1023
            if not (is_number or value is None):
                return f"expected {place}/{key} to be a number or null, but got {brief(value)}"
    success = results.get(SUCCESS)
    if success is not None and not (isinstance(success, (int, float)) and not isinstance(success, bool)):
        return f"expected {where}/{SUCCESS} to be a number or null, but got {brief(success)}"
    number = results.get("num_episodes", 0)
    return "" if is_whole(number) else f"expected {where}/num_episodes to be a whole number, but got {brief(number)}"


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the system's error for a file that is read into a CheckpointError."""
    try:
        yield
    except OSError as error:
        name = str(path) if len(str(path)) < 300 else f"{str(path)[:300]}..."
        raise CheckpointError(f"{name} cannot be read: {error.strerror or error}. Check the path.") from error


@contextlib.contextmanager
def writing(path: Path, resume: str = "") -> Iterator[None]:
    """Turns the system's error for a file that is written, such as a full disk, into a CheckpointError.

    Args:
        path: What is written.
        resume: How the run is resumed; ``""`` for the command line if the file is in the folder of a run.
    """
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        place = error.filename if isinstance(error.filename, str) else path
        room = "make room, or make the place writable"
        hint = f"{room.capitalize()}, and try again."
        if not resume and (run := _run_around(path)) is not None:
            resume = command(PROGRAM, "train", "--resume", run)
        if resume:
            hint = f"What was saved before is complete: {room}, and continue with: {resume}"
        raise CheckpointError(f"{place} could not be written: {why}. {hint}") from error


def _run_around(path: Path) -> Path | None:
    """Returns the folder of the run in which a file is; None if it is in none."""
    with contextlib.suppress(OSError):
        return next((folder for folder in (path, *path.parents) if (folder / CONFIG).is_file()), None)
    return None


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file in one step, so that it is never half written. Afterwards the file is on disk."""
    temporary = path.with_name(f".{path.name}{TEMPORARY}")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_file(path: Path) -> None:
    """Makes sure that the content of a file is on disk."""
    with open(path, "ab") as file:
        os.fsync(file.fileno())
