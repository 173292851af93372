"""The folder of a run, which holds all of its files.

::

    config.json          the settings of the run
    baselines.json       returns of random play and of the untrained modules, if they were measured
    metrics.jsonl        one JSON object per iteration
    tensorboard/         the same numbers as TensorBoard events, if they are tracked
    curves.png           return per module over agent steps, if matplotlib is installed
    checkpoints/000020/  one folder per checkpoint, and the files ``latest`` and ``best`` with the names of these two
    untrained.gif        an episode of the untrained modules, for the beginning of the video
    video.gif            episodes of the untrained and the trained modules; or video.mp4
    videos/000020.gif    episodes of the modules after an iteration
    final.json           the returns of the trained modules, when the run has reached its end and was evaluated

A run can be resumed from its folder after any end, even a ``kill -9`` or a power cut: files are replaced in one step,
and metrics are on disk before the checkpoint of the same iteration.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import math
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_connectors.algorithms.fitting.caller import Caller
from marl_connectors.algorithms.fitting.figures import agent_steps, module_returns
from marl_connectors.algorithms.fitting.metric_names import AUTO, LOWEST, closest_metric, metrics_of
from marl_connectors.algorithms.fitting.pictures import draw_curves
from marl_connectors.algorithms.fitting.run_files import (
    BASELINES,
    CHECKPOINTS,
    CONFIG,
    CURVES,
    EVENTS,
    FINAL,
    METRICS,
    UNTRAINED_VIDEO,
    VIDEOS,
    best_iteration,
    from_json,
    go_back_to,
    is_leftover,
    is_number,
    iteration_of,
    names_of,
    read_baselines,
    read_config,
    read_metrics,
    remove_checkpoint,
    remove_leftovers,
    replace_file,
    sync_file,
    write_json,
    writing,
)
from marl_connectors.callbacks.trackers import new_run_id, scalars
from marl_connectors.checkpoints import BEST, LATEST, is_checkpoint, sync_directory
from marl_connectors.errors import ConfigError
from marl_connectors.json_data import jsonable
from marl_connectors.version import library_version

if TYPE_CHECKING:
    from typing_extensions import Self

    from marl_connectors.algorithms.algorithm import Algorithm
    from marl_connectors.algorithms.config.settings import RunSettings

TRACKED_RUN = "tracked_run"
"""The key in ``config.json`` of the id with which trackers continue the run."""
_LOG = logging.getLogger(__name__)
_CLAIM_S = 5.0
"""The seconds in which a command that has been killed leaves its folder: its processes end a little later than it."""
_DRAWING_SHARE = 0.02
"""The largest share of the time that drawing curves may take before the end."""


def make_folder(path: Path, *, numbered: bool = False) -> Path:
    """Makes a folder and returns its path: ``path-2``, ``path-3``, ... if ``path`` exists and may be ``numbered``.

    Raises:
        CheckpointError: If it cannot be made.
    """
    candidate, number = path, 2
    with writing(path):
        while True:
            try:
                candidate.mkdir(parents=True)
                sync_directory(candidate.absolute().parent)
                return candidate
            except FileExistsError:
                if not numbered and candidate.is_dir():
                    return candidate
                if not numbered:
                    raise
            candidate, number = path.with_name(f"{path.name}-{number}"), number + 1


@contextlib.contextmanager
def made_folder(path: Path, *, numbered: bool = False) -> Iterator[Path]:
    """Makes a folder for its block, as ``make_folder`` does. If it is empty afterwards, it is removed again."""
    parents = [each for each in path.parents if not each.exists()]
    found, is_new = path, not path.exists()
    try:
        found = make_folder(path, numbered=numbered)
        yield found
    finally:
        with contextlib.suppress(OSError):
            for each in [found, *parents] if is_new or found != path else []:
                each.rmdir()


class Claim:
    """The right to write to a folder, which one process has until ``release`` or its end."""

    def __init__(self, path: Path) -> None:
        """Claims a folder. Where there are no locks on folders, as on Windows, every claim succeeds.

        Raises:
            ConfigError: If another process has it.
        """
        self._fd = -1
        try:
            import fcntl

            self._fd = os.open(path, os.O_RDONLY)
        except (ImportError, OSError):  # the folder cannot be read, as the next step says
            return
        end = time.monotonic() + _CLAIM_S
        while True:
            try:
                return fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < end:
                    time.sleep(0.1)
                    continue
                self.release()
                raise ConfigError(
                    f"{path} is used by another command, which is still running. Wait for its end, or use another "
                    f"folder."
                ) from None
            except OSError:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets others claim the folder."""
        if self._fd >= 0:
            import fcntl

            with contextlib.suppress(OSError):  # of file systems without locks
                fcntl.flock(self._fd, fcntl.LOCK_UN)  # processes that were forked have the file open, too
            os.close(self._fd)
            self._fd = -1


