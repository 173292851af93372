"""The folder of a run, which holds all of its files.

::

    config.json          the settings of the run
    baselines.json       returns of random play and of the untrained modules
    metrics.jsonl        one JSON object per iteration
    tensorboard/         the same numbers as TensorBoard events, unless --track leaves them out; for single agents, only
                         those in the baselines
    curves.png           return per module over agent steps
    checkpoints/000020/  one folder per checkpoint, and the files ``latest`` and ``best`` with the names of these two
    untrained.gif        an episode of the untrained modules, for the beginning of the video
    video.gif            episodes of the untrained and the trained modules; video.mp4 with --video mp4
    videos/000020.gif    episodes of the modules after an iteration, with --video-every
    final.json           the returns of the trained modules, when the run has reached its end

A run can be resumed from its folder after any end, even a ``kill -9`` or a power cut: files are replaced in one step,
and metrics are on disk before the checkpoint of the same iteration.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import logging
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_connectors.callbacks.success import SUCCESS
from marl_connectors.callbacks.trackers import MAX_AGENT_SERIES, leaves, scalars
from marl_connectors.checkpoints import BEST, LATEST, RUN_CHECKPOINTS, find_checkpoint, is_checkpoint, sync_directory
from marl_connectors.cli.metric_names import AUTO, LOWEST, closest_metric, metrics_of
from marl_connectors.cli.pictures import draw_curves
from marl_connectors.cli.results import agent_steps, module_returns
from marl_connectors.cli.values import brief, is_whole, parsed_json
from marl_connectors.errors import CheckpointError, ConfigError
from marl_connectors.json_data import jsonable
from marl_connectors.programs import PROGRAM, command

CONFIG, BASELINES, METRICS, CURVES, UNTRAINED_VIDEO, FINAL, EVENTS, CHECKPOINTS, VIDEOS = (
    "config.json",
    "baselines.json",
    "metrics.jsonl",
    "curves.png",
    "untrained.gif",
    "final.json",
    "tensorboard",
    RUN_CHECKPOINTS,
    "videos",
)

_LOG = logging.getLogger(__name__)
AGENT_RETURNS = "agent_episode_returns_mean"
_TEMPORARY = ".tmp"


class RunFolder:
    """A run on disk. ``create`` and ``reopen`` make these objects.

    Attributes:
        path: The folder.
        config: The content of ``config.json``.
        baselines: The content of ``baselines.json``: ``{"random_play": ..., "at_start": ...}``.
        last_steps: Agent steps at the last iteration that was logged.
        names: The names of all results so far, as ``leaves`` has them.
        keep_best: The metric by which the best checkpoint is chosen, as in ``RunSettings``.
        keep_checkpoints: The number of newest checkpoints to keep besides the best one; None for all.
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        baselines: dict[str, Any],
        keep_best: str | None = AUTO,
        keep_checkpoints: int | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self.baselines = baselines
        self.last_steps = 0
        self.keep_best = keep_best
        self.keep_checkpoints = keep_checkpoints
        self.names: set[str] = set()
        self._metrics = metrics_of(keep_best)
        self._scores: list[tuple[int, dict[str, float]]] = []
        self._has_warned = False
        self._in_between: Path | None = None
        self._series: dict[str, list[tuple[int, float, float]]] = {}
        for row in read_metrics(path / METRICS)[0]:
            self._remember(row)

    @classmethod
    def create(
        cls, path: Path, config: Mapping[str, Any], baselines: Mapping[str, Any], *, numbered: bool, **keep: Any
    ) -> RunFolder:
        """Makes the folder of a new run, or of a run that starts again because it had no checkpoint yet.

        Args:
            path: The folder.
            config: The content of ``config.json``, as JSON data.
            baselines: Results of random play and of the untrained modules, as JSON data.
            numbered: Whether to use ``path-2``, ``path-3``, ... if ``path`` exists, instead of that folder.
            **keep: ``keep_best`` and ``keep_checkpoints``, as in the class.

        Raises:
            CheckpointError: If the folder cannot be written.
        """
        with writing(path):
            path = make_folder(path, numbered)
            for name in (EVENTS, VIDEOS):
                shutil.rmtree(path / name, ignore_errors=True)
            for name in (METRICS, BASELINES, UNTRAINED_VIDEO, f"{CHECKPOINTS}/{BEST}"):
                (path / name).unlink(missing_ok=True)
            _write_json(path / CONFIG, config)  # from now on, the run can be resumed
            _write_json(path / BASELINES, baselines)
            (path / METRICS).touch()
            (path / CHECKPOINTS).mkdir(exist_ok=True)
            remove_leftovers(path)
            sync_directory(path)
            return cls(path, dict(config), dict(baselines), **keep)

    @classmethod
    def reopen(cls, path: Path, checkpoint: Path, **keep: Any) -> RunFolder:
        """Opens the folder of a run to resume. Everything that was logged after the checkpoint is dropped.

        Args:
            path: The folder.
            checkpoint: A checkpoint of the run.
            **keep: ``keep_best`` and ``keep_checkpoints``, as in the class.

        Raises:
            CheckpointError: If the run does not exist, or if its files are damaged.
        """
        config, baselines = read_config(path), read_baselines(path)
        iteration = _iteration_of(checkpoint)
        rows, text = read_metrics(path / METRICS, up_to=iteration)
        missing = iteration - len({row["training_iteration"] for row in rows})
        if missing > 0:
            _LOG.warning(
                "%s has no rows of %d of the %d iterations until the checkpoint. The run continues without them; they "
                "will be missing in its curves.",
                path / METRICS,
                missing,
                iteration,
            )
        with writing(path):
            remove_leftovers(path)
            replace_file(path / METRICS, text)
            replace_file(path / CHECKPOINTS / LATEST, f"{checkpoint.name}\n".encode())
            if (best_iteration(path) or 0) > iteration:
                (path / CHECKPOINTS / BEST).unlink()
            (path / FINAL).unlink(missing_ok=True)
            return cls(path, config, baselines, **keep)

    def change_config(self, changes: Mapping[str, Any]) -> None:
        """Replaces parts of ``config.json``.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        self.config = jsonable({**self.config, **changes})
        with writing(self.path / CONFIG):
            _write_json(self.path / CONFIG, self.config)

    def log(self, result: Mapping[str, Any]) -> None:
        """Adds the result of an iteration to the metrics."""
        row = jsonable(result)
        with writing(self.path / METRICS), open(self.path / METRICS, "ab") as file:
            file.write(json.dumps(row, allow_nan=False).encode() + b"\n")
        self._remember(row)

    def save_checkpoint(self, algo: Any, iteration: int, *, in_between: bool = False) -> Path:
        """Saves an ``Algorithm`` under its iteration and makes it the latest checkpoint.

        Args:
            algo: The ``Algorithm``.
            iteration: The algorithm's number of iterations.
            in_between: Whether the checkpoint is removed as soon as a newer one exists. If not, the curves are drawn
                again.

        Raises:
            CheckpointError: If the checkpoint cannot be written. The previous checkpoint then stays the latest.
        """
        checkpoint = self.path / CHECKPOINTS / f"{iteration:06d}"
        with writing(checkpoint):
            sync_file(self.path / METRICS)
            algo.save_to_path(checkpoint)
            replace_file(self.path / CHECKPOINTS / LATEST, f"{checkpoint.name}\n".encode())
            former, self._in_between = self._in_between, checkpoint if in_between else None
            if former is not None and former != checkpoint:
                _remove_checkpoint(former)
            if not in_between:
                self._choose_best(iteration)
                self._prune(iteration)
        if not in_between:
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
        if self.keep_best not in (None, AUTO) and self.names and not self._has_warned:
            name = str(self.keep_best).removeprefix(LOWEST)
            hint = closest_metric(name, self.names)
            _LOG.warning("--keep-best: no result is called %r so far, so there is no best checkpoint. %s", name, hint)
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
        found = [entry for entry in (self.path / CHECKPOINTS).iterdir() if _is_number(entry.name)]
        old = sorted((entry for entry in found if int(entry.name) <= iteration), key=_iteration_of)
        for entry in old[: -self.keep_checkpoints]:
            if int(entry.name) != best and is_checkpoint(entry):
                _remove_checkpoint(entry)

    def draw_curves(self) -> None:
        """Draws the returns so far.

        Raises:
            CheckpointError: If the picture cannot be written.
        """
        random_play = module_returns(from_json(self.baselines["random_play"]))
        levels = {module_id: mean for module_id, (mean, _) in random_play.items()}
        picture = io.BytesIO()
        draw_curves(picture, self._series, levels, self.path.name)
        with writing(self.path / CURVES):
            replace_file(self.path / CURVES, picture.getvalue())

    def write_untrained_video(self, film: bytes) -> None:
        """Writes the GIF of an episode of the untrained modules."""
        with writing(self.path / UNTRAINED_VIDEO):
            replace_file(self.path / UNTRAINED_VIDEO, film)

    def write_final(self, results: Mapping[str, Any]) -> None:
        """Writes ``final.json`` with the returns of the trained modules; it marks the run as finished."""
        with writing(self.path / FINAL):
            _write_json(self.path / FINAL, results)

    def _remember(self, row: Mapping[str, Any]) -> None:
        self.last_steps = agent_steps(row)
        if self._metrics:
            numbers = dict(scalars(row))
            self.names.update(_names_of(row))
            scores = {name: _score_of(name, numbers) for names in self._metrics for name in names}
            known = {name: score for name, score in scores.items() if score is not None}
            self._scores.append((row["training_iteration"], known))
        for module_id, (mean, std) in module_returns(from_json(row["env_runners"])).items():
            self._series.setdefault(module_id, []).append((agent_steps(row), mean, std))


# What exists, and what can be made -----------------------------------------------------------------------------------


def check_can_be_made(path: Path, *, numbered: bool) -> None:
    """Checks that a run folder can be made, by writing next to it or into it. Leaves no files behind.

    Args:
        path: The folder to be made.
        numbered: Whether the folder may get another name if ``path`` exists.

    Raises:
        ConfigError: If ``path`` is taken or cannot be written.
    """
    try:
        parent = path.absolute()
        while not os.path.lexists(parent):
            parent = parent.parent
        if parent == path.absolute():
            if not numbered and not _is_unused(path):
                resume = f", or continue with: {command(PROGRAM, 'train', '--resume', path)}"
                raise ConfigError(
                    f"--out: expected a new or empty folder, but {path} exists. Choose another"
                    + (resume if _is_run(path) else ".")
                )
            parent = parent.parent if numbered else parent
        if not parent.is_dir():
            raise OSError(f"{parent} is no folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with tempfile.TemporaryDirectory(prefix=".marl-connectors-", suffix=_TEMPORARY, dir=parent) as temporary:
            folder = Path(temporary) / path.absolute().relative_to(parent)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / CONFIG).write_text("{}")
    except (OSError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            f"--out: expected a place that can be written, but {path} cannot: {why}. Choose another folder."
        ) from error


def _is_run(path: Path) -> bool:
    """Whether the folder has a run to resume, possibly from its beginning."""
    return (path / CONFIG).is_file() and (path / CHECKPOINTS).is_dir()


def _is_unused(path: Path) -> bool:
    """Whether the folder is empty, except for the remains of an interrupted start."""
    return path.is_dir() and all(_is_leftover(entry) for entry in path.iterdir())


def _is_leftover(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY)


def remove_leftovers(path: Path) -> None:
    """Removes the files that were being written when a run was killed, from its folder and its checkpoints."""
    for entry in [*path.iterdir(), *(path / CHECKPOINTS).iterdir()]:
        if _is_leftover(entry):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        elif found := re.fullmatch(r"\.(\d+)\.(tmp|old)-[0-9a-f]+", entry.name):
            place = entry.with_name(found[1])
            if found[2] == "old" and not place.exists():
                entry.rename(place)  # it was being replaced, and the new one does not exist yet
            else:
                shutil.rmtree(entry)


def _remove_checkpoint(path: Path) -> None:
    """Removes a checkpoint, which never exists half removed under its name."""
    going = path.with_name(f".{path.name}.tmp-0")
    os.rename(path, going)
    shutil.rmtree(going)


def latest_checkpoint(path: Path) -> Path:
    """Returns the newest checkpoint of a run folder.

    Raises:
        CheckpointError: If the folder has no checkpoint.
    """
    return find_checkpoint(path)


def best_iteration(path: Path) -> int | None:
    """Returns the iteration of the best checkpoint of a run folder; None if it has none that can be read."""
    try:
        name = (path / CHECKPOINTS / BEST).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return int(name) if _is_number(name) and is_checkpoint(path / CHECKPOINTS / name) else None


def checkpoint_to_resume(path: Path) -> Path | None:
    """Returns the checkpoint to resume from; None if the run ended before its first checkpoint.

    Raises:
        CheckpointError: If the run names a checkpoint that does not exist.
    """
    folder = path / CHECKPOINTS
    if (folder / LATEST).exists():
        checkpoint = find_checkpoint(path)
        _iteration_of(checkpoint)
        return checkpoint
    with reading(folder):
        found = [entry for entry in folder.iterdir() if is_checkpoint(entry)] if folder.is_dir() else []
    checkpoint = max((entry for entry in found if _is_number(entry.name)), key=_iteration_of, default=None)
    if checkpoint is None:
        _check_had_none(path)
    return checkpoint


def _check_had_none(path: Path) -> None:
    """Checks that a run without checkpoints never had one. It begins anew, which overwrites what it has logged.

    Raises:
        CheckpointError: If its checkpoints are lost.
    """
    with reading(path):
        is_lost = (path / CURVES).exists() or (path / FINAL).exists()
        is_lost |= (
            not (path / CHECKPOINTS).is_dir() and (path / METRICS).is_file() and bool((path / METRICS).stat().st_size)
        )
    if is_lost:
        raise CheckpointError(
            f"train --resume: {path} had checkpoints, but none is in {path / CHECKPOINTS} any more. Put them back, or "
            f"start a new run with the same settings: {command(PROGRAM, 'train', '--config', path / CONFIG)}"
        )


def _iteration_of(checkpoint: Path) -> int:
    if not _is_number(checkpoint.name):
        raise CheckpointError(
            f"{checkpoint.parent.parent}: expected the name of a checkpoint to be its iteration, got {checkpoint.name}."
        )
    return int(checkpoint.name)


def _is_number(name: str) -> bool:
    return re.fullmatch("[0-9]{1,18}", name) is not None


# Reading ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns the system's error for a file that is read into a CheckpointError."""
    try:
        yield
    except OSError as error:
        name = str(path) if len(str(path)) < 300 else f"{str(path)[:300]}..."
        raise CheckpointError(f"{name} cannot be read: {error.strerror or error}. Check the path.") from error