class RunFolder:
    """The folder of a run on disk. ``opened`` makes these objects.

    Attributes:
        path: The folder.
        goes_on: Whether the run had files in it before; otherwise it has none before ``begin``.
        config: The content of ``config.json``.
        baselines: The results of random play and of the untrained modules, by the keys of ``baselines.json``; empty if
            they were not measured.
        untrained_video: A GIF of an episode of the untrained modules, which ``begin`` writes.
        names: The names of all results so far, as ``leaves`` has them; empty without a best checkpoint.
        logged_iteration: The newest iteration in the metrics; 0 if there is none.
        resume: How the run is resumed, as for ``writing``.
    """

    def __init__(self, path: Path, settings: RunSettings, caller: Caller | None = None) -> None:
        self.path = path
        self.goes_on = False
        self.config: dict[str, Any] = {}
        self.baselines: dict[str, Any] = {}
        self.untrained_video = b""
        self.names: set[str] = set()
        self.logged_iteration = 0
        self.resume = ""
        self._settings, self._caller = settings, caller or Caller()
        self._metrics = metrics_of(self._settings.keep_best)
        self._scores: list[tuple[int, dict[str, float]]] = []
        self._series: dict[str, list[tuple[int, float, float]]] = {}
        self._has_warned = False
        self._in_between: Path | None = None
        self._had_config = (path / CONFIG).exists()
        self._drawn_at, self._drawing_s = time.monotonic(), 1.0

    @classmethod
    @contextlib.contextmanager
    def opened(cls, algo: Algorithm, path: Path, caller: Caller) -> Iterator[Self]:
        """Gives the folder of an algorithm's run to its block, in which no other process can write to it.

        The run goes on in a folder from which the algorithm was restored, or in which it was saved.

        Args:
            algo: The algorithm.
            path: The folder.
            caller: Who calls ``fit``.

        Raises:
            ConfigError: If it has the files of another run, later checkpoints of this one, or a config that is of no
                run, or if another process writes to it.
            CheckpointError: If it cannot be written, or its files are damaged.
        """
        with made_folder(path), Claim(path):
            is_own, newest = path.resolve() in algo.run_folders, _newest_iteration(path / CHECKPOINTS)
            folder, who = cls(path, algo.config, caller), f"{caller.name('folder')}: {path} has"
            go_on = f"Continue with Algorithm.from_checkpoint({str(path)!r}), choose another folder, or delete"
            if not is_own and (newest or read_metrics(path / METRICS, up_to=algo.iteration)[0]):
                raise ConfigError(
                    f"{who} the files of another run: this algorithm was neither restored from it nor saved in it. "
                    f"{go_on} this one."
                )
            if newest > algo.iteration:
                raise ConfigError(
                    f"{who} checkpoints up to iteration {newest}, but this algorithm is at iteration {algo.iteration}, "
                    f"so it would replace them. {go_on} those after iteration {algo.iteration}."
                )
            if folder._had_config and not is_own and "algorithm" not in read_config(path):
                raise ConfigError(f"{who} a {CONFIG} that is of no run. Choose another folder.")
            if is_own and (newest or folder._had_config):
                folder.go_on(algo.iteration)
            yield folder

    def begin(self, algo: Algorithm) -> None:
        """Writes the first files of a run, or of one that begins anew because it had no checkpoint yet.

        Raises:
            CheckpointError: If the folder cannot be written.
            ConfigError: If another run has begun in it since it was opened.
        """
        path = self.path
        if not self._had_config and (path / CONFIG).exists():
            raise ConfigError(
                f"{self._caller.name('folder')}: expected a new or empty folder, but another run has begun in {path}. "
                f"Choose another."
            )
        with writing(path):
            for name in (EVENTS, VIDEOS):
                shutil.rmtree(path / name, ignore_errors=True)
            for name in (METRICS, BASELINES, FINAL, UNTRAINED_VIDEO, f"{CHECKPOINTS}/{BEST}"):
                (path / name).unlink(missing_ok=True)
            self.write_config(algo)  # from now on, the run can be resumed
            if self.baselines:
                write_json(path / BASELINES, self.baselines)
            if self.untrained_video:
                replace_file(path / UNTRAINED_VIDEO, self.untrained_video)
            (path / METRICS).touch()
            (path / CHECKPOINTS).mkdir(exist_ok=True)
            remove_leftovers(path)
            sync_directory(path)
        self.resume = self._caller.resume(path)
        algo.run_folders.add(path.resolve())

    def go_on(self, iteration: int) -> None:
        """Goes on with the run after an iteration. Everything that was logged later is dropped.

        Raises:
            CheckpointError: If its files are damaged, or cannot be written.
        """
        path, self.goes_on, self.resume = self.path, True, self._caller.resume(self.path)
        self.config = read_config(path) if self._had_config else {}
        self.baselines = read_baselines(path)
        with writing(path, self.resume):
            (path / CHECKPOINTS).mkdir(exist_ok=True)
        if missing := go_back_to(path, iteration, self.resume):
            _LOG.warning(
                "%s has no rows of %d of the %d iterations until the checkpoint. The run continues without them; they "
                "will be missing in its curves.",
                *(path / METRICS, missing, iteration),
            )
        for row in read_metrics(path / METRICS)[0]:
            self._remember(row)

    def write_config(self, algo: Algorithm) -> None:
        """Writes ``config.json`` with the settings of the algorithm, and what the caller knows of the run."""
        made = {"format_version": 1, "versions": _versions(), TRACKED_RUN: new_run_id()}
        self.config = jsonable({**made, **self.config, "algorithm": algo.config.to_dict(), **self._caller.facts})
        with writing(self.path / CONFIG, self.resume):
            write_json(self.path / CONFIG, self.config)

    def log(self, result: Mapping[str, Any]) -> None:
        """Adds the result of an iteration to the metrics."""
        row = jsonable(result)
        with writing(self.path / METRICS, self.resume), open(self.path / METRICS, "ab") as file:
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._remember(row)

    def save_checkpoint(self, algo: Algorithm, iteration: int, *, in_between: bool = False) -> Path:
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
                remove_checkpoint(former)
            if not in_between:
                self._choose_best(iteration)
                self._prune(iteration)
        if not in_between and time.monotonic() - self._drawn_at >= self._drawing_s / _DRAWING_SHARE:
            self.draw_curves()
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
        if self._settings.keep_best not in (None, AUTO) and self.names and not self._has_warned:
            name = str(self._settings.keep_best).removeprefix(LOWEST)
            hint = closest_metric(name, self.names)
            _LOG.warning(
                "%s: no result is called %r so far, so there is no best checkpoint. %s",
                self._caller.name("keep_best"),
                name,
                hint,
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
            if self._settings.keep_best == AUTO and names[-1] in known:
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
        if self._settings.keep_checkpoints is None:
            return
        best = best_iteration(self.path)
        found = [entry for entry in (self.path / CHECKPOINTS).iterdir() if is_number(entry.name)]
        old = sorted((entry for entry in found if int(entry.name) <= iteration), key=iteration_of)
        for entry in old[: -self._settings.keep_checkpoints]:
            if int(entry.name) != best and is_checkpoint(entry):
                remove_checkpoint(entry)

    def _remember(self, row: Mapping[str, Any]) -> None:
        self.logged_iteration = int(row["training_iteration"])
        for module_id, (mean, std) in module_returns(from_json(row["env_runners"])).items():
            self._series.setdefault(module_id, []).append((agent_steps(row), mean, std))
        if self._metrics:
            numbers = dict(scalars(row))
            self.names.update(names_of(row))
            scores = {name: _score_of(name, numbers) for names in self._metrics for name in names}
            known = {name: score for name, score in scores.items() if score is not None}
            self._scores.append((row["training_iteration"], known))

    def draw_curves(self) -> None:
        """Draws the returns so far, if matplotlib is installed.

        Raises:
            CheckpointError: If the picture cannot be written.
        """
        if importlib.util.find_spec("matplotlib") is None:
            return
        began = time.monotonic()
        random_play = module_returns(from_json(self.baselines.get("random_play", {})))
        levels = {module_id: mean for module_id, (mean, _) in random_play.items()}
        picture = io.BytesIO()
        draw_curves(picture, self._series, levels, self.path.name)
        with writing(self.path / CURVES, self.resume):
            replace_file(self.path / CURVES, picture.getvalue())
        self._drawn_at = time.monotonic()
        self._drawing_s = self._drawn_at - began

    @property
    def is_begun(self) -> bool:
        """Whether the run has files in the folder."""
        return bool(self.resume)

    @property
    def is_finished(self) -> bool:
        """Whether the trained modules have been measured, so that the run is complete."""
        return (self.path / FINAL).exists()

    def train_further(self) -> None:
        """Notes that the run is not finished any more."""
        with writing(self.path / FINAL, self.resume):
            (self.path / FINAL).unlink(missing_ok=True)

    def write_final(self, results: Mapping[str, Any]) -> None:
        """Writes ``final.json`` with the returns of the trained modules; it marks the run as finished."""
        with writing(self.path / FINAL, self.resume):
            write_json(self.path / FINAL, results)


def _newest_iteration(checkpoints: Path) -> int:
    """Returns the iteration of the checkpoint that ``latest`` names, or else of the newest one; 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        name = (checkpoints / LATEST).read_text(encoding="utf-8").strip()
        if is_number(name) and is_checkpoint(checkpoints / name):
            return int(name)
    return max((int(each.name) for each in numbered_checkpoints(checkpoints)), default=0)


def numbered_checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in a folder that are named after their iterations."""
    found = folder.iterdir() if folder.is_dir() else ()
    return [entry for entry in found if is_number(entry.name) and is_checkpoint(entry)]


def is_run(path: Path) -> bool:
    """Whether the folder has a run to resume, possibly from its beginning."""
    return os.path.isfile(path / CONFIG) and os.path.isdir(path / CHECKPOINTS)  # False for words that are no path


def is_unused(path: Path) -> bool:
    """Whether the folder is empty, except for the remains of an interrupted start."""
    return path.is_dir() and all(is_leftover(entry) for entry in path.iterdir())


def _score_of(name: str, numbers: Mapping[str, float]) -> float | None:
    """Returns the score of an iteration's results, of which the highest one is the best; None if they have none."""
    value = numbers.get(name.removeprefix(LOWEST))
    return -value if value is not None and name.startswith(LOWEST) else value


def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "gymnasium", "pettingzoo")
    versions = {name: metadata.version(name) for name in names}
    return {"marl-connectors": library_version(), "python": platform.python_version(), **versions}