def read_config(path: Path) -> dict[str, Any]:
    """Reads ``config.json``, which defines a run.

    Raises:
        CheckpointError: If the folder is missing, or is not the folder of a run.
    """
    with reading(path):
        is_folder = path.is_dir()
    if not is_folder:
        raise CheckpointError(f"run folder: expected one at {path}, but there is none. Check the path.")
    return _read_json(path, CONFIG)


def read_baselines(path: Path) -> dict[str, Any]:
    """Reads ``baselines.json``: the returns of random play and of the untrained modules.

    Raises:
        CheckpointError: If the file is missing or damaged.
    """
    data = _read_json(path, BASELINES)
    for name in ("random_play", "at_start"):
        wrong = _wrong_results(data.get(name), name)
        if wrong:
            raise CheckpointError(f"{path / BASELINES} is damaged: {wrong}. Correct it there, or take a copy of it.")
    return {name: data[name] for name in ("random_play", "at_start")}


def read_final(path: Path) -> dict[str, Any] | None:
    """Reads ``final.json``: the returns of the trained modules. None if the run has not reached its end.

    Raises:
        CheckpointError: If the file is damaged.
    """
    if not (path / FINAL).exists():
        return None
    data = _read_json(path, FINAL)
    if wrong := _wrong_results(data, "the results"):
        raise CheckpointError(f"{path / FINAL} is damaged: {wrong}. Delete it, and resume the run.")
    return data


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
    rows, _ = read_metrics(path / METRICS, up_to=_iteration_of(checkpoint))
    return {name for row in rows for name in _names_of(row)}


def _names_of(row: Mapping[str, Any]) -> Iterator[str]:
    """Yields the names of an iteration's numbers, also of those without a value."""
    return (name for name, value in leaves(row) if value is None or isinstance(value, (int, float)))


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        with reading(path / name):
            data = parsed_json((path / name).read_bytes())
    except CheckpointError as cause:
        if isinstance(cause.__cause__, FileNotFoundError):
            raise CheckpointError(
                f"{path} is not the folder of a run, because it has no {name}. Check the path."
            ) from cause
        raise
    except ValueError as cause:
        raise CheckpointError(f"{path / name} is damaged: it is not valid JSON ({cause}).") from cause
    if not isinstance(data, dict):
        raise CheckpointError(f"{path / name} is damaged: expected a JSON object, but got {brief(data)}.")
    return data


def _wrong_row(row: Any) -> str:
    """Returns a text that says what is wrong with the results of an iteration; "" if nothing is."""
    if not isinstance(row, dict):
        return f"expected a JSON object, but got {brief(row)}"
    for name, at_least in (("training_iteration", 1), ("num_agent_steps_sampled_lifetime", 0)):
        if not is_whole(row.get(name), at_least, 2**53):
            return f"expected {name!r} to be a whole number of at least {at_least}, but got {brief(row.get(name))}"
    return _wrong_results(row.get("env_runners"), "env_runners")


def _wrong_results(results: Any, where: str) -> str:
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


# Writing ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns the system's error for a file that is written, such as a full disk, into a CheckpointError."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        place = error.filename if isinstance(error.filename, str) else path
        room = "make room, or make the place writable"
        hint = f"{room.capitalize()}, and try again."
        if (run := _run_around(path)) is not None:
            resume = command(PROGRAM, "train", "--resume", run)
            hint = f"What was saved before is complete: {room}, and continue with: {resume}"
        raise CheckpointError(f"{place} could not be written: {why}. {hint}") from error


def _run_around(path: Path) -> Path | None:
    """Returns the folder of the run in which a file is; None if it is in none."""
    with contextlib.suppress(OSError):
        return next((folder for folder in (path, *path.parents) if (folder / CONFIG).is_file()), None)
    return None


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file in one step, so that it is never half written. Afterwards the file is on disk."""
    temporary = path.with_name(f".{path.name}{_TEMPORARY}")
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


def make_folder(path: Path, numbered: bool) -> Path:
    """Makes a folder and returns its path: ``path-2``, ``path-3``, ... if ``path`` exists and may be ``numbered``."""
    candidate, number = path, 2
    while True:
        try:
            candidate.mkdir(parents=True)
            sync_directory(candidate.absolute().parent)
            return candidate
        except FileExistsError:
            if not numbered and candidate.is_dir():
                return candidate  # an unused folder, as check_can_be_made found, or that of a run that starts again
            if not numbered:
                raise
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    replace_file(path, (json.dumps(jsonable(data), indent=2, allow_nan=False) + "\n").encode())


# Results ------------------------------------------------------------------------------------------------------------


def from_json(env_runner_results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns results of the env runners that ``jsonable`` wrote, with NaN instead of None."""
    returns = env_runner_results.get("module_episode_returns", {})
    return {
        "module_episode_returns": {
            module_id: {key: math.nan if value is None else value for key, value in stats.items()}
            for module_id, stats in returns.items()
        }
    }


def _score_of(name: str, numbers: Mapping[str, float]) -> float | None:
    """Returns the score of an iteration's results, of which the highest one is the best; None if they have none."""
    value = numbers.get(name.removeprefix(LOWEST))
    return -value if value is not None and name.startswith(LOWEST) else value


def agents_seen(baselines: Mapping[str, Any]) -> set[str]:
    """Returns the agents that were in the episodes of any baseline."""
    return {agent_id for results in baselines.values() for agent_id in results.get(AGENT_RETURNS, {})}


def agents_of(baselines: Mapping[str, Any]) -> frozenset[str]:
    """Returns the agents that were in the episodes of all baselines, at most ``MAX_AGENT_SERIES``."""
    seen = [list(results.get(AGENT_RETURNS, {})) for results in baselines.values()]
    both = [agent_id for agent_id in seen[0] if all(agent_id in other for other in seen[1:])] if seen else []
    return frozenset(both[:MAX_AGENT_SERIES])
